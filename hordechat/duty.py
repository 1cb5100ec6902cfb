"""One active process for each partition: whoever holds the partition's advisory lock is on duty.

The lock lives and dies with a Postgres connection, so a process that dies frees it at once, and one
that loses its connection stops working before another begins.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

import psycopg
import structlog

logger = structlog.get_logger()

BEAT_SECONDS = 1.0
"""How often a free partition is tried for, and the own connection is asked whether it lives."""

ANSWER_SECONDS = 2.0
MOST_BACKOFF_SECONDS = 5.0

Work = Callable[[int], Awaitable[None]]


class Duty:
    """Holds partitions of one task and runs its work on each of them, until told to stop."""

    def __init__(
        self, database_url: str, task: str, partitions: Iterable[int], take: int | None, work: Work
    ) -> None:
        self._url = database_url
        self._task = task
        self._partitions = tuple(partitions)
        self._take = take or len(self._partitions)
        self._work = work
        self._held: dict[int, asyncio.Task[None]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`.

        What the work itself raises is raised here: the process is to end.
        """
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
                await self._leave()
                with contextlib.suppress(psycopg.Error, OSError):
                    await connection.close()

    async def _on_duty(
        self, connection: psycopg.AsyncConnection[tuple[object, ...]], stop: asyncio.Event
    ) -> None:
        while not stop.is_set():
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.execute("SELECT 1")
                for partition in self._partitions:
                    if partition in self._held or len(self._held) >= self._take:
                        continue
                    if await self._lock(connection, partition):
                        logger.info("on_duty", task=self._task, partition=partition)
                        self._held[partition] = asyncio.ensure_future(self._work(partition))
            await _either(stop, BEAT_SECONDS, *self._held.values())
            for task in self._held.values():
                if task.done():
                    task.result()

    async def _lock(
        self, connection: psycopg.AsyncConnection[tuple[object, ...]], partition: int
    ) -> bool:
        row = await (
            await connection.execute(
                "SELECT pg_try_advisory_lock(hashtext(%s), %s)", (self._task, partition)
            )
        ).fetchone()
        return bool(row and row[0])

    async def _leave(self) -> None:
        """Stop the work of every partition before the locks go."""
        tasks, self._held = list(self._held.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _either(stop: asyncio.Event, seconds: float, *tasks: asyncio.Task[None]) -> None:
    """Wait until `stop`, the end of any task, or the time is over."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((stopped, *tasks), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
