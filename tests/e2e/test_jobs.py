"""Many workers, two web processes, four partitions: every job once, and none left lying."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from events import types
from tests.e2e.conftest import Pool, only_plain
from tests.e2e.harness import Book, Client, Worker, eventually, working

pytestmark = pytest.mark.e2e

RACERS = 64
OVERLOOKED_SECONDS = 3.0
"""More than a busy machine holds a process up; what is forgotten lies for 30."""


@pytest.mark.parametrize("wait", [0, 2], ids=["asking again", "waiting"])
async def test_of_64_workers_that_race_for_one_job_one_gets_it(pool: Pool, wait: int) -> None:
    book = Book()
    names = [f"racer {n} {wait}" for n in range(RACERS)]
    workers = [Worker(pool.up.url, pool.owner, book, name, wait=wait) for name in names]
    client = Client(pool.up.url, pool.client, book, "race")
    racing = asyncio.ensure_future(_race(workers, book, rounds=1 if wait else 40))
    await eventually(lambda: _checked_in(pool, names), 60, "everyone's check-in")

    request_id = await client.submit()
    await racing

    assert len(book.taken) == 1
    winner = next(each for each in workers if each.name == book.taken[0].worker)
    assert await winner.submit(book.taken[0]) == "stored"
    await client.follow(request_id)
    book.check()
    assigned = [
        event
        for event in await pool.events()
        if isinstance(event, types.Assigned) and event.request_id == request_id
    ]
    assert [event.generation_id for event in assigned] == [book.taken[0].generation_id]
    for each in (client, *workers):
        each.close()


async def _checked_in(pool: Pool, names: list[str]) -> bool:
    events = await pool.events()
    return {event.name for event in events if isinstance(event, types.CheckedIn)} >= set(names)


async def _race(workers: list[Worker], book: Book, rounds: int) -> None:
    """All ask at once, `rounds` times, and once more after someone got it."""
    for _ in range(rounds):
        won = bool(book.taken)
        await asyncio.gather(*(worker.pop() for worker in workers))
        if won:
            return


@pytest.mark.parametrize("jobs", [200, pytest.param(1000, marks=pytest.mark.soak)])
async def test_each_job_is_assigned_once_and_replied_once_and_none_is_overlooked(
    pool: Pool, jobs: int
) -> None:
    book = Book()
    workers = [Worker(pool.up.url, pool.owner, book, f"w{n}", wait=0) for n in range(16)]
    clients = [Client(pool.up.url, pool.client, book, f"c{n} of {jobs}") for n in range(8)]
    before = len(await pool.events())

    started = time.monotonic()
    async with working(workers, idle=0.02):
        await asyncio.gather(*(_burst(client, jobs // len(clients)) for client in clients))

    book.check()
    assert len(book.ended) == jobs
    assert set(Counter(job.text for job in book.taken).values()) == {1}
    print(
        f"{jobs} jobs in {time.monotonic() - started:.1f} s, {len(book.empty)} pops for nothing, "
        f"at worst {book.overlooked():.3f} s after a job began to wait"
    )
    assert book.overlooked() < OVERLOOKED_SECONDS
    events = [e for e in (await pool.events()) if getattr(e, "request_id", None) in book.accepted]
    counted = Counter(type(event).__name__ for event in events)
    assert (counted["Submitted"], counted["Assigned"], counted["SubmittedReply"]) == (jobs,) * 3
    assert before < len(await pool.events())
    for client in clients:
        client.close()


async def _burst(client: Client, jobs: int) -> None:
    """Submit all, then follow each: a queue builds up."""
    ids = [await client.submit() for _ in range(jobs)]
    for request_id in ids:
        await client.follow(request_id)


async def test_streamed_jobs_leave_nothing_behind(pool: Pool) -> None:
    book = Book()
    workers = [Worker(pool.up.url, pool.owner, book, f"s{n}") for n in range(4)]
    client = Client(pool.up.url, pool.client, book, "streamed")

    async with working(workers):
        for _ in range(5):
            await client.follow(await client.submit(stream=True))

    book.check()
    async with pool.log() as log:
        account = pool.keys.account(await _client_account(pool))

        async def settled() -> bool:
            held = await log.read("HMGET", account, *(f"admission:{each}" for each in book.ended))
            return held == [None] * len(book.ended)

        await eventually(settled, 60, "the settler")


async def _client_account(pool: Pool) -> int:
    opened = [e for e in await pool.events() if isinstance(e, types.AccountOpened)]
    return next(event.user_id for event in opened if event.name == "client")


@only_plain
async def test_a_lapsed_lease_goes_to_another_worker(pool: Pool) -> None:
    book = Book()
    client = Client(pool.up.url, pool.client, book, "lapse")
    slow = Worker(pool.up.url, pool.owner, book, "slow", wait=5)
    quick = Worker(pool.up.url, pool.owner, book, "quick", wait=10)
    request_id = await client.submit()
    held = await slow.serve(book.accepted[request_id])

    await pool.pass_time(151)
    again = await quick.serve(held.text)

    assert again.generation_id != held.generation_id
    late = await slow.send_reply(held)
    assert (late.status, late.rc) == (400, "AbortedGen")
    assert "150" in late.body["message"]
    assert (await quick.send_reply(again)).status == 200
    again.outcome = "stored"
    status = await client.follow(request_id)
    assert [each["worker_name"] for each in status["generations"]] == ["quick"]
    assert status["restarted"] == 1
    await eventually(lambda: _released(pool, request_id), 60, "the settler")
    before = await pool.events()
    for worker, job, rc in (
        (quick, again, "DuplicateGen"),
        (slow, held, "AbortedGen"),
        (quick, again, "DuplicateGen"),
    ):
        repeated = await worker.send_reply(job)
        assert (repeated.status, repeated.rc) == (400, rc)
    assert await pool.events() == before
    book.check()
    for each in (client, slow, quick):
        each.close()


async def _released(pool: Pool, request_id: str) -> bool:
    return any(
        isinstance(event, types.Released) and event.request_id == request_id
        for event in await pool.events()
    )
