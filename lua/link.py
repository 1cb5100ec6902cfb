"""The connection to Redis: commands issued in one event-loop turn share a round trip.

Built on redis-py's own `Connection` (its connect, HELLO, AUTH, TLS, URL parsing and error classes)
but not on its pipelines, which cost more than they save at the two or three commands of a real
turn. `_writer`, `_reader` and `_parser._reader` are private to redis-py: the version is pinned, and
tests/lua/test_link.py guards what is used.

Nothing is ever sent twice: a lost answer is `Unavailable`, and whoever knows how to repeat a
command does so. Blocking reads (XREAD BLOCK, SUBSCRIBE) hold their own connections:
`blocking_client`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, cast

import redis.asyncio
from hiredis import pack_command
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

__all__ = [
    "ClusterLink",
    "Deadline",
    "Link",
    "OutOfMemoryError",
    "Redis",
    "ResponseError",
    "Tail",
    "Unavailable",
    "blocking_client",
    "connect",
]

Argument = str | bytes | int | float

CONNECTIONS = 2
"""Of a link: while one waits for its answers, the next batch can go out."""


class Unavailable(Exception):
    """Redis did not answer."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent
        """Whether the command may have been executed."""


# What a server says that cannot serve just now: it loads its data, lost its master or its replicas,
# cannot write to its disk. It executed nothing.
_NOT_NOW = (RedisConnectionError, ClusterDownError, ReadOnlyError, TryAgainError)
_NOT_NOW_WORDS = ("NOREPLICAS ", "MISCONF ", "BUSY ")


def _told(error: Exception) -> Exception:
    """An error reply as the caller is to see it."""
    if isinstance(error, _NOT_NOW) or str(error).startswith(_NOT_NOW_WORDS):
        return Unavailable(str(error), sent=False)
    return error


class Redis(Protocol):
    """What handlers need of Redis."""

    ordered: bool
    """Whether commands are executed in the order in which they were issued."""

    async def call(self, *command: Argument) -> Any:
        """Run one command; raise Unavailable without an answer, ResponseError for an error
        reply."""

    def scan(self, pattern: str) -> AsyncIterator[str]:
        """Every key of the database that matches; some may come twice."""

    async def close(self) -> None:
        """Let go of every connection."""


_Waiting = tuple[bytes, "asyncio.Future[Any]"]


class Link:
    """A few connections, each with at most one batch in flight.

    A batch is what was issued while every connection was busy, or in one turn of the loop. It has
    one deadline of `timeout` seconds, connecting included; what waits behind a dead batch fails
    with it, so no call takes longer than two deadlines.
    """

    def __init__(
        self, url: str, *, timeout: float = 0.6, connections: int = CONNECTIONS, most: int = 256
    ) -> None:
        self._pool = ConnectionPool.from_url(
            url,
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )
        self.ordered = connections == 1
        self._timeout = timeout
        self._most = most
        self._idle: list[AbstractConnection] = [
            self._pool.make_connection()  # type: ignore[no-untyped-call]
            for _ in range(connections)
        ]
        self._connections = tuple(self._idle)
        self._waiting: deque[_Waiting] = deque()
        self._scheduled = False
        self._batches: set[asyncio.Task[None]] = set()

    async def call(self, *command: Argument) -> Any:
        """Run one command; raise Unavailable without an answer, ResponseError for an error
        reply."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        # redis-py packs in Python, for a third of a command's whole cost.
        self._waiting.append((pack_command(command), answer))  # type: ignore[arg-type]
        if not self._scheduled and self._idle:
            self._scheduled = True
            loop.call_soon(self._flush)
        return await answer

    async def scan(self, pattern: str) -> AsyncIterator[str]:
        """Every key of the database that matches; some may come twice."""
        cursor = b"0"
        while True:
            cursor, page = await self.call("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            for key in page:
                yield key.decode()
            if cursor == b"0":
                return

    async def close(self) -> None:
        """Wait for the batches in flight, then disconnect."""
        if self._batches:
            await asyncio.wait(self._batches, timeout=self._timeout)
        for connection in self._connections:
            with contextlib.suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting and self._idle:
            batch: list[_Waiting] = []
            while self._waiting and len(batch) < self._most:
                item = self._waiting.popleft()
                if not item[1].done():  # its caller may be gone
                    batch.append(item)
            if not batch:
                return
            # A task of its own: cancelling one caller must not cut the others' connection.
            task = asyncio.get_running_loop().create_task(self._run(self._idle.pop(), batch))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    async def _run(self, connection: AbstractConnection, batch: list[_Waiting]) -> None:
        sent = False
        try:
            with Deadline(self._timeout):
                if not connection.is_connected or connection._reader.at_eof():  # type: ignore[union-attr]
                    await connection.disconnect(nowait=True)
                    await connection.connect()  # type: ignore[no-untyped-call]
                sent = True
                connection._writer.writelines([packed for packed, _ in batch])  # type: ignore[union-attr]
                await self._read(connection, batch)
        except BaseException as error:
            with contextlib.suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)
            self._fail(batch, error, sent=sent)
            if not isinstance(error, RedisError | OSError):  # TimeoutError is an OSError
                raise
        finally:
            self._idle.append(connection)
            if self._waiting:
                self._flush()

    async def _read(self, connection: AbstractConnection, batch: list[_Waiting]) -> None:
        stream = cast(asyncio.StreamReader, connection._reader)
        parser = connection._parser._reader  # type: ignore[attr-defined]
        for _, answer in batch:
            reply = parser.gets(False)
            while reply is NOT_ENOUGH_DATA:
                data = await stream.read(65536)
                if not data:
                    raise ConnectionResetError("Redis closed the connection")
                parser.feed(data)
                reply = parser.gets(False)
            if answer.done():
                continue
            if isinstance(reply, Exception):
                answer.set_exception(_told(reply))
            else:
                answer.set_result(reply)

    def _fail(self, batch: list[_Waiting], error: BaseException, *, sent: bool) -> None:
        reason = str(error) or type(error).__name__
        for _, answer in batch:
            if not answer.done():
                answer.set_exception(Unavailable(reason, sent=sent))
        if isinstance(error, TimeoutError):
            # They waited as long already, and would wait as long again.
            for _, answer in self._waiting:
                if not answer.done():
                    answer.set_exception(Unavailable(reason, sent=False))
            self._waiting.clear()


class Deadline:
    """Raises TimeoutError in its task after `seconds` of a loop that runs.

    In parts, each counted from when the one before is noticed: a loop that was starved finds the
    answer in its socket before it gives up. Lighter than `asyncio.timeout`, too, once a batch.
    """

    def __init__(self, seconds: float, *, parts: int = 2) -> None:
        self._part = seconds / parts
        self._left = parts
        self._over = False

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)
        assert task is not None  # noqa: S101 - batches are tasks
        self._task = task
        self._timer = self._loop.call_later(self._part, self._noticed)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._over and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise TimeoutError("Redis does not answer")

    def _noticed(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._part, self._noticed)
        else:
            self._over = True
            self._task.cancel()


class ClusterLink:
    """The same on Redis Cluster: redis-py finds the node of each command, which goes out by
    itself."""

    ordered = False

    def __init__(self, url: str, *, timeout: float = 0.6) -> None:
        self._cluster = RedisCluster.from_url(
            url,
            protocol=2,
            socket_timeout=None,  # see Tail; each call has its deadline
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )
        # Else members and scores are paired, which `_flat` cannot tell from lists of the wire.
        self._cluster.set_response_callback("ZSCAN", lambda response, **_: response)
        self._timeout = timeout

    async def call(self, *command: Argument) -> Any:
        """Run one command on the node of its keys; raise Unavailable without an answer."""
        try:
            async with asyncio.timeout(self._timeout):
                return _flat(await self._cluster.execute_command(*command))
        except ResponseError as error:
            raise _told(error) from error
        except (RedisError, RedisClusterException, OSError, AttributeError) as error:
            # AttributeError: a caller that failed has redis-py cut the connections of its node,
            # also one that another caller is just opening. TimeoutError is an OSError.
            raise Unavailable(str(error) or type(error).__name__, sent=True) from error

    async def scan(self, pattern: str) -> AsyncIterator[str]:
        """Every key of every primary that matches; some may come twice."""

        async for key in self._cluster.scan_iter(match=pattern, count=1000):
            yield key.decode()

    async def close(self) -> None:
        """Disconnect from every node."""
        await self._cluster.aclose()


def _flat(reply: Any) -> Any:
    """The reply in the shape that the wire gives: redis-py makes dicts and tuples of some."""
    if isinstance(reply, Mapping):
        return [_flat(each) for pair in reply.items() for each in pair]
    if isinstance(reply, list | tuple):
        return [_flat(each) for each in reply]
    return reply


class Tail:
    """Reads logs as they grow, on a connection of its own.

    Serves a single server and a cluster.
    """

    def __init__(self, url: str, *, cluster: bool) -> None:
        # Without a socket timeout: for one, redis-py uses `asyncio.wait_for`, which on Python 3.11
        # loses a cancel that comes in the turn in which it is done. `read` has its own deadline.
        self._client: Any = (
            RedisCluster.from_url(url, protocol=2, socket_timeout=None, retry=Retry(NoBackoff(), 0))
            if cluster
            else blocking_client(url)
        )

    async def read(
        self, stream: str, after: str, *, count: int, block_ms: int
    ) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
        """Up to `count` entries behind `after`; waits up to `block_ms` for the first.

        Raise Unavailable.
        """
        try:
            async with asyncio.timeout(block_ms / 1000 + 2.0):
                answer = await self._client.xread({stream: after}, count=count, block=block_ms)
        except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
            raise Unavailable(str(error) or type(error).__name__, sent=True) from error
        return answer[0][1] if answer else []

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()


async def connect(url: str, *, timeout: float = 0.6, ordered: bool = False) -> Redis:
    """The right link for the server behind `url`: it is asked whether it runs as a cluster.

    `ordered` keeps the order of what is issued, where it is no cluster. Raise Unavailable.
    """
    probe = blocking_client(url, timeout=timeout)
    try:
        info = await probe.info("cluster")
    except (RedisError, OSError) as error:
        raise Unavailable(str(error) or type(error).__name__, sent=False) from error
    finally:
        await probe.aclose()
    if info.get("cluster_enabled"):
        return ClusterLink(url, timeout=timeout)
    return Link(url, timeout=timeout, connections=1 if ordered else CONNECTIONS)


def blocking_client(url: str, *, timeout: float | None = None) -> redis.asyncio.Redis:
    """A redis-py client of its own for subscriptions and blocking reads; retries nothing."""
    return redis.asyncio.Redis.from_url(
        url,
        protocol=2,
        socket_timeout=timeout,
        socket_connect_timeout=timeout or 2.0,
        retry=Retry(NoBackoff(), 0),
    )
