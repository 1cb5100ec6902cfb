"""Postgres as web processes use it: index look-ups, each with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

Parameters = Sequence[Any] | Mapping[str, Any]
Connection = psycopg.AsyncConnection[tuple[Any, ...]]

# Every query is an index look-up. A plan made while tables were empty would scan them for ever. So
# one plan does for all values, and is made once: planning costs more than looking up. What an index
# can bring in order is never sorted: where all rows are alike to the server's statistics, it would
# take any index, and look at every row.
_OPTIONS = (
    "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c enable_sort=off -c plan_cache_mode=force_generic_plan"
)


class DatabaseUnavailable(Exception):
    """Postgres did not answer in time."""


class Database:
    """A few connections; each query has `timeout` seconds, waiting and connecting included.

    A query runs in a task of its own: a caller that goes away takes no connection with it. A
    connection that failed or came late is dropped; the next query makes a new one, so a Postgres
    that was away is found again without help.
    """

    def __init__(self, url: str, *, timeout: float = 0.6, connections: int = 8) -> None:
        self._url = url
        self._timeout = timeout
        self._most = connections
        self._open = 0
        self._idle: list[Connection] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._running: set[asyncio.Task[Any]] = set()
        self.answers = True
        """Whether Postgres answered the last query that ended."""

    @property
    def waiting(self) -> int:
        """Queries that wait for a connection."""
        return sum(not turn.done() for turn in self._waiting)

    async def fetch(self, query: bytes, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """All rows of one query.

        Raise DatabaseUnavailable without an answer in time, psycopg.Error for a bug.
        """
        task = asyncio.get_running_loop().create_task(self._run(query, parameters))
        self._running.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Let go of every connection, after the queries in flight."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._timeout)
        while self._idle:
            await self._drop(self._idle.pop())

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            error = task.exception()  # its caller may be gone
            self.answers = not isinstance(error, DatabaseUnavailable)

    async def _run(self, query: bytes, parameters: Parameters) -> list[tuple[Any, ...]]:
        deadline = asyncio.get_running_loop().time() + self._timeout
        while True:
            connection, used = await self._take(deadline)
            try:
                rows = await self._execute(connection, query, parameters, deadline)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                await self._drop(connection)
                if used and asyncio.get_running_loop().time() < deadline:
                    # Postgres restarted while it was idle, and the others with it.
                    await self._drop_idle()
                    continue
                raise DatabaseUnavailable(str(error) or type(error).__name__) from error
            except BaseException:
                await self._drop(connection)
                raise
            self._idle.append(connection)
            self._wake()
            return rows

    async def _execute(
        self, connection: Connection, query: bytes, parameters: Parameters, deadline: float
    ) -> list[tuple[Any, ...]]:
        # Cancelling a query makes psycopg ask the server to cancel it and wait: seconds, if the
        # server hangs. A socket that is shut ends it at once.
        timer = asyncio.get_running_loop().call_at(deadline, _cut, connection)
        try:
            cursor = await connection.execute(query, parameters, prepare=True, binary=True)
            return await cursor.fetchall()
        finally:
            timer.cancel()

    async def _take(self, deadline: float) -> tuple[Connection, bool]:
        """A connection, and whether it was used before."""
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    if self._idle:
                        return self._idle.pop(), True
                    if self._open < self._most:
                        return await self._connect(), False
                    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(turn)
                    await turn
        except TimeoutError as error:
            self._wake()  # our turn may have come just now
            raise DatabaseUnavailable("no connection in time") from error
        except psycopg.Error as error:
            raise DatabaseUnavailable(str(error)) from error

    async def _connect(self) -> Connection:
        self._open += 1
        try:
            return await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, application_name="web", options=_OPTIONS
            )
        except BaseException:
            self._open -= 1
            self._wake()
            raise

    async def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await self._drop(connection)

    async def _drop(self, connection: Connection) -> None:
        self._open -= 1
        with contextlib.suppress(psycopg.Error, OSError):
            await connection.close()
        self._wake()

    def _wake(self) -> None:
        """One who waits may look again."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


def _cut(connection: Connection) -> None:
    """End whatever the connection does: its next read finds the end of the stream."""
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as twin,
    ):
        twin.shutdown(socket.SHUT_RDWR)
