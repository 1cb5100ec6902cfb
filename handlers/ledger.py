"""Whether the books are right: balances as the log tells them, in plain Python, against those in
Redis and in Postgres.

It works beside running commands. Each account in Redis is compared at the position that it held
when it was read, the clearing of a partition within the stretch of log that passed while it was
read, and Postgres at its checkpoint: so nothing has to be read twice, and what differs is wrong.
The logs are read once, together, in the order of their times. What is kept of them are balances,
and what is owed but not yet carried over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from events import types
from events.base import START, Event, Position, Recorded
from events.ledger import Stored, movements, other_side
from events.settlements import settlements
from handlers.effects import Carried
from handlers.log import Log
from handlers.replay import read_log

AT_ONCE = 500
"""Accounts that are read together."""

Reading = Callable[[int], Awaitable[Stored]]
"""What Postgres has of a partition."""


class Difference(NamedTuple):
    """Something that is told in two ways."""

    key: str
    field: str
    told: Mapping[str, int | str | None]
    """By whom → what; amounts are 10^-4 kudos. None: nothing of the kind is there."""

    def __str__(self) -> str:
        told = ", ".join(f"{who} {_shown(value)}" for who, value in self.told.items())
        return f"{self.key} {self.field}: {told}"


def _shown(value: int | str | None) -> str:
    return "–" if value is None else str(value)


class Totals(NamedTuple):
    """What a partition's log comes to. Amounts are 10^-4 kudos."""

    partition: int
    accounts: int
    balances: int
    """Of all accounts, escrow included."""
    clearing: Mapping[str, int]
    """By cause; with `balances` it makes zero."""


class Report(NamedTuple):
    """What was found."""

    totals: list[Totals]
    differences: list[Difference]


async def check(log: Log, stored: Reading) -> Report:
    """Compare the three. Raise RedisUnavailable, and whatever `stored` raises."""
    books = [_Books(partition) for partition in log.keys.all()]
    for each in books:
        each.stored = await stored(each.partition)
        await each.look(log)
    for each in books:  # effects up to here: their sources are then in what is read of any log
        each.head = await log.head(each.partition)
    for each in books:
        each.end = await log.head(each.partition)
    owed = _Owed()
    async for recorded in _together(log, books):
        target = books[recorded.partition]
        for due in _dues(recorded.event):
            owed.add(due, log.keys.of_account(due.user_id), recorded)
        if recorded.position <= target.head:
            for carried in _carried(recorded.event):
                owed.take(carried)
            target.fold(recorded)
    differences = [found for each in books for found in each.close()]
    return Report([each.totals() for each in books], differences + list(owed.open(books)))


async def _together(log: Log, books: list[_Books]) -> AsyncIterator[Recorded]:
    """All logs up to their ends, the earliest event first."""
    logs = {each.partition: _one(log, each.partition, each.end) for each in books}
    heads: dict[int, Recorded] = {}
    waiting = list(logs)
    while True:
        for partition in waiting:
            first = await anext(logs[partition], None)
            if first is not None:
                heads[partition] = first
        if not heads:
            return
        first = min(heads.values(), key=lambda each: each.position)
        del heads[first.partition]
        waiting = [first.partition]
        yield first


async def _one(log: Log, partition: int, end: Position) -> AsyncIterator[Recorded]:
    async for page in read_log(log, partition):
        for entry in page:
            if entry.recorded.position > end:
                return
            yield entry.recorded


# balances


class _Account(msgspec.Struct):
    """What the log says of an account."""

    opened: Position
    floor: int
    kudos: int = 0
    escrow: int = 0
    held: int = 0
    lines: int = 0
    holds: dict[str, int] = msgspec.field(default_factory=dict)
    """Of each open admission that holds something."""


class _Hot(NamedTuple):
    """An account as it was read from Redis."""

    user_id: int
    kudos: int
    escrow: int
    held: int
    floor: int
    admissions: Mapping[str, int]
    """Shared key, or "" for all together → what admissions hold of it."""
    holds: Mapping[str, int]
    """The same by the account's own counters."""


class _Books:
    """One partition."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.stored = Stored(START, {}, {}, {})
        self.head = START
        """Up to here its log is folded."""
        self.end = START
        """Up to here it is read for what it owes elsewhere."""
        self.fences: dict[int, Position] = {}
        """Source log → how far its effects stand in what was folded."""
        self.accounts: dict[int, _Account] = {}
        self._clearing: Counter[str] = Counter()
        self._hot: dict[Position, list[_Hot]] = {}
        self._known: dict[int, _Hot | None] = {}
        """Accounts in Redis; None: one that is none."""
        self._scanned = START
        self._hot_clearing: dict[str, int] = {}
        self._within = (START, START)
        self._clearing_agrees = False
        self._compared = False
        self._found: list[Difference] = []

    # reading

    async def look(self, log: Log) -> None:
        """Read what Redis has, and where the log stood then."""
        partition, keys = self.partition, log.keys
        self._scanned = await log.head(partition)
        prefix = keys.account(partition).removesuffix(str(partition))  # of its first account
        found = sorted({key async for key in log.redis.scan(f"{prefix}*")})
        for first in range(0, len(found), AT_ONCE):
            some = found[first : first + AT_ONCE]
            hashes = await asyncio.gather(*(_hash(log, key) for key in some))
            for key, fields in zip(some, hashes, strict=True):
                self._note(int(key.removeprefix(prefix)), fields)
        before = await log.head(partition)
        stored = await _hash(log, keys.clearing(partition))
        self._hot_clearing = {cause: int(value) for cause, value in stored.items() if value != "0"}
        self._within = (before, await log.head(partition))
        if before == START:
            self._compare_clearing()
        if self.stored.position == START:
            self._compare_stored()

    def _note(self, user_id: int, fields: dict[str, str]) -> None:
        try:
            position = Position.parse(fields["position"])
            hot = _hot(user_id, fields)
        except (KeyError, ValueError):
            self._known[user_id] = None
            return
        self._known[user_id] = hot
        self._hot.setdefault(position, []).append(hot)

    # folding

    def fold(self, recorded: Recorded) -> None:
        """Take the next event, and compare what stood just behind it."""
        event, position = recorded.event, recorded.position
        if isinstance(event, Carried | types.Settled):
            reached = Position.parse(event.source_position)
            self.fences[event.source] = max(reached, self.fences.get(event.source, START))
        if isinstance(event, types.AccountOpened):
            self.accounts[event.user_id] = _Account(position, event.floor)
        self._hold(event)
        for line in movements(event):
            account = self.accounts.get(line.user_id)
            if account is None:
                self._differs(line.user_id, "account-opened", {"log": None})
                account = self.accounts[line.user_id] = _Account(position, 0)
            account.kudos += line.amount
            account.escrow += line.escrow
            account.lines += 1
            self._clearing.update(other_side(line))
        for hot in self._hot.pop(position, ()):
            self._compare_hot(hot)
        first, last = self._within
        if first <= position <= last:
            self._compare_clearing()
        if position == self.stored.position:
            self._compare_stored()

    def _hold(self, event: Event) -> None:
        """What an admission holds; it is used up by charges, and free when it is released."""
        match event:
            case types.Admitted(hold=int(hold)) if hold:
                self._change_hold(event.user_id, event.request_id, hold)
            case types.Charged():
                for request_id, amount in zip(event.requests, event.amounts, strict=True):
                    self._change_hold(event.user_id, request_id, -amount)
            case types.Released():
                self._change_hold(event.user_id, event.request_id, None)
            case _:
                pass

    def _change_hold(self, user_id: int, request_id: str, by: int | None) -> None:
        """`by` None: all of it is free."""
        account = self.accounts.get(user_id)
        if account is None:
            return
        before = account.holds.pop(request_id, 0)
        left = 0 if by is None else max(0, before + by)
        account.held += left - before
        if left:
            account.holds[request_id] = left

    # comparing

    def _compare_hot(self, hot: _Hot) -> None:
        user_id, account = hot.user_id, self.accounts.get(hot.user_id)
        if account is None:
            self._differs(user_id, "account-opened", {"log": None})
            return
        for field in ("kudos", "escrow", "held", "floor"):
            wanted, found = getattr(account, field), getattr(hot, field)
            if wanted != found:
                self._differs(user_id, field, self._told(user_id, field, wanted))
        if hot.kudos < hot.floor:
            self._differs(user_id, "floor", {"floor": hot.floor, "Redis": hot.kudos})
        for shared_key in sorted(hot.admissions.keys() | hot.holds.keys()):
            admitted, held = hot.admissions.get(shared_key, 0), hot.holds.get(shared_key, 0)
            if admitted != held:
                field = f"held:{shared_key}" if shared_key else "held"
                self._differs(user_id, field, {"admissions": admitted, "Redis": held})

    def _told(self, user_id: int, field: str, wanted: int) -> dict[str, int | str | None]:
        told: dict[str, int | str | None] = {"log": wanted}
        told["Redis"] = getattr(self._known.get(user_id), field, None)
        if field in ("kudos", "escrow"):
            told["Postgres"] = getattr(self.stored.accounts.get(user_id), field, None)
        return told

    def _compare_clearing(self) -> None:
        """Once it agrees it did at that position."""
        self._clearing_agrees |= _nonzero(self._clearing) == self._hot_clearing

    def _compare_stored(self) -> None:
        """Balances, and what the lines of the ledger make of them."""
        self._compared = True
        stored = self.stored
        for user_id in sorted(self.accounts.keys() | stored.accounts.keys() | stored.lines.keys()):
            account, row = self.accounts.get(user_id), stored.accounts.get(user_id)
            if account is None or row is None:
                told = {"log": _there(account), "Postgres": _there(row)}
                self._differs(user_id, "account", told)
                continue
            lines = stored.lines.get(user_id, (0, 0, 0))
            for field, wanted, found in (
                ("kudos", account.kudos, row.kudos),
                ("escrow", account.escrow, row.escrow),
            ):
                if wanted != found:
                    self._differs(user_id, field, self._told(user_id, field, wanted))
            for field, wanted, found in zip(
                ("lines", "sum of lines", "escrow of lines"),
                (account.lines, account.kudos, account.escrow),
                lines,
                strict=True,
            ):
                if wanted != found:
                    self._differs(user_id, field, {"log": wanted, "Postgres": found})
        self._compare_causes("Postgres", stored.clearing)

    def _compare_causes(self, who: str, found: Mapping[str, int]) -> None:
        for cause in sorted(self._clearing.keys() | found.keys()):
            wanted, there = self._clearing[cause], found.get(cause, 0)
            if wanted != there:
                told = {"log": wanted, who: there}
                self._found.append(Difference(self._of("clearing"), cause, told))

    def close(self) -> list[Difference]:
        """Everything that differs, once the log was folded."""
        for user_id, hot in self._known.items():
            if hot is None:
                self._differs(user_id, "position", {"Redis": None})
        for position, hots in self._hot.items():
            for hot in hots:
                told = {"log": None, "Redis": str(position)}
                self._differs(hot.user_id, "position", told)
        for user_id, account in self.accounts.items():
            if account.opened <= self._scanned and user_id not in self._known:
                self._differs(user_id, "account", {"log": _there(account), "Redis": None})
        if not self._clearing_agrees:
            self._compare_causes("Redis", self._hot_clearing)
        if not self._compared:
            told = {"log": None, "Postgres": str(self.stored.position)}
            self._found.append(Difference(self._of("checkpoint"), "position", told))
        totals = self.totals()
        total = totals.balances + sum(totals.clearing.values())
        if total:
            self._found.append(Difference(self._of("sum"), "of all", {"log": total}))
        return self._found

    def totals(self) -> Totals:
        """What it comes to."""
        balances = sum(each.kudos + each.escrow for each in self.accounts.values())
        clearing = dict(sorted(_nonzero(self._clearing).items()))
        return Totals(self.partition, len(self.accounts), balances, clearing)

    def _differs(self, user_id: int, field: str, told: Mapping[str, int | str | None]) -> None:
        self._found.append(Difference(f"account {user_id}", field, told))

    def _of(self, what: str) -> str:
        return f"partition {self.partition} {what}"


def _there(account: object) -> str | None:
    return None if account is None else "an account"


def _nonzero(counted: Counter[str]) -> dict[str, int]:
    return {cause: amount for cause, amount in counted.items() if amount}


def _hot(user_id: int, fields: Mapping[str, str]) -> _Hot:
    """Raise ValueError for what no script writes."""
    admissions: Counter[str] = Counter()
    holds: dict[str, int] = {}
    for field, value in fields.items():
        kind, _, rest = field.partition(":")
        if kind == "admission":
            *_, holds_of_it, _tax, shared_key = value.split(":")
            admissions[""] += int(holds_of_it)
            if shared_key:
                admissions[shared_key] += int(holds_of_it)
        elif kind == "held":
            holds[rest] = int(value)
    kudos, escrow, held, floor = (
        int(fields.get(name, 0)) for name in ("kudos", "escrow", "held", "floor")
    )
    return _Hot(user_id, kudos, escrow, held, floor, admissions, holds)


async def _hash(log: Log, key: str) -> dict[str, str]:
    flat: Any = await log.read("HGETALL", key)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): value.decode() for name, value in pairs}


# what is owed, and carried over


class _Due(NamedTuple):
    """An amount that one event says, and that another one moves, once."""

    what: str
    user_id: int
    for_: str
    """The generation, the worker or the transfer."""
    amount: int


def _dues(event: Event) -> Iterator[_Due]:
    """What the settler has to carry over of a source event."""
    match event:
        case types.SubmittedReply():
            yield _Due("charge", event.user_id, event.generation_id, event.charge)
            if event.charge:  # or it was written before replies were paid for
                yield _Due("reward", event.owner_id, event.generation_id, event.price)
        case types.Cancelled():
            for job in settlements(event):
                yield _Due("charge", event.user_id, job.generation_id, job.price + event.burn)
                yield _Due("reward", job.owner_id, job.generation_id, job.price)
        case types.CheckedIn():
            yield _Due("uptime", event.user_id, event.worker_id, event.reward)
        case types.Transferred():
            yield _Due("transfer", event.recipient, event.transfer_id, event.amount)
        case _:
            pass


def _carried(event: Event) -> Iterator[_Due]:
    """The same of the event that it became."""
    match event:
        case types.Charged():
            for generation_id, amount in zip(event.generations, event.amounts, strict=True):
                yield _Due("charge", event.user_id, generation_id, amount)
        case types.Rewarded(cause="uptime"):
            for worker_id, amount in zip(event.workers, event.amounts, strict=True):
                yield _Due("uptime", event.user_id, worker_id, amount)
        case types.Rewarded():
            for generation_id, amount in zip(event.generations, event.amounts, strict=True):
                yield _Due("reward", event.user_id, generation_id, amount)
        case types.Received():
            yield _Due("transfer", event.user_id, event.transfer_id, event.amount)
        case _:
            pass


class _Source(NamedTuple):
    partition: int
    position: Position
    target: int
    amount: int


class _Open(msgspec.Struct):
    """What is owed (less than 0: carried too often) to one account for one thing."""

    total: int = 0
    sources: list[_Source] = msgspec.field(default_factory=list)


class _Owed:
    """What is owed and was not seen carried over, or the other way round."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int, str], _Open] = {}

    def add(self, due: _Due, target: int, recorded: Recorded) -> None:
        """An event says so."""
        if due.amount:
            source = _Source(recorded.partition, recorded.position, target, due.amount)
            self._change(due, due.amount).append(source)

    def take(self, due: _Due) -> None:
        """It was carried over."""
        if due.amount:
            self._change(due, -due.amount)

    def _change(self, due: _Due, by: int) -> list[_Source]:
        key = (due.what, due.user_id, due.for_)
        entry = self._open.setdefault(key, _Open())
        entry.total += by
        if not entry.total:
            del self._open[key]
        return entry.sources

    def open(self, books: list[_Books]) -> Iterator[Difference]:
        """What does not come out: neither carried once, nor still to be."""
        for (what, user_id, for_), entry in self._open.items():
            due = sum(
                source.amount
                for source in entry.sources
                # The settler has not come so far, or there is nobody to carry it to.
                if source.position > books[source.target].fences.get(source.partition, START)
                or user_id not in books[source.target].accounts
            )
            if entry.total != due:
                owed = sum(source.amount for source in entry.sources) - due
                told = {"owed": owed, "carried": owed - (entry.total - due)}
                yield Difference(f"account {user_id}", f"{what} {for_}", told)
