"""One active process for each partition: whoever holds the partition's advisory lock is on duty.

The lock lives and dies with a Postgres connection, so a process that dies frees it at once, and one
that loses its connection stops working before another begins. Projectors, which write to Postgres
anyway, hold theirs on the writing connection (projections/session.py).
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from zlib import crc32

import psycopg
import structlog

logger = structlog.get_logger()

BEAT_SECONDS = 0.5
"""How often a free partition is tried for, and the own connection is asked whether it lives."""
PATIENCE_SECONDS = 1.5
"""How long a partition stays free before someone takes it beyond its share."""
ANSWER_SECONDS = 2.0
MOST_BACKOFF_SECONDS = 5.0

Work = Callable[[int], Awaitable[None]]
Connection = psycopg.AsyncConnection[tuple[object, ...]]

# Two integers name a lock: the task and the partition. A third party that has room for more shares
# the lock of "<task> wanted", so that whoever has more than its share can see it.
_HELD = (
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND classid = %s::oid AND objid = %s::oid AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
)


class Duty:
    """Holds partitions of one task and runs its work on each of them, until told to stop.

    take  how many partitions this process has while others may want some; one that stays free is
          taken beyond that, and left again when another process has room
    """

    def __init__(
        self, database_url: str, task: str, partitions: Iterable[int], take: int | None, work: Work
    ) -> None:
        self._url = database_url
        self._task = task
        self._number = crc32(task.encode()) & 0x7FFFFFFF
        self._wanted = crc32(f"{task} wanted".encode()) & 0x7FFFFFFF
        self._partitions = tuple(partitions)
        self._take = take or len(self._partitions)
        self._work = work
        self._held: dict[int, asyncio.Future[None]] = {}
        self._free_since: dict[int, float] = {}
        self._asking = False

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`. What the work itself raises is raised here: the process is to end."""
        backoff = BEAT_SECONDS
        while not stop.is_set():
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
            except (psycopg.Error, TimeoutError, OSError) as error:
                logger.warning("duty_waits", task=self._task, reason=str(error) or "timeout")
                await _either(stop, backoff)
                backoff = min(backoff * 2, MOST_BACKOFF_SECONDS)
                continue
            backoff = BEAT_SECONDS
            try:
                await self._on_duty(connection, stop)
            except (psycopg.Error, TimeoutError, OSError) as error:
                logger.warning("duty_lost", task=self._task, reason=str(error) or "timeout")
            finally:
                await self._leave(*self._held)
                self._free_since.clear()
                self._asking = False
                with contextlib.suppress(psycopg.Error, OSError):
                    await connection.close()

    async def _on_duty(self, connection: Connection, stop: asyncio.Event) -> None:
        while not stop.is_set():
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._look_around(connection)
            await _either(stop, BEAT_SECONDS, *self._held.values())
            for task in self._held.values():
                if task.done():
                    task.result()

    async def _look_around(self, connection: Connection) -> None:
        """Take what is free and due to us, leave what another has room for, say if we have room."""
        await connection.execute("SELECT 1")  # a lost connection is a lost lock, and says nothing
        if len(self._held) > self._take and await _flag(connection, _HELD, self._wanted, 0):
            surplus = next(iter(self._held))
            await self._leave(surplus)
            await _flag(connection, "SELECT pg_advisory_unlock(%s, %s)", self._number, surplus)
            return
        for partition in self._partitions:
            if partition in self._held:
                continue
            if await _flag(connection, _HELD, self._number, partition):
                self._free_since.pop(partition, None)
                continue
            since = self._free_since.setdefault(partition, time.monotonic())
            if len(self._held) >= self._take and time.monotonic() - since < PATIENCE_SECONDS:
                continue
            if await _flag(
                connection, "SELECT pg_try_advisory_lock(%s, %s)", self._number, partition
            ):
                logger.info("on_duty", task=self._task, partition=partition)
                self._free_since.pop(partition, None)
                self._held[partition] = asyncio.ensure_future(self._work(partition))
        room = len(self._held) < min(self._take, len(self._partitions))
        if room != self._asking:
            verb = "lock" if room else "unlock"
            await connection.execute(
                f"SELECT pg_advisory_{verb}_shared(%s, 0)".encode(), (self._wanted,)
            )
            self._asking = room

    async def _leave(self, *partitions: int) -> None:
        """Stop the work of these partitions; their locks go after it.

        A library may swallow a cancellation that comes at a bad moment: it is told again.
        """
        left = {self._held.pop(partition) for partition in partitions}
        while left:
            for task in left:
                task.cancel()
            ended, left = await asyncio.wait(left, timeout=BEAT_SECONDS)
            for task in ended:
                if not task.cancelled():
                    task.exception()  # it was told to end; how it did does not matter any more


async def _flag(connection: Connection, statement: str, *arguments: int) -> bool:
    row = await (await connection.execute(statement.encode(), arguments)).fetchone()
    return bool(row and row[0])


async def _either(stop: asyncio.Event, seconds: float, *tasks: asyncio.Future[Any]) -> None:
    """Wait until `stop`, the end of any task, or the time is over."""
    stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((stopped, *tasks), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
