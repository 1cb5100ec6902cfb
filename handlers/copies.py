"""What each process keeps a copy of, since it is asked for with every call, and changes rarely."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from handlers.log import Log

KEPT_SECONDS = 1.0


class Copy:
    """Sees to it that a copy of something in partition 0 is at most a second old.

    read  takes the copy; it is called once for all who ask meanwhile
    """

    def __init__(self, log: Log, read: Callable[[], Awaitable[None]]) -> None:
        self._log = log
        self._take = read
        self._read_at = float("-inf")
        self._ahead_ms = 0.0  # of the event loop's clock
        self._reading: asyncio.Task[None] | None = None

    def outdated(self) -> None:
        """What it is a copy of was changed: the next who asks looks again."""
        self._read_at = float("-inf")

    def now_ms(self) -> float:
        """Redis' clock, as far as the last look at it tells."""
        return asyncio.get_running_loop().time() * 1000 + self._ahead_ms

    async def refresh(self) -> None:
        """Look again where the copy is old. Raise RedisUnavailable.

        Under the test setting it is looked at each time: tests make changes and move the clock.
        """
        loop = asyncio.get_running_loop()
        if loop.time() - self._read_at < KEPT_SECONDS and not self._log.test:
            return
        if self._reading is None:
            self._reading = loop.create_task(self._read())
            self._reading.add_done_callback(self._done)
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        started = asyncio.get_running_loop().time()
        await asyncio.gather(self._take(), self._look_at_clock())
        self._read_at = started

    async def _look_at_clock(self) -> None:
        now_ms = await self._log.now_ms(0)
        self._ahead_ms = now_ms - asyncio.get_running_loop().time() * 1000

    def _done(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # whoever waits for it gets it
