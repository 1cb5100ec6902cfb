"""Two processes share the partitions of a read model; one is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.e2e.conftest import PARTITIONS, Pool
from tests.e2e.harness import Book, Client, Program, Worker, eventually, until, working
from tests.e2e.rebuilt import TABLES, caught_up, differences, live_and_rebuilt

pytestmark = pytest.mark.e2e

TAKEOVER_SECONDS = 30.0


@pytest.mark.soak  # tests/e2e/test_cluster.py has one of each kind of process die
async def test_the_other_process_takes_over_and_nothing_is_skipped_or_applied_twice(
    pool: Pool,
) -> None:
    """C-127."""
    book = Book()
    second = pool.up.beside("projector-b", "projector", "status", "--take", "2", HORDE_TEST="true")
    await asyncio.to_thread(until, lambda: len(_taken(pool, second)) == 2, 60, "its two partitions")
    workers = [Worker(pool.up.url, pool.owner, book, f"t{n}") for n in range(4)]
    clients = [Client(pool.up.url, pool.client, book, f"t{n} {time.monotonic()}") for n in range(4)]
    enough = asyncio.Event()
    async with working(workers):
        runs = [asyncio.ensure_future(each.run(enough.is_set, stream=True)) for each in clients]
        await eventually(lambda: len(book.ended) > 20, 60, "replies")
        orphaned = _taken(pool, second)
        os.kill(second.pid, signal.SIGKILL)
        killed = time.monotonic()
        await eventually(
            lambda: _moved_since(pool, orphaned, killed, book), 60, "requests of every partition"
        )
        took = time.monotonic() - killed
        before = len(book.ended)
        await eventually(lambda: len(book.ended) > before + 20, 60, "more replies")
        third = pool.up.beside("projector-c", "projector", "status", "--take", "2")
        await asyncio.to_thread(until, lambda: len(_taken(pool, third)) == 2, 60, "a share again")
        before = len(book.ended)
        await eventually(lambda: len(book.ended) > before + 20, 60, "more replies")
        enough.set()
        await asyncio.gather(*runs)
    for each in clients:
        each.close()
    second.end()

    print(f"partitions {sorted(orphaned)} were taken over {took:.1f} s after the kill")
    assert took < TAKEOVER_SECONDS
    book.check()
    assert third.end() == 0, third.tail()
    assert pool.up.bugs(third.log) == []
    assert pool.up.program is not None
    first = pool.up.program
    await eventually(lambda: len(_taken(pool, first)) == PARTITIONS, 60, "the first process alone")
    await eventually(lambda: caught_up(pool), 60, "the read models")
    for name in TABLES:
        live, rebuilt = await asyncio.to_thread(live_and_rebuilt, pool, name)
        assert differences(live, rebuilt) == []
        assert len(live["checkpoints"]) == PARTITIONS


def _taken(pool: Pool, program: Program) -> set[int]:
    """Partitions that the status projector has which logs there, by its own words."""
    taken: set[int] = set()
    for line in pool.up.log_lines(program.log):
        if line.get("process") != "projector_status":
            continue
        match line["event"]:
            case "partition taken":
                taken.add(line["partition"])
            case "partition given back":
                taken.discard(line["partition"])
            case "server is away" if line["server"] == "postgres":
                taken.discard(line["partition"])  # and the lock with it
    return taken


def _moved_since(pool: Pool, partitions: set[int], since: float, book: Book) -> bool:
    """Whether a request that was accepted after `since` has ended in each of these."""
    ended = {
        pool.keys.of(request_id)
        for request_id in book.ended
        if book.accepted_at[book.accepted[request_id]] > since
    }
    return ended >= partitions
