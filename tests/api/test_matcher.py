"""Which candidate goes to whom, and how often the read model is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from api.matcher import Bounds, Finds, Matcher, Outcome
from api.wait import Drain
from events.base import START, Position
from events.types import Declaration, Demand
from handlers.errors import RedisUnavailable
from projections.database import DatabaseUnavailable
from projections.queue import Group
from projections.rules import Candidate, Offer, Place, Wanted, Worker

MODEL = "m"
OFFER = Offer.of(
    Declaration(
        models=(MODEL,),
        chat_jobs=True,
        model_id=MODEL,
        chat_max_length=1024,
        chat_max_context_length=4096,
    )
)._replace(models=(), receives_images=True)
NOW_MS = 1_000_000


def candidate(n: int, *, waiting: int = 1, user_id: int = 1, **changed: Any) -> Candidate:
    """The n-th best of the queue."""
    demand = Demand(models=(MODEL,), **changed)
    wanted = Wanted.of(demand, user_id=user_id, chat=True, max_length=100)
    id_ = f"{n:08d}-0000-4000-8000-000000000000"
    return Candidate(id_, wanted, -n, waiting, "", 0, NOW_MS, NOW_MS + 1000)


class Job(NamedTuple):
    """What a worker got."""

    request_id: str
    positions: tuple[Position, ...]


BOUNDS = Bounds(stale=60, empty=60, tally=60, handed=60, taken=60, refused=60, away=60)
"""Nothing runs out of itself while a test lasts, on whatever machine."""


class Clock:
    """Stands still."""

    async def now_ms(self) -> int:
        return NOW_MS

    def estimate_ms(self) -> int:
        return NOW_MS


class Queue:
    """A read model: rows, and how often it was asked."""

    def __init__(self, *rows: Candidate) -> None:
        self.rows = list(rows)
        self.asked = 0
        self.tallied = 0
        self.users: frozenset[int] = frozenset()
        self.at_once = 0
        self.most_at_once = 0
        self.error: Exception | None = None
        self.workers: Sequence[str] = ()
        self.position = START
        self.partitions = 1

    async def __call__(
        self, offer: Offer, *, now_ms: int, limit: int, after: Place, workers: Sequence[str]
    ) -> list[Candidate]:
        assert (offer, now_ms) == (OFFER, NOW_MS)
        self.asked += 1
        self.workers = workers
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if self.error:
            raise self.error
        return [row for row in self.rows if row.place < after][:limit]

    async def of_users(
        self, _offer: Offer, *, users: frozenset[int], now_ms: int
    ) -> list[Candidate]:
        self.users = users
        return [row for row in self.rows if row.wanted.user_id in users]

    async def tally(self, _offer: Offer) -> list[Group]:
        self.tallied += 1
        if self.error:
            raise self.error
        return [Group(row.wanted, 1) for row in self.rows]

    def partition(self, request_id: str) -> int:
        return int(request_id[:8]) % self.partitions

    def shown(self) -> list[Position]:
        return [self.position] * self.partitions


class Pool:
    """A matcher, and hot state that decides."""

    def __init__(self, *rows: Candidate, spread: int = 1, bounds: Bounds = BOUNDS) -> None:
        self.queue = Queue(*rows)
        self.drain = Drain()
        finds = Finds(self.queue, self.queue.of_users, self.queue.tally)
        self.matcher = Matcher(
            finds,
            self.queue,
            Clock(),
            self.drain,
            spread=spread,
            serves=lambda worker: worker.id in self.shown_images,
            bounds=bounds,
        )
        self.shown_images: set[str] = set()
        self.tried: list[str] = []
        self.refuses: set[str] = set()
        self.away: set[int] = set()
        self.put_back: list[str] = []
        self.at_a_time = 1
        self.taking = asyncio.Event()
        self.taking.set()

    async def pop(
        self, name: str = "w", wait: float = 0, prefers: frozenset[int] = frozenset({2})
    ) -> Outcome[Job]:
        async def take(chosen: Candidate) -> Job | None:
            self.tried.append(chosen.request_id)
            await asyncio.sleep(0)
            await self.taking.wait()
            if chosen.request_id in self.refuses:
                return None
            if self.queue.partition(chosen.request_id) in self.away:
                raise RedisUnavailable
            jobs = min(self.at_a_time, chosen.waiting)
            return Job(chosen.request_id, tuple(Position(len(self.tried), n) for n in range(jobs)))

        worker = Worker(name, 2, trusted=False, offer=OFFER, prefers=prefers)
        shelf = self.matcher.shelf(OFFER)
        shelf.prepare()
        return await self.matcher.pop(
            shelf, worker, wait, take, lambda job: self.put_back.append(job.request_id)
        )

    async def popped(self, name: str = "w", wait: float = 0) -> int | None:
        """The number of the candidate that the worker got."""
        job = (await self.pop(name, wait)).job
        return None if job is None else int(job.request_id[:8])

    def arrives(self, *rows: Candidate) -> None:
        """More to do, and a hint."""
        self.queue.rows += rows
        self.matcher.hinted([MODEL])

    async def in_line(self, count: int) -> None:
        shelf = self.matcher.shelf(OFFER)
        async with asyncio.timeout(20):
            while len(shelf._waiting) != count:
                await asyncio.sleep(0.001)


async def test_each_row_is_handed_out_once_best_first() -> None:
    pool = Pool(*map(candidate, range(50)))

    got = await asyncio.gather(*(pool.popped(f"w{n}") for n in range(50)))

    assert sorted(n for n in got if n is not None) == list(range(50))
    assert len(pool.tried) == 50
    assert pool.queue.asked <= 5
    assert pool.queue.most_at_once == 1


async def test_an_idle_pop_costs_no_query() -> None:
    pool = Pool()
    assert await pool.popped() is None
    asked = pool.queue.asked

    for _ in range(100):
        assert await pool.popped() is None

    assert pool.queue.asked == asked


async def test_what_is_known_empty_is_so_until_the_next_hint() -> None:
    pool = Pool()
    assert await pool.popped() is None

    pool.arrives(candidate(1))

    assert await pool.popped() == 1


async def test_without_a_hint_it_is_believed_for_a_second() -> None:
    for empty, found in ((60, None), (0, 1)):
        pool = Pool(bounds=BOUNDS._replace(empty=empty))
        assert await pool.popped() is None
        pool.queue.rows.append(candidate(1))

        assert await pool.popped() == found


async def test_a_hint_during_the_query_is_not_lost() -> None:
    pool = Pool()
    popping = asyncio.create_task(pool.popped())
    await asyncio.sleep(0)
    pool.arrives(candidate(1))

    assert await popping == 1


async def test_a_row_that_does_not_hold_leads_to_the_next() -> None:
    pool = Pool(candidate(1), candidate(2), candidate(3))
    pool.refuses = {candidate(1).request_id, candidate(2).request_id}

    assert await pool.popped() == 3


async def test_a_row_that_did_not_hold_is_tried_again_when_the_model_shows_a_later_moment() -> None:
    pool = Pool(candidate(1))
    pool.refuses = {candidate(1).request_id}
    assert await pool.popped() is None
    pool.matcher.hinted([MODEL])
    assert await pool.popped("other") is None
    assert len(pool.tried) == 1
    pool.refuses.clear()

    pool.queue.position = Position(NOW_MS + 1, 0)
    pool.matcher.hinted([MODEL])

    assert await pool.popped("other") == 1


async def test_a_read_that_is_over_is_not_waited_for() -> None:
    """Its callback has yet to run: who awaits it gets no turn of the loop, and spins for ever."""
    pool = Pool(candidate(1))
    await pool.popped()
    shelf = pool.matcher.shelf(OFFER)
    over = asyncio.get_running_loop().create_task(asyncio.sleep(0))
    await over
    asked = pool.queue.asked

    for read in (shelf._read, shelf._read_more):
        shelf._reading = over
        shelf._more = candidate(1).place
        await read()

    assert pool.queue.asked == asked + 2


async def test_a_taken_row_is_not_offered_while_the_model_lags() -> None:
    pool = Pool(candidate(1))
    assert await pool.popped() == 1

    pool.matcher.hinted([MODEL])
    assert await pool.popped() is None
    assert len(pool.tried) == 1


async def test_a_row_that_shows_its_assignment_and_waits_came_back() -> None:
    """A worker gave it up at once: nobody waits for a mark to run out."""
    pool = Pool(candidate(1))
    assert await pool.popped() == 1

    pool.queue.position = Position(9, 0)
    pool.matcher.hinted([MODEL])

    assert await pool.popped() == 1


async def test_a_request_of_several_jobs_is_handed_out_as_often() -> None:
    pool = Pool(candidate(1, waiting=3))

    assert [await pool.popped() for _ in range(4)] == [1, 1, 1, None]


async def test_jobs_that_were_taken_together_are_not_offered_again() -> None:
    pool = Pool(candidate(1, waiting=3), candidate(2, waiting=2))
    pool.at_a_time = 2

    assert [await pool.popped() for _ in range(4)] == [1, 1, 2, None]
    assert len(pool.tried) == 3


async def test_rows_for_others_are_skipped_counted_and_paged_past() -> None:
    hidden = [candidate(n, only=("someone",)) for n in range(150)]
    pool = Pool(*hidden, candidate(200))

    assert await pool.popped() == 200
    outcome = await pool.pop()

    assert outcome.job is None
    assert outcome.skipped == {"worker_id": 150}


async def test_what_is_out_of_reach_is_counted_once_for_many_pops_until_more_arrives() -> None:
    pool = Pool(
        candidate(1, only=("someone",)),
        candidate(2, features=("seed",)),
        bounds=BOUNDS._replace(stale=0),
    )

    for _ in range(5):
        assert (await pool.pop()).skipped == {"worker_id": 1, "seed": 1}
    assert pool.queue.tallied == 1

    pool.arrives(candidate(3, trusted_workers=True))
    assert (await pool.pop()).skipped == {"worker_id": 1, "seed": 1, "untrusted": 1}


async def test_a_count_that_fails_leaves_the_answer_without_one() -> None:
    pool = Pool()
    assert await pool.popped() is None
    pool.queue.error = DatabaseUnavailable()
    shelf = pool.matcher.shelf(OFFER)
    shelf._tally = None

    assert await shelf.skipped(Worker("w", 2, trusted=False, offer=OFFER)) == {}


async def test_requests_of_accounts_that_the_worker_prefers_come_first() -> None:
    pool = Pool(*map(candidate, range(30)), candidate(40, user_id=2), candidate(50, user_id=7))

    async def number(**prefers: Any) -> int:
        job = (await pool.pop(**prefers)).job
        assert job is not None
        return int(job.request_id[:8])

    assert await number() == 40  # its owner's
    assert await number() == 0
    assert await number(prefers=frozenset({2, 7})) == 50
    assert await number(name="other", prefers=frozenset({9})) == 1
    assert pool.queue.users == {2, 7, 9}


async def test_a_page_that_is_not_full_is_the_last_one() -> None:
    """All that it takes to know that nothing more waits for several workers, or for a friend."""
    pool = Pool(candidate(1), candidate(2, user_id=7))

    jobs = [(await pool.pop(f"w{n}", prefers=frozenset({7}))).job for n in range(3)]

    assert [job and job.request_id for job in jobs] == [
        candidate(2).request_id,
        candidate(1).request_id,
        None,
    ]
    assert pool.queue.asked <= 3  # each worker is new to the shelf
    assert pool.queue.users == frozenset()


async def test_who_looks_behind_what_is_kept_walks_on() -> None:
    pool = Pool(
        *(candidate(n, only=("someone",)) for n in range(500)),
        candidate(600),
        bounds=BOUNDS._replace(kept=120),
    )

    assert await pool.popped() == 600
    assert len(pool.matcher.shelf(OFFER)._rows) < 250


async def test_the_query_is_told_who_asks() -> None:
    pool = Pool()
    await pool.popped("a")
    await pool.popped("b")

    assert set(pool.queue.workers) == {"a", "b"}


async def test_waiting_pops_are_served_in_the_order_of_their_coming() -> None:
    pool = Pool()
    first = asyncio.create_task(pool.popped("a", wait=60))
    await pool.in_line(1)
    second = asyncio.create_task(pool.popped("b", wait=60))
    await pool.in_line(2)

    pool.arrives(candidate(1))
    assert await first == 1
    assert not second.done()

    pool.arrives(candidate(2))
    assert await second == 2
    assert len(pool.tried) == 2


async def test_one_hint_for_several_jobs_serves_several() -> None:
    pool = Pool()
    waiting = [asyncio.create_task(pool.popped(f"w{n}", wait=60)) for n in range(8)]
    await pool.in_line(8)
    asked = pool.queue.asked

    pool.arrives(*(candidate(n) for n in range(6)))
    async with asyncio.timeout(20):
        while sum(pop.done() for pop in waiting) < 6:
            await asyncio.sleep(0.001)
    await pool.in_line(2)
    done = [pop for pop in waiting if pop.done()]
    pending = [pop for pop in waiting if not pop.done()]

    assert sorted(await asyncio.gather(*done)) == list(range(6))
    assert len(pending) == 2
    assert pool.queue.asked - asked <= 2
    pool.drain.start()
    await asyncio.gather(*pending)


async def test_a_lost_hint_is_made_up_for() -> None:
    pool = Pool(bounds=BOUNDS._replace(empty=0.05))
    waiting = asyncio.create_task(pool.popped(wait=60))
    await pool.in_line(1)

    pool.queue.rows.append(candidate(1))

    async with asyncio.timeout(20):
        assert await waiting == 1


async def test_a_request_with_images_waits_until_they_can_be_shown() -> None:
    """It holds nobody up meanwhile, is not tried in vain, and wears no tries out."""
    rows = *(candidate(n, images=True) for n in range(70)), candidate(70)
    pool = Pool(*rows, bounds=BOUNDS._replace(empty=0.05))

    assert await pool.popped() == 70
    waits = asyncio.create_task(pool.popped("waits", wait=60))
    await pool.in_line(1)
    pool.shown_images.add("another")
    assert await pool.popped("another") == 0
    pool.shown_images.add("waits")

    async with asyncio.timeout(20):
        assert await waits == 1
    assert len(pool.tried) == 3


async def test_waiting_ends_with_the_time_and_with_the_drain() -> None:
    pool = Pool()
    async with asyncio.timeout(20):
        assert await pool.popped(wait=0.05) is None

    waiting = asyncio.create_task(pool.popped(wait=30))
    await pool.in_line(1)
    pool.drain.start()
    async with asyncio.timeout(20):
        assert await waiting is None
        assert await pool.popped(wait=30) is None


async def test_who_leaves_the_line_loses_nothing() -> None:
    pool = Pool()
    gone = asyncio.create_task(pool.popped("gone", wait=30))
    await pool.in_line(1)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await pool.in_line(0)

    pool.arrives(candidate(1))

    assert await pool.popped() == 1


async def test_who_leaves_while_being_handed_a_row_leaves_it_to_the_next() -> None:
    pool = Pool()
    gone = asyncio.create_task(pool.popped("gone", wait=30))
    await pool.in_line(1)
    shelf = pool.matcher.shelf(OFFER)
    next_one = asyncio.create_task(pool.popped("next", wait=60))
    await pool.in_line(2)
    offered = next(iter(shelf._waiting))
    offered.add_done_callback(lambda _: gone.cancel())

    pool.arrives(candidate(1))

    async with asyncio.timeout(20):
        assert await next_one == 1
    assert gone.cancelled()


async def test_a_job_that_was_taken_for_nobody_is_put_back() -> None:
    pool = Pool(candidate(1))
    pool.taking.clear()
    gone = asyncio.create_task(pool.popped("gone"))
    async with asyncio.timeout(20):
        while not pool.tried:
            await asyncio.sleep(0.001)

    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    pool.taking.set()
    async with asyncio.timeout(20):
        while not pool.put_back:
            await asyncio.sleep(0.001)

    assert pool.put_back == [candidate(1).request_id]


async def test_a_read_model_that_is_away_is_said_at_once_to_all() -> None:
    pool = Pool()
    waiting = asyncio.create_task(pool.popped(wait=30))
    await pool.in_line(1)
    pool.queue.error = DatabaseUnavailable()
    pool.matcher.hinted([MODEL])

    async with asyncio.timeout(20):
        with pytest.raises(DatabaseUnavailable):
            await waiting
        with pytest.raises(DatabaseUnavailable):
            await pool.popped()

    pool.queue.error = None
    pool.queue.rows.append(candidate(1))
    assert await pool.popped() == 1


async def test_a_hint_for_another_model_wakes_nobody() -> None:
    pool = Pool()
    waiting = asyncio.create_task(pool.popped(wait=30))
    await pool.in_line(1)
    asked = pool.queue.asked

    pool.matcher.hinted(["other"])
    await asyncio.sleep(0.02)

    assert pool.queue.asked == asked
    pool.drain.start()
    await waiting


async def test_processes_spread_over_the_best_rows() -> None:
    firsts = set()
    for _ in range(40):
        pool = Pool(*map(candidate, range(10)), spread=4)
        firsts.add(await pool.popped())

    assert firsts <= {0, 1, 2, 3}
    assert len(firsts) > 1


async def test_shelves_are_forgotten() -> None:
    pool = Pool(candidate(1), bounds=Bounds(forgotten=-1.0, sweep=-1.0, taken=-1.0))
    await pool.popped()

    pool.matcher.shelf(OFFER._replace(chat_model="other"))

    assert list(pool.matcher._shelves) == [OFFER._replace(chat_model="other")]
    assert list(pool.matcher._by_model) == ["other"]
    assert len(pool.matcher.marks) == 0


async def test_offers_that_change_with_each_pop_do_not_pile_up() -> None:
    pool = Pool(bounds=BOUNDS._replace(listed=100))
    waiting = asyncio.create_task(pool.popped(wait=60))
    await pool.in_line(1)

    for n in range(200):
        pool.matcher.shelf(OFFER._replace(models=(f"a{n}", f"b{n}")))

    assert len(pool.matcher._by_model) <= 101
    assert len(pool.matcher._shelves) < 40
    pool.arrives(candidate(1))
    assert await waiting == 1  # those that somebody waits at are kept


async def test_a_partition_that_is_away_keeps_nobody_from_the_jobs_of_others():
    """The first of its jobs is tried; then all are passed over for a while."""
    pool = Pool(*(candidate(n) for n in (0, 4, 8, 1)))
    pool.queue.partitions, pool.away = 4, {0}

    found = (await pool.pop()).job

    assert found is not None
    assert pool.tried == [candidate(0).request_id, candidate(1).request_id]
    assert found.request_id == candidate(1).request_id


async def test_whoever_could_only_have_jobs_of_a_partition_that_is_away_is_told_so():
    pool = Pool(candidate(0), candidate(4))
    pool.queue.partitions, pool.away = 4, {0}

    with pytest.raises(RedisUnavailable):
        await pool.pop(wait=60)
    pool.away.clear()
    pool.matcher.away.clear()
    assert (await pool.pop()).job is not None
