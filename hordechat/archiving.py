"""The archiver's loop over one partition, and what Postgres knows of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from archive.archive import ArchiveUnavailable, Damaged
from archive.bucket import ArchiveMissing
from events.base import START, Position
from handlers import stream
from handlers.archiver import Archiver, Interrupted, Stuck
from handlers.errors import OutOfMemory, Rebuilding, RedisUnavailable
from handlers.log import Log
from handlers.trimming import Marks
from hordechat.snapshotting import Snapshots
from lua.link import Unavailable
from projections.database import Database, DatabaseUnavailable
from projections.models import PROJECTIONS

logger = structlog.get_logger()

NAME = "archiver"
"""Of its checkpoint."""

AT_ONCE = 2
"""Partitions that a process works on at once: each has a segment in memory then."""

DATABASE_SECONDS = 5.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
"""Seconds between two tries while something is away."""

AGAIN_SECONDS = 600.0
"""How often what somebody has to mend is told again."""

_PLACE = b"SELECT position_ms, position_seq FROM checkpoints WHERE name = %s AND partition = %s"
_ENSURE = (
    b"INSERT INTO checkpoints (name, partition) VALUES (%s, %s) ON CONFLICT DO NOTHING"
    b" RETURNING name"
)
_MOVE = (
    b"UPDATE checkpoints SET position_ms = %(ms)s, position_seq = %(seq)s, signalled_ms = %(ms)s,"
    b" signalled_seq = %(seq)s WHERE name = %(name)s AND partition = %(partition)s"
    b" AND position_ms = %(before_ms)s AND position_seq = %(before_seq)s RETURNING name"
)
_READERS = (
    b"SELECT name, position_ms, position_seq, signalled_ms, signalled_seq FROM checkpoints"
    b" WHERE partition = %s"
)

_AWAY: dict[type[Exception], str] = {
    RedisUnavailable: "waits_for_redis",
    Rebuilding: "waits_for_redis",
    OutOfMemory: "waits_for_redis",
    Unavailable: "waits_for_redis",
    DatabaseUnavailable: "waits_for_postgres",
    ArchiveUnavailable: "archive_away",
    Damaged: "archive_damages",
    ArchiveMissing: "archive_damages",
}
"""What passes by itself, and how it is told."""
_PASSES = tuple(_AWAY)


class Checkpoints:
    """How far the archiver and the readers of each partition's log have come.

    Raise DatabaseUnavailable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def place(self, partition: int) -> Position:
        """Up to where it is archived; START where that is not known."""
        rows = await self._database.fetch(_PLACE, (NAME, partition))
        if not rows:
            await self._database.fetch(_ENSURE, (NAME, partition))
        return Position(*rows[0]) if rows else START

    async def move(self, partition: int, before: Position, after: Position) -> bool:
        """Archived up to `after`, if that was `before`; whether it was."""
        values = {
            "name": NAME,
            "partition": partition,
            "before_ms": before.ms,
            "before_seq": before.seq,
            "ms": after.ms,
            "seq": after.seq,
        }
        return bool(await self._database.fetch(_MOVE, values))

    async def readers(self, partition: int) -> Mapping[str, Marks]:
        """Every read model that has a checkpoint. One that is built beside it holds nothing: what
        the stream has no more, the build reads in the archive."""
        rows = await self._database.fetch(_READERS, (partition,))
        return {
            name: Marks(Position(*numbers[:2]), Position(*numbers[2:]))
            for name, *numbers in rows
            if name in PROJECTIONS
        }


class LogMemory:
    """Whether the logs take more memory than they should. Sampled for all partitions at once.

    limit  bytes, of all logs together
    every  seconds between two samples
    """

    def __init__(self, log: Log, limit: int, *, every: float) -> None:
        self._log = log
        self._limit = limit
        self._every = every
        self._sampled = float("-inf")
        self._passed = False
        self._lock = asyncio.Lock()

    async def passed(self) -> bool:
        """Whether the limit was passed, and not left well behind, a moment ago. Raise
        RedisUnavailable."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._sampled >= self._every:
                used = await stream.memory(self._log)
                self._sampled = now
                if stream.passes(used, self._limit, already=self._passed) != self._passed:
                    self._passed = not self._passed
                    logger.info("log_memory", limit=self._limit, used=used, passed=self._passed)
        return self._passed


class _Trouble:
    """Says what is wrong once, and once that it is over."""

    def __init__(self, partition: int, first_pause: float) -> None:
        self._partition = partition
        self._word = ""
        self._said_at = 0.0
        self._first_pause = self._pause = first_pause

    def passes(self, word: str, error: Exception) -> None:
        """It will pass by itself."""
        if word != self._word:
            logger.warning(word, task=NAME, partition=self._partition, reason=_reason(error))
        self._word = word

    def stays(self, error: Stuck) -> None:
        """Somebody has to look."""
        now = asyncio.get_running_loop().time()
        if error.word != self._word or now - self._said_at >= AGAIN_SECONDS:
            meaning = " ".join((type(error).__doc__ or "").split())
            logger.error(
                error.word, partition=self._partition, reason=_reason(error), meaning=meaning
            )
            self._said_at = now
        self._word = error.word

    def over(self) -> None:
        """All is well."""
        if self._word:
            logger.info("archives_again", partition=self._partition)
        self._word, self._pause = "", self._first_pause

    async def wait(self) -> None:
        """Longer from time to time."""
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)


async def archive(
    archiver: Archiver,
    snapshots: Snapshots,
    memory: LogMemory,
    turns: asyncio.Semaphore,
    *,
    pause: float,
    partition: int,
    first_pause: float = FIRST_PAUSE,
) -> None:
    """Archive and trim a partition's log as it grows, for ever.

    turns        how many partitions may be at it at once: each has a segment in memory then
    pause        seconds between two passes
    first_pause  seconds before the next try where something is away, the first time
    """
    trouble = _Trouble(partition, first_pause)
    taking: asyncio.Task[None] | None = None
    try:
        while True:
            try:
                async with turns:
                    more = await archiver.step(pressed=await memory.passed())
                if taking is None or taking.done():
                    done, taking = taking, None  # what it raises is told once
                    if done is not None:
                        done.result()
                    taking = asyncio.create_task(snapshots.in_time(archiver.archived))
            except Interrupted:
                await asyncio.sleep(first_pause)
            except Stuck as error:
                trouble.stays(error)
                await trouble.wait()
            except _PASSES as error:
                trouble.passes(
                    next(_AWAY[each] for each in _AWAY if isinstance(error, each)), error
                )
                await trouble.wait()
            else:
                trouble.over()
                if not more:
                    await asyncio.sleep(pause)
    finally:
        if taking is not None:
            taking.cancel()
            await asyncio.wait({taking})


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
