"""The archiver killed at any moment while the log grows: every event is archived once, and none
leaves Redis before it is."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from archive.archive import Archive
from archive.segments import Raw
from events.base import START, Position
from events.keys import Keys
from handlers.limits import Limits
from handlers.log import Log
from handlers.stream import stretch
from hordechat.process import Service
from lua.link import Link
from tests.e2e.harness import Program, clean_environ, eventually
from tests.handlers.pool import Pool
from tests.handlers.shelf import archive_in, stream_of

pytestmark = pytest.mark.e2e

PACE = {
    "HORDE_TEST": "true",
    "HORDE_ARCHIVER_SECONDS": "0.01",
    "HORDE_SEGMENT_BYTES": "4000",
    "HORDE_SEGMENT_SECONDS": "3",
    "HORDE_LOG_RETENTION_SECONDS": "0",
}


_READ = (
    "INSERT INTO checkpoints VALUES ('status', 0, %s, %s, %s, %s) ON CONFLICT (name, partition)"
    " DO UPDATE SET position_ms = excluded.position_ms, position_seq = excluded.position_seq,"
    " signalled_ms = excluded.signalled_ms, signalled_seq = excluded.signalled_seq"
)


class Traffic:
    """Jobs, one after the other, and a reader of the log who keeps all. It has a checkpoint as a
    projector has, or it would be outrun on a busy machine."""

    def __init__(self, pool: Pool, archive: Archive, books: psycopg.Connection) -> None:
        self.pool = pool
        self.archive = archive
        self._books = books
        self.copy: list[Raw] = []
        self.trims = 0
        self._over = False

    async def work(self) -> None:
        """Until it is told to stop."""
        while not self._over:
            job = await self.pool.assign(await self.pool.submit())
            assert job is not None
            await self.pool.reply(job.generation_id)
            await self.pool.settle()
            await self.look()

    async def look(self) -> None:
        """Read on, and check that nothing left Redis that is not archived."""
        log = self.pool.log
        here = await stretch(log, 0)
        end = await asyncio.to_thread(self.archive.end, 0)
        gone = here.added - here.events
        assert gone < (end.beyond if end else 1)
        assert gone == 0 or here.first <= end.last
        self.trims = max(self.trims, gone)
        after = self.copy[-1].position if self.copy else START
        assert gone == 0 or here.first <= after
        self.copy += await stream_of(log, 0, after)
        self._books.execute(_READ, self.copy[-1].position * 2)

    def stop(self) -> None:
        """No more of it."""
        self._over = True


@pytest.fixture
async def traffic(redis_url: str, migrated_url: str, s3_server: Service) -> AsyncIterator[Traffic]:
    log = Log(Link(redis_url, timeout=10), Keys(1), test=True)
    await log.begin()
    with psycopg.connect(migrated_url, autocommit=True) as books:
        made = Traffic(await Pool.opened(log, Limits()), archive_in(s3_server, 1), books)
        await made.look()
        yield made
    await log.close()


@pytest.mark.parametrize(
    ("kills", "seed"), [(4, 1), pytest.param(50, 2, marks=pytest.mark.soak)], ids=str
)
async def test_whenever_it_is_killed_every_event_is_archived_once(
    kills: int,
    seed: int,
    traffic: Traffic,
    redis_url: str,
    migrated_url: str,
    s3_server: Service,
    tmp_path: Path,
) -> None:
    chance = random.Random(seed)
    env = clean_environ(
        REDIS_URL=redis_url,
        DATABASE_URL=migrated_url,
        S3_ENDPOINT_URL=s3_server.url,
        HORDE_ARCHIVE_BUCKET=traffic.archive.bucket._bucket,
        HORDE_SECRET="x",
        **PACE,
        **s3_server.settings,
    )

    numbers = itertools.count()

    def start() -> Program:
        return Program(tmp_path / f"archiver {next(numbers)}.log", env, "archiver")

    def place() -> Position:
        with psycopg.connect(migrated_url) as connection:
            row = connection.execute(
                "SELECT position_ms, position_seq FROM checkpoints WHERE name = 'archiver'"
            ).fetchone()
        return Position(*row) if row else START

    async def moved(before: Position) -> bool:
        return place() > before

    at_work, stands_by = start(), start()
    working = asyncio.ensure_future(traffic.work())
    for _ in range(kills):
        before = place()
        await eventually(lambda before=before: working.done() or moved(before), 60, "progress")
        await asyncio.sleep(chance.random() * 0.3)  # anywhere in its next passes
        at_work.send(signal.SIGKILL)
        at_work.wait(60)
        at_work, stands_by = stands_by, start()
        if working.done():
            break
    traffic.stop()
    await working
    await traffic.look()
    await traffic.pool.pass_time(60)
    last = traffic.copy[-1].position
    await eventually(lambda: place() == last, 60, "the last event")
    assert at_work.end() == 0
    final = stands_by
    await eventually(lambda: "on_duty" in final.log.read_text(), 60, "one that finds all done")
    await eventually(lambda: once(traffic.archive), 60, "what was left half done put right")

    assert [raw for page in traffic.archive.read(0) for raw in page] == traffic.copy
    stream = await stream_of(traffic.pool.log, 0)
    assert stream == traffic.copy[len(traffic.copy) - len(stream) :]
    assert traffic.trims > 0
    assert final.end() == 0


def once(archive: Archive) -> bool:
    """Whether each event is in one object."""
    objects = list(archive.listed(0))
    return [each.number for each in objects] == [1, *(each.beyond for each in objects[:-1])]
