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
import random
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import redis.asyncio
from hiredis import pack_command
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from lua.topology import SILENCE, SUPERSEDED, Heard, Slots, beside, key_of, slot_of, urls, witnesses

__all__ = [
    "ClusterLink",
    "Deadline",
    "Link",
    "Nodes",
    "OutOfMemoryError",
    "Redis",
    "ResponseError",
    "Tail",
    "Unavailable",
    "Waits",
    "blocking_client",
    "connect",
    "nodes_beside",
]

Argument = str | bytes | int | float

CONNECTIONS = 2
"""Of a link: while one waits for its answers, the next batch can go out."""

_REDIRECTS = 4
"""How often a command is passed on to another node."""
_ASK_PAUSE = 0.25
"""Seconds between two rounds of asking who serves what."""
_TAG = re.compile(r"\{\w+\}")


class Waits(NamedTuple):
    """Seconds for which the nodes of a cluster are waited for, and what counts as a silence."""

    ask: float = 0.5  # for a node's answer to who serves what
    grace: float = 0.1  # for the others' once one has answered
    laggards: float = 0.25  # for the answers of all nodes to a command once one has answered
    silence: float = SILENCE


WAITS = Waits()


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

    async def call(self, *command: Argument, at: str | None = None) -> Any:
        """Run one command, in a cluster on the node of its keys, or of the key `at`; raise
        Unavailable without an answer, ResponseError for an error reply."""

    async def everywhere(self, *command: Argument) -> list[Any]:
        """Run one command on every server that holds keys; the answers of those that gave one.

        Raise Unavailable where none did.
        """

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
        self,
        url: str,
        *,
        timeout: float = 0.6,
        connections: int = CONNECTIONS,
        most: int = 256,
        silence: float = SILENCE,
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
        self.heard = Heard(silence)

    async def call(self, *command: Argument, at: str | None = None) -> Any:
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

    async def everywhere(self, *command: Argument) -> list[Any]:
        """Run one command: this is the only server."""
        return [await self.call(*command)]

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
        loop = asyncio.get_running_loop()
        for _, answer in batch:
            reply = parser.gets(False)
            while reply is NOT_ENOUGH_DATA:
                data = await stream.read(65536)
                if not data:
                    raise ConnectionResetError("Redis closed the connection")
                self.heard.hear(loop.time())
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
    """The same on Redis Cluster: a link to each node, and what each of them serves.

    A command that its node did not answer is not sent to another: who serves what is asked anew
    meanwhile. One that a node passed on to another was not executed, and is sent there.

    What a node says of a key after a silence is believed once others say that it still serves it:
    one that hung does, when it goes on, what came to it meanwhile, and does not know yet that
    another has its place. All of that is lost, and must neither be acknowledged nor read. (Scans,
    and commands that a node passes on while it gives keys away, are taken as they come.)
    """

    ordered = False

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 0.6,
        connections: int = CONNECTIONS,
        waits: Waits = WAITS,
    ) -> None:
        self._nodes = Nodes(url, waits)
        self._timeout = timeout
        self._waits = waits
        self._connections = connections
        self._links: dict[str, Link] = {}
        self._believed: dict[str, int] = {}
        """Of each node, the silences after which it still served what it served before."""
        self._questions: dict[str, tuple[int, asyncio.Task[bool]]] = {}
        """About each node: after how many silences, and whether it does."""

    async def call(self, *command: Argument, at: str | None = None) -> Any:
        """Run one command on the node of its keys, or of the key `at`; on any where there is none.

        Raise Unavailable without an answer, ResponseError for an error reply.
        """
        key = at if at is not None else key_of(command)
        for _ in range(_REDIRECTS):
            url = await self._nodes.owner(key)
            try:
                answer = await self._link(url).call(*command)
            except Unavailable:
                self._nodes.doubt()
                raise
            except MovedError as moved:
                self._nodes.moved(moved.slot_id, _named_by(url, moved))
            except AskError as ask:
                link = self._link(_named_by(url, ask))
                _, answer = await asyncio.gather(link.call("ASKING"), link.call(*command))
                return answer
            except ResponseError:
                await self._believe(url, key)
                raise
            else:
                await self._believe(url, key)
                return answer
        raise Unavailable("passed on from node to node", sent=False)

    async def owner(self, key: str) -> str:
        """The URL of the node that serves a key. Raise Unavailable."""
        return await self._nodes.owner(key)

    async def still_serves(self, url: str, key: str | bytes) -> bool:
        """Whether the other primaries say that this one serves the key: as many as it takes, and
        none of them otherwise. (None has to where there is no other.)"""
        for _ in range(2):
            others = [node for node in await self._nodes.primaries() if node != url]
            told = await self._of_each(others, ("EXISTS", key))
            if len(told) < len(others):
                self._nodes.doubt()
            agreed = all(_passes_on_to(url, node, call) for node, call in told)
            if agreed and len(told) >= witnesses(len(others)):
                return True
            await self._nodes.renew()  # who disagrees may have lost its own place
        return False

    async def renew(self) -> None:
        """Ask all nodes who serves what, and wait until they have told."""
        await self._nodes.renew()

    async def everywhere(self, *command: Argument) -> list[Any]:
        """Run one command on every primary; the answers of those that gave one.

        Raise Unavailable where none did.
        """
        primaries = await self._nodes.primaries()
        given = await self._of_each(primaries, command)
        if len(given) < len(primaries):
            self._nodes.doubt()
        if not given:
            raise Unavailable("no node of the cluster answers", sent=True)
        return [call.result() for _, call in given]

    async def scan(self, pattern: str) -> AsyncIterator[str]:
        """Every key that matches, of every primary or, where the pattern begins with a hash tag, of
        that one; some may come twice."""
        tagged = _TAG.match(pattern)
        some = [await self._nodes.owner(tagged[0])] if tagged else await self._nodes.primaries()
        for url in some:
            try:
                async for key in self._link(url).scan(pattern):
                    yield key
            except Unavailable:
                self._nodes.doubt()
                raise

    async def close(self) -> None:
        """Disconnect from every node."""
        for _, question in self._questions.values():
            question.cancel()
        await self._nodes.close()
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def _believe(self, url: str, key: str | bytes | None) -> None:
        """Raise Unavailable where a node may have lost its place while it was silent."""
        silences = self._link(url).heard.silences
        if key is None or self._believed.get(url) == silences:
            return
        after, question = self._questions.get(url, (0, None))
        if question is None or question.done() or after != silences:
            # A task of its own: cancelling who asks first must not cancel what others wait for.
            question = asyncio.create_task(self.still_serves(url, key))
            self._questions[url] = silences, question
        if not await asyncio.shield(question):
            raise Unavailable(SUPERSEDED, sent=True)
        self._believed[url] = max(silences, self._believed.get(url, 0))

    async def _of_each(
        self, nodes: Sequence[str], command: Sequence[Argument]
    ) -> list[tuple[str, asyncio.Future[Any]]]:
        """Those of these nodes that gave an answer to a command, and it."""
        calls = [asyncio.ensure_future(self._link(url).call(*command)) for url in nodes]
        try:
            while calls and not any(map(_answered, calls)):
                pending = [call for call in calls if not call.done()]
                if not pending:
                    break
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if calls:
                await asyncio.wait(calls, timeout=self._waits.laggards)
        finally:
            for call in calls:
                call.cancel()
        return [each for each in zip(nodes, calls, strict=True) if _answered(each[1])]

    def _link(self, url: str) -> Link:
        link = self._links.get(url)
        if link is None:
            link = Link(
                url,
                timeout=self._timeout,
                connections=self._connections,
                silence=self._waits.silence,
            )
            self._links[url] = link
        return link


def _answered(call: asyncio.Future[Any]) -> bool:
    """Whether a node answered; an error reply is an answer."""
    return call.done() and not call.cancelled() and not isinstance(call.exception(), Unavailable)


def _passes_on_to(url: str, node: str, call: asyncio.Future[Any]) -> bool:
    """Whether this node answered a command by passing it on to that one."""
    error = call.exception()
    return isinstance(error, MovedError) and _named_by(node, error) == url


def _named_by(url: str, error: AskError) -> str:
    """The URL of the node to which this one refers us; without a host it is one of its own."""
    return beside(url, error.host or urlsplit(url).hostname or "", error.port)


class Nodes:
    """The nodes of a cluster, and what each of them serves, as most of them say.

    They are asked when that turns out to be wrong, all at once, so one that hangs holds up nobody.
    """

    def __init__(self, url: str, waits: Waits = WAITS) -> None:
        self._named = tuple(urls(url))
        self._waits = waits
        self._slots: Slots | None = None
        self._moved: dict[int, str] = {}
        self._asking: asyncio.Task[None] | None = None
        self._asked_ones: set[asyncio.Future[Slots | None]] = set()
        self._asked = float("-inf")

    async def owner(self, key: str | bytes | None) -> str:
        """The URL of the node that serves a key; of any that serves something, for None.

        Raise Unavailable where nobody does.
        """
        slots = await self._known()
        if key is None:
            return random.choice(slots.primaries)  # noqa: S311 - no secret
        slot = slot_of(key)
        url = self._moved.get(slot) or slots.owner(slot)
        if url is None:
            self.doubt()
            raise Unavailable(f"no node serves slot {slot}", sent=False)
        return url

    async def primaries(self) -> tuple[str, ...]:
        """The URL of every node that serves something. Raise Unavailable."""
        return (await self._known()).primaries

    async def renew(self) -> None:
        """Ask the nodes, and wait until they have told: what they say from now on."""
        if self._asking is not None and not self._asking.done():
            await asyncio.wait((self._asking,))
        self.doubt()
        assert self._asking is not None  # noqa: S101 - just begun
        await asyncio.wait((self._asking,))

    def moved(self, slot: int, url: str) -> None:
        """A node said that this one serves the slot."""
        self._moved[slot] = url
        self.doubt()

    def doubt(self) -> None:
        """Ask the nodes again, behind the caller's back, and not more often than is good."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_again())

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,))
        if self._asked_ones:  # each ends by its own deadline
            await asyncio.wait(self._asked_ones)

    async def _known(self) -> Slots:
        if self._slots is None:
            self.doubt()
            assert self._asking is not None  # noqa: S101 - just begun
            await asyncio.shield(self._asking)
        if self._slots is None:
            raise Unavailable("no node of the cluster answers", sent=False)
        return self._slots

    async def _ask_again(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._asked + _ASK_PAUSE - loop.time())
        self._asked = loop.time()
        known = self._slots.nodes if self._slots is not None else ()
        told = await self._most_say(dict.fromkeys((*known, *self._named)))
        if told is not None:
            self._slots = told
            self._moved.clear()

    async def _most_say(self, nodes: Iterable[str]) -> Slots | None:
        """What most of these say about who serves what; None where none answers in time."""
        pending = {asyncio.ensure_future(_slots_of(url, self._waits.ask)) for url in nodes}
        for task in pending:
            self._asked_ones.add(task)
            task.add_done_callback(self._asked_ones.discard)
        votes: Counter[Slots] = Counter()
        patience = self._waits.ask
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for slots in filter(None, (task.result() for task in done)):
                votes[slots] += 1
                patience = self._waits.grace
        return votes.most_common(1)[0][0] if votes else None


async def _slots_of(url: str, seconds: float) -> Slots | None:
    """What one node says in time; None where it does not, or serves no cluster."""
    link = Link(url, timeout=seconds, connections=1)
    try:
        slots = Slots.parse(url, await link.call("CLUSTER", "SLOTS"))
    except (Unavailable, ResponseError):
        return None
    else:
        return slots if slots.ranges else None
    finally:
        await link.close()


class Tail:
    """Reads logs as they grow, on a connection of its own.

    Serves a single server and, beside the link to it, a cluster.
    """

    def __init__(self, url: str, link: Redis | None = None) -> None:
        # Without a socket timeout: for one, redis-py uses `asyncio.wait_for`, which on Python 3.11
        # loses a cancel that comes in the turn in which it is done. `read` has its own deadline.
        self._cluster = link if isinstance(link, ClusterLink) else None
        self._url = "" if self._cluster is not None else url
        self._client: redis.asyncio.Redis | None = None
        self._heard = Heard()
        self._believed = 0

    async def read(
        self, stream: str, after: str, *, count: int, block_ms: int
    ) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
        """Up to `count` entries behind `after`; waits up to `block_ms` for the first.

        Raise Unavailable.
        """
        try:
            async with asyncio.timeout(block_ms / 1000 + 2.0):
                client = await self._at(stream)
                answer: Any = await client.xread({stream: after}, count=count, block=block_ms)
        except (RedisError, OSError, TimeoutError) as error:
            if self._cluster is not None:  # another may serve it by now
                await self._cluster.renew()
            raise Unavailable(str(error) or type(error).__name__, sent=True) from error
        self._heard.hear(asyncio.get_running_loop().time())
        if not answer:
            return []
        silences = self._heard.silences
        if self._believed != silences and self._cluster is not None:
            if not await self._cluster.still_serves(self._url, stream):
                raise Unavailable(SUPERSEDED, sent=True)
            self._believed = silences
        entries: list[tuple[bytes, Mapping[bytes, bytes]]] = answer[0][1]
        return entries

    async def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.aclose()

    async def _at(self, stream: str) -> redis.asyncio.Redis:
        """A client of the node that serves the stream."""
        url = await self._cluster.owner(stream) if self._cluster is not None else self._url
        if self._client is None or url != self._url:
            if self._client is not None:
                await self._client.aclose()
            self._url, self._client = url, blocking_client(url)
            self._heard, self._believed = Heard(), 0
        return self._client


async def connect(
    url: str, *, timeout: float = 0.6, ordered: bool = False, waits: Waits = WAITS
) -> Redis:
    """The right link for the server behind `url`: it is asked whether it runs as a cluster.

    A cluster's URL may name several of its nodes; the first that answers is asked.
    `ordered` keeps the order of what is issued, where it is no cluster. Raise Unavailable.
    """
    connections = 1 if ordered else CONNECTIONS
    reason = ""
    for each in urls(url):
        probe = blocking_client(each, timeout=timeout)
        try:
            info = await probe.info("cluster")
        except (RedisError, OSError) as error:
            reason = reason or str(error) or type(error).__name__
            continue
        finally:
            await probe.aclose()
        if info.get("cluster_enabled"):
            return ClusterLink(url, timeout=timeout, connections=connections, waits=waits)
        return Link(each, timeout=timeout, connections=connections)
    raise Unavailable(reason, sent=False)


async def nodes_beside(client: redis.asyncio.Redis, url: str) -> tuple[str, ...]:
    """The URL of every node of the cluster that `client` is connected with, by `url`; none where
    it is no cluster. Raise RedisError."""
    untyped: Any = client
    try:
        answer = await untyped.execute_command("CLUSTER", "SLOTS")
        return Slots.parse(url, answer).nodes
    except ResponseError:
        return ()


def blocking_client(url: str, *, timeout: float | None = None) -> redis.asyncio.Redis:
    """A redis-py client of its own for subscriptions and blocking reads; retries nothing."""
    return redis.asyncio.Redis.from_url(
        url,
        protocol=2,
        socket_timeout=timeout,
        socket_connect_timeout=timeout or 2.0,
        retry=Retry(NoBackoff(), 0),
    )
