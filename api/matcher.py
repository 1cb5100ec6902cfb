"""Which job a pop is offered: all pops of a process go through here (design section 6, *Pop*).

Workers with equal offers share a shelf: one list of candidates, of which each is handed out once.
A shelf is read again when it has nothing left for somebody and there was a hint, or what it has is
old. An idle pop costs no query: a shelf that was found empty is known to be until a hint for its
model comes, or a second has passed.

A candidate is only a proposal, by a read model that lags. `take` decides, in a script.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence, Set
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from api.clock import Clock
from api.wait import Drain
from events.base import Position
from handlers.errors import RedisUnavailable
from projections.database import DatabaseUnavailable
from projections.queue import Group
from projections.rules import (
    FIRST,
    Candidate,
    Offer,
    Place,
    Worker,
    fits,
    refusal,
)

logger = structlog.get_logger()

FIRST_PAGE = 20
NEXT_PAGE = 100
CLOCK_MS = 5
"""How far the estimate of Redis' clock may run ahead."""
_READS = 4
_TRIES = 64


class Bounds(NamedTuple):
    """How long things are believed, in seconds, and how much is kept."""

    stale: float = 0.1
    """A list that still has something is served from for so long."""
    empty: float = 1.0
    """How long nothing is believed without a hint, and how often those who wait look themselves."""
    tally: float = 5.0
    """How long counts of what is out of reach are kept without a hint."""
    handed: float = 2.0
    """How long a job is not offered again while somebody tries to take it."""
    taken: float = 30.0
    """How long a job that was taken is not offered again, unless the row shows that it came back.

    A read model that lags, as under a load that starves it, must not make every pop try what is
    gone.
    """
    refused: float = 1.0
    """The same for a candidate that did not hold: as read, its row was older than its refusal."""
    away: float = 0.5
    """For so long nobody is offered a job of a partition whose node did not answer; and a pop that
    found so looks for another job."""
    forgotten: float = 60.0
    """How long a shelf is kept that nobody uses."""
    sweep: float = 5.0
    """Between two looks for what may be forgotten."""
    kept: int = 1000
    """Candidates that a shelf keeps; who has to look further walks on alone."""
    listed: int = 50_000
    """Models on all shelves together: those that were not used for longest make room. A worker may
    list 200, other ones on each pop."""


class Taken(Protocol):
    """One job of a request that a worker has now, or several of them."""

    @property
    def positions(self) -> Sequence[Position]:
        """Of the events that say so, one for each job."""


Job = TypeVar("Job", bound=Taken)


class Find(Protocol):
    """Candidates for an offer from the read model: `projections.queue.candidates`."""

    def __call__(
        self, offer: Offer, *, now_ms: int, limit: int, after: Place, workers: Sequence[str]
    ) -> Awaitable[list[Candidate]]:
        """The best ones behind `after`; an empty list is the end."""


class FindOf(Protocol):
    """Candidates of some accounts: `projections.queue.of_users`."""

    def __call__(
        self, offer: Offer, *, users: frozenset[int], now_ms: int
    ) -> Awaitable[list[Candidate]]:
        """The best ones first."""


class Tally(Protocol):
    """What waits for an offer's models, reach or not: `projections.queue.tally`."""

    def __call__(self, offer: Offer) -> Awaitable[list[Group]]:
        """A bounded number of requests, by their needs."""


class Finds(NamedTuple):
    """What a matcher asks of the read model."""

    best: Find
    of_users: FindOf
    tally: Tally


class Model(Protocol):
    """How far the read model has come."""

    def partition(self, request_id: str) -> int:
        """The partition of a request."""

    def shown(self) -> Sequence[Position]:
        """Up to where its rows are known to show the log, by partition."""


class Outcome(NamedTuple, Generic[Job]):
    """What a worker was offered."""

    job: Job | None
    """None where there was nothing for it."""
    skipped: dict[str, int]
    """How many waiting requests for its models were not for this worker, by reason; of a bounded
    number of them. Empty where it got a job, or nobody can say."""


def _serves(_worker: Worker) -> bool:
    return True


class Matcher:
    """The shelves of one process.

    `spread` is among how many of the best candidates a pop picks: 1 keeps to their order, more
    keeps several processes from all trying the same one. `serves` is whether requests with images
    can be served now: where not they are passed over, and come when they can.
    """

    def __init__(
        self,
        finds: Finds,
        model: Model,
        clock: Clock,
        drain: Drain,
        *,
        spread: int = 1,
        serves: Callable[[Worker], bool] = _serves,
        bounds: Bounds = Bounds(),  # noqa: B008 - immutable
    ) -> None:
        self.finds = finds
        self.model = model
        self.clock = clock
        self.drain = drain
        self.spread = spread
        self.serves = serves
        self.bounds = bounds
        self.marks = _Marks()
        self.away: dict[int, float] = {}
        """Partitions whose node did not answer, each with the time until which none of its jobs is
        offered."""
        self._shelves: OrderedDict[Offer, Shelf] = OrderedDict()  # the last used one behind
        self._listed = 0
        self._by_model: dict[str, set[Shelf]] = {}
        self._swept = 0.0

    def shelf(self, offer: Offer) -> Shelf:
        """The shelf of an offer; it is kept while it is used."""
        now = asyncio.get_running_loop().time()
        if now - self._swept > self.bounds.sweep:
            self._sweep(now)
        shelf = self._shelves.get(offer)
        if shelf is None:
            shelf = self._shelves[offer] = Shelf(self, offer)
            models = _models(offer)
            self._listed += len(models)
            for model in models:
                self._by_model.setdefault(model, set()).add(shelf)
            if self._listed > self.bounds.listed:
                self._make_room()
        self._shelves.move_to_end(offer)
        shelf.used_at = now
        return shelf

    def hinted(self, models: Iterable[str]) -> None:
        """Jobs of these models began to wait."""
        for model in models:
            for shelf in self._by_model.get(model, ()):
                shelf.hinted()

    def changed(self, worker_ids: Sequence[str]) -> None:
        """Something was changed of these workers: their pops end, the next are judged anew."""
        changed = frozenset(worker_ids)
        for shelf in self._shelves.values():
            shelf.let_go(changed)

    async def pop(
        self,
        shelf: Shelf,
        worker: Worker,
        seconds: float,
        take: Callable[[Candidate], Coroutine[Any, Any, Job | None]],
        put_back: Callable[[Job], object],
    ) -> Outcome[Job]:
        """Find a job for `worker`, waiting up to `seconds` for one.

        `take` makes it (and more jobs of the same request, if it likes) the worker's, or returns
        None where it no longer waits. It runs to its end whatever becomes of the caller; if the
        caller is gone by then, `put_back` gets the job.
        Raise DatabaseUnavailable, RedisUnavailable, and what `take` raises.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        lost: RedisUnavailable | None = None
        for tried in range(_TRIES):
            candidate = await shelf.next(worker)
            left = began + seconds - loop.time()
            if candidate is None and lost is None and left > 0 and not self.drain.on:
                candidate = await shelf.wait(worker, left, first=tried > 0)
            if candidate is None:
                break
            try:
                job = await self._taken(shelf, candidate, take, put_back)
            except RedisUnavailable as error:
                # The node of one partition may be away, and the others have jobs, too.
                self.away[self.model.partition(candidate.request_id)] = (
                    loop.time() + self.bounds.away
                )
                if loop.time() - began > self.bounds.away:
                    raise
                lost = error
                continue
            if job is not None:
                return Outcome(job, {})
        if lost is not None:
            raise lost
        return Outcome(None, await shelf.skipped(worker))

    async def _taken(
        self,
        shelf: Shelf,
        candidate: Candidate,
        take: Callable[[Candidate], Coroutine[Any, Any, Job | None]],
        put_back: Callable[[Job], object],
    ) -> Job | None:
        taking = asyncio.get_running_loop().create_task(take(candidate))
        try:
            job = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(lambda done: self._orphaned(shelf, candidate, done, put_back))
            raise
        except BaseException:
            shelf.release(candidate)
            raise
        if job is None:
            shelf.refused(candidate)
        else:
            shelf.taken(candidate, job.positions)
        return job

    def _orphaned(
        self,
        shelf: Shelf,
        candidate: Candidate,
        taking: asyncio.Task[Job | None],
        put_back: Callable[[Job], object],
    ) -> None:
        """The caller left while its job was being taken."""
        shelf.release(candidate)
        if taking.cancelled() or taking.exception() is not None:
            return
        job = taking.result()
        if job is not None:
            put_back(job)

    def _sweep(self, now: float) -> None:
        """Forget shelves that nobody used for a minute, and marks that are over."""
        self._swept = now
        self.marks.sweep(now)
        for offer, shelf in list(self._shelves.items()):
            if now - shelf.used_at > self.bounds.forgotten and not shelf.busy:
                self._drop(offer, shelf)

    def _make_room(self) -> None:
        """Forget the shelves that were not used for longest, but for those that are in use.

        More than are too many, so that not every new one has to look for room.
        """
        *others, _newest = self._shelves.items()
        for offer, shelf in others:
            if self._listed <= self.bounds.listed * 9 // 10:
                return
            if not shelf.busy:
                self._drop(offer, shelf)

    def _drop(self, offer: Offer, shelf: Shelf) -> None:
        del self._shelves[offer]
        models = _models(offer)
        self._listed -= len(models)
        for model in models:
            self._by_model[model].discard(shelf)
            if not self._by_model[model]:
                del self._by_model[model]


def _models(offer: Offer) -> set[str]:
    """The models that a hint for this offer may name."""
    models = {*offer.models, ""} if offer.models else set()
    if offer.chat_model is not None:
        models.add(offer.chat_model)
    return models


class _Mark(NamedTuple):
    until: float
    position: Position | None
    """Of the assignment: a row that shows this event shows what is left."""


class _Marks:
    """Which requests were handed out a moment ago, on any shelf: one mark for each job."""

    def __init__(self) -> None:
        self._marks: dict[str, list[_Mark]] = {}

    def __len__(self) -> int:
        """How many requests have marks."""
        return len(self._marks)

    def spent(self, candidate: Candidate, now: float, shown: Position) -> bool:
        """Whether all its jobs are handed out, of those in a row that shows the log up to there."""
        marks = self._marks.get(candidate.request_id)
        if marks is None:
            return False
        live = [
            mark
            for mark in marks
            if mark.until > now and (mark.position is None or mark.position > shown)
        ]
        return len(live) >= candidate.waiting

    def add(self, request_id: str, until: float, position: Position | None = None) -> None:
        """One more of its jobs is handed out."""
        self._marks.setdefault(request_id, []).append(_Mark(until, position))

    def drop(self, request_id: str) -> None:
        """One fewer of those that nobody has taken yet."""
        marks = self._marks.get(request_id, [])
        for mark in reversed(marks):
            if mark.position is None:
                marks.remove(mark)
                break
        if not marks:
            self._marks.pop(request_id, None)

    def sweep(self, now: float) -> None:
        """Forget what is over."""
        for request_id, marks in list(self._marks.items()):
            live = [mark for mark in marks if mark.until > now]
            if live:
                self._marks[request_id] = live
            else:
                del self._marks[request_id]


class _User(NamedTuple):
    """A worker that uses a shelf."""

    at: float  # when it last did
    prefers: frozenset[int]


class _Tally(NamedTuple):
    read_at: float
    hints: int  # when the read began
    groups: list[Group]

    def serves(self, now: float, hints: int, bounds: Bounds) -> bool:
        """Whether counting again would find nothing new, or it was just done."""
        age = now - self.read_at
        return age < (bounds.tally if hints == self.hints else bounds.stale)


_Offered = asyncio.Future[Candidate | None]


class Shelf:
    """What waits for one offer, as last read, and the pops that wait for more."""

    def __init__(self, matcher: Matcher, offer: Offer) -> None:
        self.used_at = 0.0
        self._matcher = matcher
        self._bounds = matcher.bounds
        self._offer = offer
        self._rows: list[Candidate] = []
        self._first: list[Candidate] = []  # of accounts that some of its workers prefer
        self._more: Place | None = None  # where the next page begins, None behind the last one
        self._read_at = float("-inf")
        self._hints = 0  # so far
        self._read_hints = 0  # when the last read began
        self._workers: dict[str, _User] = {}  # who uses this shelf
        self._read_for: frozenset[str] = frozenset()  # whom the last read was for
        self._read_of: frozenset[int] = frozenset()  # accounts that it looked at
        self._tally: _Tally | None = None
        self._shown: Sequence[Position] = ()  # what its rows show at least, by partition
        self._reading: asyncio.Task[None] | None = None
        self._waiting: OrderedDict[_Offered, Worker] = OrderedDict()  # in line
        self._serving: asyncio.Task[None] | None = None
        self._look: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether someone is at it."""
        return bool(self._waiting) or self._reading is not None

    def prepare(self) -> None:
        """Begin to read, if a pop that comes now will need it: it has other things to do first."""
        now = asyncio.get_running_loop().time()
        if not (self._rows and self._served_from(now)) and not self._fresh(now):
            self._begin_read()

    def hinted(self) -> None:
        """Something began to wait."""
        self._hints += 1
        if self._waiting:
            self._serve()

    async def next(self, worker: Worker) -> Candidate | None:
        """The next candidate for this worker; None where the queue has none, up to its last hint.

        Raise DatabaseUnavailable, RedisUnavailable.
        """
        loop = asyncio.get_running_loop()
        self._workers[worker.id] = _User(loop.time(), worker.prefers)
        reads = 0
        if self._served_from(loop.time()) and worker.prefers <= self._read_of:
            found = self._pick(worker)
            if found is not None:
                return found
        while True:
            fresh = self._read_with(worker) and self._fresh(loop.time())
            if fresh or reads >= _READS:
                if self._more is None:
                    return None
                if len(self._rows) >= self._bounds.kept:
                    return await self._walk(worker)
                await self._read_more()
            else:
                reads += 1
                await self._read()
                if reads < _READS and not self._read_with(worker):
                    continue  # that read was under way before this worker came
            found = self._pick(worker)
            if found is not None:
                return found

    async def wait(
        self, worker: Worker, seconds: float, *, first: bool = False
    ) -> Candidate | None:
        """Wait in line for a candidate; None when the time is over, the process drains, or
        something was changed of the worker.

        `first` is for who had one that did not hold: back to the head of the line. Raise
        DatabaseUnavailable or RedisUnavailable where looking for one failed meanwhile.
        """
        loop = asyncio.get_running_loop()
        offered: _Offered = loop.create_future()
        self._waiting[offered] = worker
        if first:
            self._waiting.move_to_end(offered, last=False)
        self._look_later()
        if self._hints != self._read_hints:
            self._serve()
        try:
            with self._matcher.drain.ends(offered):
                await asyncio.wait((offered,), timeout=seconds)
        except asyncio.CancelledError:
            if offered.done() and offered.exception() is None:
                candidate = offered.result()
                if candidate is not None:
                    self.release(candidate)
            raise
        finally:
            self._waiting.pop(offered, None)
            self.used_at = loop.time()
        return offered.result() if offered.done() else None

    def let_go(self, worker_ids: Set[str]) -> None:
        """End the waits of these workers."""
        for offered, worker in self._waiting.items():
            if worker.id in worker_ids and not offered.done():
                offered.set_result(None)

    # what became of a candidate

    def taken(self, candidate: Candidate, positions: Sequence[Position]) -> None:
        """So many of its jobs are the worker's; the read model will show it."""
        until = asyncio.get_running_loop().time() + self._bounds.taken
        self._matcher.marks.drop(candidate.request_id)
        if not positions:  # a decoy was: the request waits for somebody else
            self._matcher.hinted(candidate.wanted.models)
        for position in positions:
            self._matcher.marks.add(candidate.request_id, until, position)
        if candidate.waiting <= len(positions):
            self._rows = [row for row in self._rows if row.request_id != candidate.request_id]
            self._first = [row for row in self._first if row.request_id != candidate.request_id]

    def refused(self, candidate: Candidate) -> None:
        """It did not hold: only what the model shows of a later moment is worth another try."""
        until = asyncio.get_running_loop().time() + self._bounds.refused
        now = Position(self._matcher.clock.estimate_ms() - CLOCK_MS, 0)
        self._matcher.marks.drop(candidate.request_id)
        self._matcher.marks.add(candidate.request_id, until, now)

    def release(self, candidate: Candidate) -> None:
        """Whoever it was handed to did not try: it is anyone's again."""
        self._matcher.marks.drop(candidate.request_id)
        self._matcher.hinted(candidate.wanted.models)

    # picking

    async def skipped(self, worker: Worker) -> dict[str, int]:
        """Why requests for its models are not for this worker, counted by reason."""
        loop = asyncio.get_running_loop()
        known = self._tally
        if known is None or not known.serves(loop.time(), self._hints, self._bounds):
            read_at, hints = loop.time(), self._hints
            try:
                groups = await self._matcher.finds.tally(self._offer)
            except DatabaseUnavailable:  # it only explains: its lack is no reason to fail the pop
                return {}
            known = self._tally = _Tally(read_at, hints, groups)
        counted: Counter[str] = Counter()
        for group in known.groups:
            reason = refusal(group.wanted, worker)
            if reason is not None:
                counted[reason] += group.requests
        return dict(counted)

    def _pick(self, worker: Worker) -> Candidate | None:
        preferred = [row for row in self._first if row.wanted.user_id in worker.prefers]
        found = self._choose(preferred, worker) or self._choose(self._rows, worker)
        return None if found is None else self._handed(found)

    def _handed(self, candidate: Candidate) -> Candidate:
        """The candidate, which nobody else is offered for a while."""
        until = asyncio.get_running_loop().time() + self._bounds.handed
        self._matcher.marks.add(candidate.request_id, until)
        return candidate

    def _choose(self, rows: Sequence[Candidate], worker: Worker) -> Candidate | None:
        now, now_ms = asyncio.get_running_loop().time(), self._matcher.clock.estimate_ms()
        marks, spread = self._matcher.marks, self._matcher.spread
        partition, away = self._matcher.model.partition, self._matcher.away
        choice: list[Candidate] = []
        for row in rows:
            of = partition(row.request_id)
            if marks.spent(row, now, self._shown[of]) or now < away.get(of, now):
                continue
            if fits(row, worker, now_ms) is not None:
                continue
            if row.wanted.images and not self._matcher.serves(worker):
                continue
            choice.append(row)
            if len(choice) == spread:
                break
        if not choice:
            return None
        return choice[0] if spread == 1 else random.choice(choice)  # noqa: S311 - no secret

    def _read_with(self, worker: Worker) -> bool:
        """Whether the last read looked for this worker, and for whom it prefers."""
        return worker.id in self._read_for and worker.prefers <= self._read_of

    def _served_from(self, now: float) -> bool:
        return now - self._read_at < self._bounds.stale

    def _fresh(self, now: float) -> bool:
        """Whether reading again would find nothing new."""
        if self._hints != self._read_hints:
            return False
        return now - self._read_at < (self._bounds.stale if self._rows else self._bounds.empty)

    # reading

    async def _read(self) -> None:
        """Read the first page, or wait for whoever does."""
        await asyncio.shield(self._begin_read())

    def _begin_read(self) -> asyncio.Task[None]:
        return self._under_way() or self._start(self._first_page())

    def _under_way(self) -> asyncio.Task[None] | None:
        """The read that somebody waits for, unless it is over and its callback has yet to run.

        To await that one would return at once, without a turn of the loop, and so for ever.
        """
        return None if self._reading is None or self._reading.done() else self._reading

    def _start(self, read: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._reading = asyncio.get_running_loop().create_task(read)
        self._reading.add_done_callback(self._read_done)
        return self._reading

    def _read_done(self, reading: asyncio.Task[None]) -> None:
        if self._reading is reading:
            self._reading = None
        if not reading.cancelled():
            reading.exception()  # whoever waits for it gets it; perhaps nobody does

    async def _first_page(self) -> None:
        loop = asyncio.get_running_loop()
        now_ms = await self._matcher.clock.now_ms()
        read_at, hints, shown = loop.time(), self._hints, self._matcher.model.shown()
        for worker in self._waiting.values():
            self._workers[worker.id] = _User(read_at, worker.prefers)
        self._workers = {
            id_: user
            for id_, user in self._workers.items()
            if read_at - user.at < self._bounds.forgotten
        }
        workers = tuple(self._workers)
        users = frozenset().union(*(user.prefers for user in self._workers.values()))
        finds = self._matcher.finds
        rows = await finds.best(
            self._offer, now_ms=now_ms, limit=FIRST_PAGE, after=FIRST, workers=workers
        )
        more = self._behind(rows, FIRST_PAGE)
        if more is None:  # who prefers some of them finds them among these
            self._first = rows
        else:
            self._first = await finds.of_users(self._offer, users=users, now_ms=now_ms)
        self._read_of, self._rows, self._more = users, rows, more
        self._read_at, self._read_hints, self._read_for = read_at, hints, frozenset(workers)
        self._shown = shown

    async def _read_more(self) -> None:
        """Add the next page; by whoever comes first."""
        await asyncio.shield(self._under_way() or self._start(self._next_page()))

    async def _next_page(self) -> None:
        after, read_at = self._more, self._read_at
        if after is None:
            return
        rows = await self._page(after)
        if self._read_at == read_at:
            self._rows = [*self._rows, *rows]
            self._more = self._behind(rows, NEXT_PAGE)

    async def _page(self, after: Place) -> list[Candidate]:
        return await self._matcher.finds.best(
            self._offer,
            now_ms=self._matcher.clock.estimate_ms(),
            limit=NEXT_PAGE,
            after=after,
            workers=tuple(self._read_for),
        )

    async def _walk(self, worker: Worker) -> Candidate | None:
        """Look behind what is kept, for this worker alone."""
        after = self._more
        while after is not None:
            rows = await self._page(after)
            found = self._choose(rows, worker)
            if found is not None:
                return self._handed(found)
            after = self._behind(rows, NEXT_PAGE)
        return None

    def _behind(self, rows: Sequence[Candidate], limit: int) -> Place | None:
        """Where the page behind these rows begins; None where there is none.

        A page that is not full is the last one. That can be told where no request is found under
        several models, which those of text may be.
        """
        if not rows or (len(rows) < limit and not self._offer.models):
            return None
        return rows[-1].place

    # serving those who wait

    def _look_later(self) -> None:
        if self._look is None and self._waiting:
            self._look = asyncio.get_running_loop().call_later(self._bounds.empty, self._look_again)

    def _look_again(self) -> None:
        """A hint may have been lost."""
        self._look = None
        if self._waiting:
            self._serve()
            self._look_later()

    def _serve(self) -> None:
        if self._serving is None:
            self._serving = asyncio.get_running_loop().create_task(self._serve_waiting())
            self._serving.add_done_callback(self._served)

    def _served(self, serving: asyncio.Task[None]) -> None:
        self._serving = None
        if not serving.cancelled() and (error := serving.exception()) is not None:
            logger.error("matcher_failed", exc_info=error)

    async def _serve_waiting(self) -> None:
        """Read, and hand out in the order of waiting, until there is nothing new."""
        try:
            while self._waiting:
                await self._read()
                self._hand_out()
                while self._waiting and self._more and len(self._rows) < self._bounds.kept:
                    await self._read_more()
                    self._hand_out()
                if self._hints == self._read_hints:
                    return
        except (DatabaseUnavailable, RedisUnavailable) as error:
            while self._waiting:
                offered, _worker = self._waiting.popitem(last=False)
                if not offered.done():
                    offered.set_exception(error)

    def _hand_out(self) -> None:
        if not (self._rows or self._first):
            return
        for offered, worker in tuple(self._waiting.items()):
            if offered.done():
                continue
            found = self._pick(worker)
            if found is not None:
                offered.set_result(found)
                del self._waiting[offered]
