"""Years in minutes: a log many times larger than Redis goes through it, and nothing of it is lost.

Everything that follows the log runs as a process of its own; clients and workers act on the
handlers, without HTTP, as fast as the machine goes, and hold back where a web process would answer
503. What memory does and what a rebuild takes is printed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psycopg
import pytest
import redis
import structlog
from psycopg import sql

from api.guard import MemoryGuard, memory
from archive.archive import Archive
from archive.segments import Raw
from bench.crowd import LIMITS, Crowd
from events.base import START, Position
from events.keys import Keys
from handlers import archive_check, ledger, stream
from handlers.log import Log
from handlers.verify import verify
from hordechat import scratch
from hordechat.process import Service
from lua.link import Link
from projections import accounts
from projections.models import PROJECTIONS
from projections.rebuild import rebuild
from tests.conftest import database_named
from tests.e2e.harness import Program, clean_environ, eventually
from tests.handlers.shelf import archive_in

pytestmark = pytest.mark.e2e

MB = 10**6
GROWTH = 1.25
"""What all but the log takes in the last quarter of a run, over what it took in the second."""
PROCESSES = (
    *(("projector", name) for name in PROJECTIONS),
    ("settler",),
    ("archiver",),
)


class Size(NamedTuple):
    """How much goes through how little. Bytes, and seconds of the log's clock."""

    events: int
    redis: int
    soft: int
    hard: int
    segment: int
    retention: int
    per_second: int  # requests
    ttl: int  # of a request
    snapshot: int  # events between two
    patience: float  # real seconds for whatever is waited for

    @property
    def settings(self) -> dict[str, str]:
        """What the processes are told."""
        return {
            "HORDE_TEST": "true",
            "HORDE_LOG_MEMORY_BYTES": str(self.soft),
            "HORDE_LOG_MEMORY_HARD_BYTES": str(self.hard),
            "HORDE_LOG_RETENTION_SECONDS": str(self.retention),
            "HORDE_SEGMENT_BYTES": str(self.segment),
            "HORDE_SNAPSHOT_EVENTS": str(self.snapshot),
            "HORDE_ARCHIVER_SECONDS": "0.1",
        }


SHORT = Size(12_000, 64 * MB, 2 * MB, 6 * MB, 400_000, 10, 50, 5, 5_000, 30)
LONG = Size(2_000_000, 256 * MB, 64 * MB, 96 * MB, 8 * MB, 30, 100, 120, 500_000, 900)


class Seen:
    """What a reader of the stream saw, from the first event on."""

    def __init__(self) -> None:
        self.events = 0
        self.last = START
        self._digest = hashlib.sha256()

    def take(self, entries: Sequence[Raw]) -> None:
        """The next ones."""
        for id_, fields in entries:
            self._digest.update(msgspec.msgpack.encode((id_, list(fields))))
        self.events += len(entries)
        if entries:
            self.last = entries[-1].position

    @property
    def told(self) -> tuple[int, Position, str]:
        """How many, up to where, and a digest over all of them."""
        return self.events, self.last, self._digest.hexdigest()


class Sample(NamedTuple):
    """Bytes, after so many events."""

    events: int
    log: int
    redis: int
    rest: int
    """All in Redis but the log."""


class Watcher:
    """Reads the stream as it grows, measures memory, and lets nobody submit while there is none."""

    def __init__(self, log: Log, size: Size) -> None:
        self.seen = Seen()
        self.samples: list[Sample] = []
        self.held_back = 0.0  # seconds
        self._log = log
        self._size = size
        self._guard = MemoryGuard(log, 0, size.hard)

    async def enough(self) -> bool:
        """Whether as many events are there as are wanted."""
        await self.read()
        began: float | None = None
        while await self._full():
            began = began or time.monotonic()
            waited = time.monotonic() - began
            assert waited < self._size.patience, f"memory is not freed: {self.samples[-1]}"
            await asyncio.sleep(0.1)
            await self.read()
        if began is not None:
            self.held_back += time.monotonic() - began
        return self.seen.events >= self._size.events

    async def _full(self) -> bool:
        await self._guard.sample()
        log, redis_ = await stream.memory(self._log), (await memory(self._log)).used
        self.samples.append(Sample(self.seen.events, log, redis_, redis_ - log))
        return self._guard.full

    async def read(self) -> None:
        """All that came; what was seen last is still there, or something was lost."""
        key = self._log.keys.events(0)
        while True:
            last = self.seen.last
            start = "-" if last == START else str(last)
            page = [
                Raw(*each)
                for each in await self._log.read("XRANGE", key, start, "+", "COUNT", 1000)
            ]
            if last != START:
                assert page, "the log is gone"
                assert page[0].position == last, "events were trimmed that nobody had read"
                page = page[1:]
            if not page:
                return
            self.seen.take(page)

    def most(self, part: int) -> Sample:
        """The highest of one quarter of the run, from 0."""
        quarter = self._size.events / 4
        found = [
            each for each in self.samples if part * quarter <= each.events < (part + 1) * quarter
        ]
        return Sample(*map(max, zip(*found, strict=True)))


@pytest.fixture
def limited(clean_redis: redis.Redis) -> Iterator[redis.Redis]:
    """A Valkey whose limits a test may set; afterwards they are what they were."""
    names = ("maxmemory", "appendonly")
    before = {name: clean_redis.config_get(name)[name] for name in names}
    yield clean_redis
    clean_redis.flushall()
    for name, value in before.items():
        clean_redis.config_set(name, value)


@pytest.fixture
def quiet() -> Iterator[None]:
    """A line for each command would be most of the work."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield
    structlog.reset_defaults()


@pytest.fixture
async def log(redis_url: str, archive: Archive) -> AsyncIterator[Log]:
    made = Log(Link(redis_url, timeout=30), Keys(1), test=True, archive=archive)
    yield made
    await made.close()


@pytest.fixture
def archive(s3_server: Service) -> Archive:
    return archive_in(s3_server, 1)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "size",
    [SHORT, pytest.param(LONG, marks=pytest.mark.soak)],
    ids=lambda size: f"{size.events} events",
)
async def test_more_goes_through_redis_than_it_holds(
    size: Size,
    limited: redis.Redis,
    log: Log,
    archive: Archive,
    redis_url: str,
    migrated_url: str,
    migrated_template: str,
    postgres_server: Service,
    s3_server: Service,
    tmp_path: Path,
) -> None:
    limited.config_set("maxmemory", size.redis)
    limited.config_set("appendonly", "no")
    env = clean_environ(
        REDIS_URL=redis_url,
        DATABASE_URL=migrated_url,
        S3_ENDPOINT_URL=s3_server.url,
        HORDE_ARCHIVE_BUCKET=archive.bucket._bucket,
        HORDE_SECRET="x",
        **size.settings,
        **s3_server.settings,
    )
    # Redis' own clock is not moved: what has a TTL keeps to that.
    limits = msgspec.structs.replace(
        LIMITS, request_ttl=size.ttl, progress_stream_ttl=max(1, size.ttl // 6), fault_reason_ttl=1
    )
    crowd, watcher = Crowd(log, per_second=size.per_second, limits=limits), Watcher(log, size)
    await crowd.arrive()
    programs = [Program(tmp_path / f"{' '.join(each)}.log", env, *each) for each in PROCESSES]

    began = time.monotonic()
    await crowd.live(watcher.enough)
    seconds = time.monotonic() - began
    await at_rest(log, watcher, migrated_url, size)

    tell(watcher, seconds, size)
    assert max(each.log for each in watcher.samples) < 1.2 * size.hard
    assert watcher.most(3).rest < GROWTH * watcher.most(1).rest
    assert (await stream.stretch(log, 0)).events < size.events / 2
    archived = Seen()
    for page in archive.read(0):
        archived.take(page)
    assert archived.told == watcher.seen.told
    found = await archive_check.check(log, archive, 0)
    assert (found.differences, found.overlapping) == ([], 0)
    assert found.ever == found.archived == watcher.seen.events

    with another_database(postgres_server, migrated_template) as other:
        for name in PROJECTIONS:
            began = time.monotonic()
            await asyncio.to_thread(
                rebuild,
                name,
                redis_url=redis_url,
                database_url=other,
                partitions=1,
                archive=archive,
            )
            took = time.monotonic() - began
            print(f"rebuild {name}: {took:.1f} s, {watcher.seen.events / took:,.0f} events/s")
            assert rows(other, name) == rows(migrated_url, name)
    report = await ledger.check(log, lambda partition: accounts.stored(migrated_url, partition))
    assert report.differences == []
    async with scratch.beside(log, "verify") as folded:
        assert await verify(log, folded) == []
    for program in programs:
        assert program.running(), program.tail()
        assert program.end() == 0, program.tail()


async def at_rest(log: Log, watcher: Watcher, database_url: str, size: Size) -> None:
    """Until all that happened is carried over, projected and archived."""
    since = time.monotonic()

    async def carried() -> bool:
        nonlocal since
        before = watcher.seen.events
        await watcher.read()
        if watcher.seen.events > before:
            since = time.monotonic()
        stand = places(database_url)
        ends = {stand.get(name) for name in PROJECTIONS}
        return ends == {watcher.seen.last} and time.monotonic() - since > 1

    await eventually(carried, size.patience, "what happened is carried over and projected")
    await log.read("HINCRBY", log.keys.control(0), "clock_ms", 100_000)  # nothing stays too fresh
    await eventually(
        lambda: places(database_url).get("archiver") == watcher.seen.last,
        size.patience,
        "the last event is archived",
    )
    await watcher.read()


def places(database_url: str) -> dict[str, Position]:
    """Where each reader of the log stands."""
    with psycopg.connect(database_url) as connection:
        rows_ = connection.execute("SELECT name, position_ms, position_seq FROM checkpoints")
        return {name: Position(ms, seq) for name, ms, seq in rows_}


def rows(database_url: str, name: str) -> dict[str, tuple[Any, ...]]:
    """Of each table of a model: how many rows there are, and a digest over all columns of all."""
    found = {}
    with psycopg.connect(database_url) as connection:
        for table in PROJECTIONS[name].tables:
            query = sql.SQL(
                "SELECT count(*), sum(hashtextextended(t::text, 0)::numeric),"
                " sum(hashtextextended(t::text, 1)::numeric) FROM {} t"
            ).format(sql.Identifier(table))
            (row,) = connection.execute(query).fetchall()
            found[table] = row
    return found


@contextmanager
def another_database(server: Service, template: str) -> Iterator[str]:
    """A database with all tables and no rows."""
    name = f"rebuilt_{secrets.token_hex(4)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY wal_log").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        try:
            yield database_named(server.url, name)
        finally:
            connection.execute(
                sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
            )


def tell(watcher: Watcher, seconds: float, size: Size) -> None:
    """Say what was seen."""
    events = watcher.seen.events
    print(
        f"{events:,} events in {seconds:.0f} s ({events / seconds:,.0f} a second), submissions held"
        f" back for {watcher.held_back:.1f} s; Redis limited to {size.redis / MB:.0f} MB"
    )
    for part in range(4):
        most = watcher.most(part)
        print(
            f"  quarter {part + 1}: at most {most.log / MB:.1f} MB of log,"
            f" {most.rest / MB:.1f} MB of all else, {most.redis / MB:.1f} MB together"
        )
