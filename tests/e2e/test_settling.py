"""The settler is killed, has company, and comes back after a day, and its servers are killed
beneath it: whatever was generated is charged once and rewarded once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from itertools import cycle
from pathlib import Path

import pytest

from events import types
from events.base import Event
from events.keys import Keys
from handlers.errors import RedisUnavailable
from handlers.limits import Limits
from handlers.log import Log
from handlers.replay import read_log
from hordechat.settling import settle
from lua.link import Link, Tail, Unavailable
from tests.e2e.conftest import Pool
from tests.e2e.harness import Book, Up, eventually, known, pause, serving
from tests.e2e.paying import Crowd, await_paid, nothing_held

pytestmark = pytest.mark.e2e

DAY = 86_400
KILLED = ("settler", "valkey", "postgres")


async def test_each_generation_is_paid_for_once_whatever_becomes_of_the_settler(pool: Pool) -> None:
    """It is killed, a second one works beside it on every log, and it stands still for a day."""
    book = Book()
    crowd = await Crowd.of(pool.up, pool.owner, book, f"pay {time.monotonic()}", workers=8)
    target = 20
    running = asyncio.ensure_future(crowd.run(lambda: _over(book) >= target))
    await eventually(lambda: _over(book) > 5 or running.done(), 60, "the first jobs")
    async with _second_settler(pool.redis_url, pool.keys):
        target = _over(book) + 25
        former = await _killed(pool.up, "settler")
        await eventually(lambda: _over(book) >= target or running.done(), 60, "more jobs")
    settler = pool.up.pid("settler")
    assert settler != former
    os.kill(settler, signal.SIGSTOP)
    try:
        target = _over(book) + 25
        await running
        await pool.pass_time(DAY)
    finally:
        os.kill(settler, signal.SIGCONT)

    events = await await_paid(pool.up.run()["database_url"], pool.events)
    book.check()
    _saw_all(events, crowd)
    async with pool.log() as log:
        await eventually(lambda: nothing_held(log), 60, "no hold any more")
    # Nobody has seen a worker for a day: whoever tests next finds one.
    await known(pool.up.url, pool.owner, pool.client)
    await serving(pool.up.url, pool.client, pool.keys, 60)


@pytest.mark.soak
@pytest.mark.parametrize("partitions", [1, 4])
async def test_two_thousand_jobs_are_paid_for_once_whatever_is_killed(
    tmp_path: Path, partitions: int
) -> None:
    env = {
        "HORDE_TEXT_JOB_LEASE_SECONDS": "8",
        "HORDE_TEXT_JOB_PREPARATION_SECONDS": "1",
        "HORDE_ADMISSION_DEADLINE_SECONDS": "5",
        # What is above can still be done within that lease by whom nobody has measured.
        "HORDE_TEXT_FREE_OUTPUT_FLOOR": "64",
        "HORDE_TEXT_FREE_OUTPUT_CEILING": "64",
        "HORDE_TEST": "true",
    }
    flags = ("--web-workers", "2", "--partitions", str(partitions))
    up = Up(tmp_path, *flags, env=env).start()
    try:
        await _settled_under_fire(up, Keys(partitions))
        assert "no difference" in up.cli("ledger", "check")
        assert "no difference" in up.cli("verify")
        assert up.end() == 0, up.program.tail()
    finally:
        up.end()
    assert [line for line in up.bugs() if "was sent SIGKILL" not in line["event"]] == []


async def _settled_under_fire(up: Up, keys: Keys) -> None:
    client, owner = await up.users("client", "owner")
    await known(up.url, owner, client)
    book = Book()
    crowd = await Crowd.of(up, owner, book, "pay", workers=16, above=72)
    running = asyncio.ensure_future(crowd.run(lambda: _over(book) >= 2000))
    kills: Counter[str] = Counter()
    async with _second_settler(up.run()["redis_url"], keys):
        for target in cycle(KILLED):
            before = _over(book)
            await eventually(lambda: running.done() or _over(book) >= before + 60, 60, "more jobs")  # noqa: B023
            if running.done():
                break
            await _killed(up, target)
            kills[target] += 1
        await running
    print(f"{_over(book)} jobs, kills: {dict(kills)}, without an answer: {book.unanswered}")
    log = Log(Link(up.run()["redis_url"], timeout=10), keys, test=True)

    async def read() -> list[Event]:
        return [
            entry.recorded.event
            for partition in keys.all()
            async for page in read_log(log, partition)
            for entry in page
        ]

    try:
        settler = up.pid("settler")
        os.kill(settler, signal.SIGSTOP)
        try:
            goal = _over(book) + 60
            await crowd.run(lambda: _over(book) >= goal)
            for partition in keys.all():
                await log.read("HINCRBY", keys.control(partition), "clock_ms", DAY * 1000)
        finally:
            os.kill(settler, signal.SIGCONT)
        events = await await_paid(up.run()["database_url"], read, 60)
        book.check()
        _saw_all(events, crowd)
        await eventually(lambda: nothing_held(log), 60, "no hold any more")
    finally:
        await log.close()
    assert min(kills[each] for each in KILLED) >= 3


def _over(book: Book) -> int:
    """Requests that have ended."""
    return len(book.ended) + len(book.cancelled)


async def _killed(up: Up, name: str) -> int:
    """Kill a process, and wait until there is another one; the pid that it had."""
    pid = up.pid(name)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: up.pid(name) != pid, 60, f"another {name}")
    return pid


@contextlib.asynccontextmanager
async def _second_settler(redis_url: str, keys: Keys) -> AsyncIterator[None]:
    """Another settler of every log, which asks for no lock that keeps two apart."""
    log = Log(Link(redis_url, timeout=10), keys, test=True)

    async def work(partition: int) -> None:
        tail = Tail(redis_url)
        try:
            while True:
                with contextlib.suppress(RedisUnavailable, Unavailable):
                    await settle(log, Limits(), tail, partition)
                await pause(0.1)
        finally:
            await tail.close()

    tasks = [asyncio.ensure_future(work(partition)) for partition in keys.all()]
    try:
        yield
        assert [task for task in tasks if task.done()] == []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await log.close()


def _saw_all(events: list[Event], crowd: Crowd) -> None:
    """What the judgement is worth something for: all of it happened."""
    shared = Counter(bool(e.shared_key) for e in events if isinstance(e, types.Charged))
    assert shared[True] > 0
    assert shared[False] > 0
    causes = Counter(e.cause for e in events if isinstance(e, types.Charged))
    assert causes["cancelled"] > 0
    assert causes["generation"] > 0
    held = [e for e in events if isinstance(e, types.Admitted) and e.hold]
    assert held
    assert any(isinstance(e, types.Faulted) for e in events)
    assert any(isinstance(e, types.Floored) for e in events)
    assert sum(isinstance(e, types.Transferred) for e in events) >= crowd.giver.given > 0
