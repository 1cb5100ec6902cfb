"""Two processes share the partitions of a read model; one is killed."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from typing import Any

import psycopg
import pytest
from psycopg import sql

from projections.accounts import ACCOUNTS
from projections.eligibility import ELIGIBILITY
from projections.migrate import migrate
from projections.rebuild import rebuild
from projections.statistics import STATISTICS
from projections.status import STATUS
from tests.conftest import database_named
from tests.e2e.conftest import PARTITIONS, Pool
from tests.e2e.harness import Book, Client, Program, Worker, eventually, until, working

pytestmark = pytest.mark.e2e

# `checkpoints` says how far they are.
TABLES = {each.name: each.tables for each in (STATUS, ELIGIBILITY, STATISTICS, ACCOUNTS)}
TAKEOVER_SECONDS = 6.0


async def test_the_other_process_takes_over_and_nothing_is_skipped_or_applied_twice(
    pool: Pool,
) -> None:
    """C-127."""
    book = Book()
    second = pool.up.beside("projector-b", "projector", "status", "--take", "2", HORDE_TEST="true")
    await asyncio.to_thread(until, lambda: len(_taken(pool, second)) == 2, 20, "its two partitions")
    workers = [Worker(pool.up.url, pool.owner, book, f"t{n}") for n in range(4)]
    clients = [Client(pool.up.url, pool.client, book, f"t{n} {time.monotonic()}") for n in range(4)]
    enough = asyncio.Event()
    async with working(workers):
        runs = [asyncio.ensure_future(each.run(enough.is_set, stream=True)) for each in clients]
        await eventually(lambda: len(book.ended) > 20, 20, "replies")
        orphaned = _taken(pool, second)
        os.kill(second.pid, signal.SIGKILL)
        killed = time.monotonic()
        await eventually(
            lambda: _moved_since(pool, orphaned, killed, book), 20, "requests of every partition"
        )
        took = time.monotonic() - killed
        before = len(book.ended)
        await eventually(lambda: len(book.ended) > before + 20, 20, "more replies")
        third = pool.up.beside("projector-c", "projector", "status", "--take", "2")
        await asyncio.to_thread(until, lambda: len(_taken(pool, third)) == 2, 20, "a share again")
        before = len(book.ended)
        await eventually(lambda: len(book.ended) > before + 20, 20, "more replies")
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
    await eventually(lambda: len(_taken(pool, first)) == PARTITIONS, 10, "the first process alone")
    await eventually(lambda: _caught_up(pool), 20, "the read models")
    for name in TABLES:
        live, rebuilt = await asyncio.to_thread(_live_and_rebuilt, pool, name)
        assert _differences(live, rebuilt) == []
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


def _checkpoints(url: str) -> dict[tuple[str, int], tuple[int, int]]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT name, partition, position_ms, position_seq FROM checkpoints"
        ).fetchall()
    return {(name, partition): (ms, seq) for name, partition, ms, seq in rows}


async def _caught_up(pool: Pool) -> bool:
    """Whether the models stand at the heads of the logs, and those stand still."""
    found = _checkpoints(_url(pool))
    async with pool.log() as log:
        heads = [await log.head(partition) for partition in range(PARTITIONS)]
    return all(
        found[name, partition] == (head.ms, head.seq)
        for name in TABLES
        for partition, head in enumerate(heads)
    )


def _url(pool: Pool) -> str:
    return pool.up.run()["database_url"]


def _rows(url: str, name: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    with psycopg.connect(url) as connection:
        for table in TABLES[name]:
            query = sql.SQL("SELECT to_jsonb(t) FROM {} t").format(sql.Identifier(table))
            cursor = connection.execute(query)
            found[table] = sorted((row[0] for row in cursor), key=repr)
        found["checkpoints"] = sorted(
            (key, at) for key, at in _checkpoints(url).items() if key[0] == name
        )
    return found


def _differences(live: dict[str, list[Any]], rebuilt: dict[str, list[Any]]) -> list[Any]:
    """The first few rows that only one side has: pytest would compare whole tables for minutes."""
    return [
        (side, table, row)
        for table in live
        for side, rows, others in (
            ("live", live[table], rebuilt[table]),
            ("rebuilt", rebuilt[table], live[table]),
        )
        for row in rows
        if row not in others
    ][:4]


def _live_and_rebuilt(pool: Pool, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows as they are, and as the log gives them to an empty database."""
    server, database = pool.postgres.service.url, f"rebuilt_{secrets.token_hex(4)}"
    other = database_named(server, database)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    migrate(other)
    rebuild(name, redis_url=pool.redis.service.url, database_url=other, partitions=PARTITIONS)
    return _rows(_url(pool), name), _rows(other, name)
