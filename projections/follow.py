"""How far the read models have come, and what became readable, as a web process is told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec
import redis.asyncio
import structlog
from redis.exceptions import RedisError

from events.base import START, Position
from events.keys import Keys
from lua.link import blocking_client, nodes_beside
from lua.topology import urls
from projections.database import Database, DatabaseUnavailable
from projections.projection import Projected
from projections.projector import channel

Place = tuple[str, int]
"""A projection's name and a partition."""

NAMES = ("status", "eligibility")
SETTLER = "settler"
"""Announces itself as they do, each second at least, but has no checkpoint to read."""

_POLL_S = 0.05  # between readings of checkpoints while someone waits for one
_WATCH_S = 1.0  # the same while a model is behind and nobody waits
_QUIET_S = 3.0  # without a word from Redis, not even an answer to a ping: connect anew
_PAUSE_S = 0.25  # before connecting again
_CHECKPOINTS = b"SELECT name, partition, position_ms, position_seq FROM checkpoints"

logger = structlog.get_logger()


class Follower:
    """Keeps the position of every projection (or the settler) and partition, by messages and by
    reading.

    Messages come within the millisecond; they are hints. Whoever is about to say "no" reads the
    checkpoint with the rows (`status.load`) and believes that.
    """

    def __init__(
        self,
        redis_url: str,
        database: Database,
        keys: Keys,
        names: Sequence[str] = NAMES,
        *,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ticks`: seconds of a clock that only goes forward, by which models stand still."""
        self._named = tuple(urls(redis_url))
        self._nodes: tuple[str, ...] = ()
        self._database = database
        self._ticks = ticks
        self._places: dict[bytes, Place] = {
            channel(name, partition).encode(): (name, partition)
            for name in names
            for partition in keys.all()
        }
        self._positions: dict[Place, Position] = dict.fromkeys(self._places.values(), START)
        self._behind: dict[Place, tuple[Position, float]] = {}
        self._waiters: dict[Place, list[tuple[Position, asyncio.Future[None]]]] = {}
        self._stirred = asyncio.Event()
        self._on_status: list[Callable[[Sequence[str]], None]] = []
        self._on_queue: list[Callable[[Sequence[str]], None]] = []
        self._on_workers: list[Callable[[Sequence[str]], None]] = []

    def on_status(self, callback: Callable[[Sequence[str]], None]) -> None:
        """Call with the ids of requests that are done. It must not raise or block."""
        self._on_status.append(callback)

    def on_queue(self, callback: Callable[[Sequence[str]], None]) -> None:
        """Call with the models of jobs that began to wait, "" for those that take any.

        It must not raise or block.
        """
        self._on_queue.append(callback)

    def on_workers(self, callback: Callable[[Sequence[str]], None]) -> None:
        """Call with the ids of workers of which something was changed.

        It must not raise or block.
        """
        self._on_workers.append(callback)

    def position(self, name: str, partition: int) -> Position:
        """How far the model has come, as far as we were told."""
        return self._positions[name, partition]

    async def reached(self, name: str, partition: int, position: Position, within_s: float) -> bool:
        """Wait until the model shows this event; False if it does not in time."""
        place = (name, partition)
        if self._positions[place] >= position:
            return True
        if name != SETTLER:
            self._note_behind(place, position)
        waiter = (position, asyncio.get_running_loop().create_future())
        self._waiters.setdefault(place, []).append(waiter)
        try:
            async with asyncio.timeout(within_s):
                await waiter[1]
        except TimeoutError:
            return self._positions[place] >= position
        finally:
            with contextlib.suppress(ValueError):
                self._waiters[place].remove(waiter)
        return True

    def stands_still(self, name: str, partition: int, head: Position, seconds: float) -> bool:
        """Whether the model has been behind `head` for `seconds` without moving, as we saw it."""
        place = (name, partition)
        if self._positions[place] >= head:
            return False
        self._note_behind(place, head)
        _, since = self._behind[place]
        return self._ticks() - since >= seconds

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._read())

    # by messages

    async def _listen(self) -> None:
        """Subscribe at any node, for all of a cluster pass on what is published at one of them; at
        the next where that one is away."""
        away = False
        servers: list[str] = []
        while True:
            servers = servers or [*dict.fromkeys((*self._named, *self._nodes))]
            url = servers.pop(0)
            client = blocking_client(url)
            try:
                async with asyncio.timeout(_QUIET_S):
                    self._nodes = await nodes_beside(client, url) or self._nodes
                async with client.pubsub() as subscription:
                    await subscription.subscribe(*self._places)
                    if away:
                        logger.info("follows again", server="redis")
                    away = False
                    # What was published while nobody listened is in the checkpoints.
                    await self._refresh()
                    await self._hear(subscription)
            except (RedisError, OSError, TimeoutError) as error:
                if not away:
                    reason = str(error) or type(error).__name__
                    logger.warning("does not follow", server="redis", reason=reason)
                away = True
            finally:
                await client.aclose()
            await asyncio.sleep(_PAUSE_S)

    async def _hear(self, subscription: redis.asyncio.client.PubSub) -> None:
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while True:
            message = await subscription.get_message(timeout=1.0)
            if message is not None:
                heard = loop.time()
                if message["type"] == "message":
                    self._told(message["channel"], message["data"])
            elif loop.time() - heard > _QUIET_S:
                raise TimeoutError("no answer")
            else:
                await subscription.ping()

    def _told(self, channel_name: bytes, data: bytes) -> None:
        projected = msgspec.json.decode(data, type=Projected)
        self._moved(self._places[channel_name], Position.parse(projected.position))
        if projected.requests:
            for callback in self._on_status:
                callback(projected.requests)
        if projected.models:
            for callback in self._on_queue:
                callback(projected.models)
        if projected.workers:
            for callback in self._on_workers:
                callback(projected.workers)

    # by reading

    async def _read(self) -> None:
        """Read checkpoints: often while someone waits, now and then while a model is behind."""
        while True:
            if not self._awaited() and not self._behind:
                self._stirred.clear()
                await self._stirred.wait()
            pause = _POLL_S if self._awaited() else _WATCH_S
            if pause == _WATCH_S:
                self._stirred.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stirred.wait()
            else:
                await asyncio.sleep(pause)
            await self._refresh()

    def _awaited(self) -> bool:
        """Whether anyone waits for a checkpoint."""
        return any(waiters for (name, _), waiters in self._waiters.items() if name != SETTLER)

    async def _refresh(self) -> None:
        """Read the checkpoints. What a place was told meanwhile is newer than what is read."""
        before = dict(self._positions)
        try:
            rows = await self._database.fetch(_CHECKPOINTS)
        except DatabaseUnavailable:
            return
        for name, partition, ms, seq in rows:
            place = (name, partition)
            if place in before and self._positions[place] == before[place]:
                self._moved(place, Position(ms, seq))

    # both

    def _moved(self, place: Place, position: Position) -> None:
        """Believe it, a step back too: a rebuild begins at the start of the log."""
        if position == self._positions[place]:
            return
        self._positions[place] = position
        behind = self._behind.pop(place, None)
        if behind is not None and behind[0] > position:
            self._note_behind(place, behind[0])
        for wanted, future in self._waiters.get(place, ()):
            if wanted <= position and not future.done():
                future.set_result(None)

    def _note_behind(self, place: Place, head: Position) -> None:
        known = self._behind.get(place)
        if known is None:
            self._behind[place] = (head, self._ticks())
        elif head > known[0]:
            self._behind[place] = (head, known[1])
        self._stirred.set()
