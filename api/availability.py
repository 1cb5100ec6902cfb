"""Who could serve a request, and where it stands in the queue: shared reads, kept for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from api.clock import Clock
from api.patience import PATIENCE, Patience
from handlers.errors import DatabaseUnavailable, ReadModelBehind
from handlers.log import Log
from projections import database
from projections.database import Database
from projections.follow import Follower
from projections.online import Serving, serving, text_context
from projections.rules import Rules, Wanted
from projections.servers import Servers, servers
from projections.standing import QueueSnapshot, queue_snapshot

_NOBODY_SECONDS = 1.0
"""That nobody can serve it is not kept longer: the next pop may change it."""
_SNAPSHOT_SECONDS = 1.0
_SERVING_SECONDS = 1.0
_KEPT = 1000

Served = dict[str, Serving]
"""By model: those that an online chat worker serves."""


class Availability:
    """How many online workers could take a request like this one.

    That some can is kept for `keep_seconds` (the spec's availability cache), shared by all requests
    with the same needs.
    """

    def __init__(
        self,
        log: Log,
        database: Database,
        follower: Follower,
        clock: Clock,
        rules: Rules,
        *,
        online_window: int,
        keep_seconds: float,
        patience: Patience = PATIENCE,
    ) -> None:
        self._log = log
        self._database = database
        self._follower = follower
        self._patience = patience
        self._clock = clock
        self._rules = rules
        self._online_window = online_window
        self._keep_seconds = keep_seconds
        self._known: OrderedDict[Wanted, tuple[float, Servers]] = OrderedDict()
        self._asking: dict[Wanted, asyncio.Task[Servers]] = {}
        self._served: OrderedDict[tuple[str, ...], tuple[float, Served]] = OrderedDict()

    async def servers(self, wanted: Wanted) -> Servers:
        """Who can serve it, as the read model has it.

        Raise DatabaseUnavailable, RedisUnavailable.
        """
        return self._kept(wanted) or await self._ask(wanted)

    async def nobody(self, wanted: Wanted) -> bool:
        """Whether no online worker can serve it; true only once the read model has caught up.

        Raise as `servers` does, and TimeoutError.
        """
        kept = self._kept(wanted)
        if kept is not None and kept.workers:
            return False
        async with asyncio.timeout(self._patience.warning):
            if (await self.servers(wanted)).workers:
                return False
            return await self._caught_up() and not (await self._ask(wanted)).workers

    async def surely(self, wanted: Wanted) -> Servers:
        """Who can serve it, by what the read model shows once it has caught up.

        Raise DatabaseUnavailable, ReadModelBehind, RedisUnavailable.
        """
        try:
            if not await self._caught_up():
                raise ReadModelBehind
            return await self._look_up(wanted)
        except database.DatabaseUnavailable as error:
            raise DatabaseUnavailable from error

    def _kept(self, wanted: Wanted) -> Servers | None:
        known = self._known.get(wanted)
        fresh = known is not None and asyncio.get_running_loop().time() < known[0]
        return known[1] if known is not None and fresh else None

    async def serving(self, models: tuple[str, ...], *, sure: bool = False) -> Served:
        """Each of these models that an online chat worker serves.

        What is found is kept for a second; while Postgres is away, for as long as the availability
        of a request. `sure`, for whoever is about to say that one is not served: only what the read
        model shows once it has caught up. Raise DatabaseUnavailable, ReadModelBehind,
        RedisUnavailable.
        """
        now = asyncio.get_running_loop().time()
        known = self._served.get(models)
        if not sure and known is not None and now < known[0] + _SERVING_SECONDS:
            return known[1]
        if sure and not await self._caught_up():
            raise ReadModelBehind
        try:
            served = await serving(
                self._database,
                models,
                now_ms=await self._clock.now_ms(),
                online_window_s=self._online_window,
            )
        except database.DatabaseUnavailable as error:
            if known is not None and now < known[0] + self._keep_seconds:
                return known[1]
            raise DatabaseUnavailable from error
        self._served[models] = (now, served)
        self._served.move_to_end(models)
        if len(self._served) > _KEPT:
            self._served.popitem(last=False)
        return served

    async def text_context(self, models: tuple[str, ...], *, at_least: int) -> int:
        """The largest context that an online worker serves text jobs of these models under.

        That it is less than `at_least` is said only of what the read model shows once it has caught
        up. Raise DatabaseUnavailable, ReadModelBehind, RedisUnavailable.
        """
        most = await self._text_context(models)
        if most < at_least:
            if not await self._caught_up():
                raise ReadModelBehind
            most = await self._text_context(models)
        return most

    async def _text_context(self, models: tuple[str, ...]) -> int:
        return await text_context(
            self._database,
            models,
            now_ms=await self._clock.now_ms(),
            online_window_s=self._online_window,
        )

    async def _caught_up(self) -> bool:
        """Whether the read model shows, within a moment, all that stands in the log now."""
        keys = self._log.keys
        heads = await asyncio.gather(*(self._log.head(partition) for partition in keys.all()))
        arrived = await asyncio.gather(
            *(
                self._follower.reached("eligibility", partition, head, self._patience.sure)
                for partition, head in zip(keys.all(), heads, strict=True)
            )
        )
        return all(arrived)

    async def _ask(self, wanted: Wanted) -> Servers:
        asking = self._asking.get(wanted)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._look_up(wanted))
            self._asking[wanted] = asking
            asking.add_done_callback(lambda done: self._asked(wanted, done))
        return await asyncio.shield(asking)

    def _asked(self, wanted: Wanted, asking: asyncio.Task[Servers]) -> None:
        self._asking.pop(wanted, None)
        if not asking.cancelled():
            asking.exception()  # whoever asked gets it, if still there

    async def _look_up(self, wanted: Wanted) -> Servers:
        found = await servers(
            self._database,
            wanted,
            now_ms=await self._clock.now_ms(),
            online_window_s=self._online_window,
            rules=self._rules,
        )
        keep = self._keep_seconds if found.workers else min(_NOBODY_SECONDS, self._keep_seconds)
        self._known[wanted] = (asyncio.get_running_loop().time() + keep, found)
        self._known.move_to_end(wanted)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return found


class Queue:
    """The queue of at most a second ago, read once for everybody: twice a second at most."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._read_at = float("-inf")
        self._asked_at = float("-inf")
        self._snapshot = QueueSnapshot()
        self._reading: asyncio.Task[QueueSnapshot] | None = None

    async def snapshot(self, request_id: str | None = None) -> QueueSnapshot:
        """The queue. Raise DatabaseUnavailable, RedisUnavailable.

        For a request that waits and is newer than what is kept, it is read before its time.
        """
        now = asyncio.get_running_loop().time()
        if now - self._read_at < _SNAPSHOT_SECONDS:
            known = request_id is None or self._snapshot.position(request_id) > 0
            if known or now - self._asked_at < _SNAPSHOT_SECONDS:
                return self._snapshot
            self._asked_at = now
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(self._done)
        return await asyncio.shield(self._reading)

    async def now(self) -> QueueSnapshot:
        """The queue as the read model has it now. Raise DatabaseUnavailable, RedisUnavailable."""
        try:
            return await self._read()
        except database.DatabaseUnavailable as error:
            raise DatabaseUnavailable from error

    async def _read(self) -> QueueSnapshot:
        read_at = asyncio.get_running_loop().time()
        now_ms = await self._clock.now_ms()
        self._snapshot = await queue_snapshot(self._database, now_ms=now_ms)
        self._read_at = read_at
        return self._snapshot

    def _done(self, reading: asyncio.Task[QueueSnapshot]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()
