"""Redis' clock as a web process sees it: asked once a second, estimated in between."""

from __future__ import annotations

import asyncio

from handlers.log import Log

_KEPT_SECONDS = 1.0


class Clock:
    """For choosing what may be due. What has to be judged is judged by scripts, by their clock."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ahead_ms = 0.0  # of the event loop's clock
        self._asked_at = float("-inf")

    async def now_ms(self) -> int:
        """Milliseconds of Redis' clock. Raise RedisUnavailable.

        Under the test setting it is asked each time: tests move it.
        """
        now = asyncio.get_running_loop().time()
        if self._log.test or now - self._asked_at > _KEPT_SECONDS:
            answer = await self._log.now_ms(0)
            now = asyncio.get_running_loop().time()
            self._ahead_ms = answer - now * 1000
            self._asked_at = now
        return self.estimate_ms()

    def estimate_ms(self) -> int:
        """The same without asking: good to a few milliseconds once it was asked."""
        return int(asyncio.get_running_loop().time() * 1000 + self._ahead_ms)
