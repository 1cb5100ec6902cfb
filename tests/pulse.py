"""How much of the time that something took was the machine's, not its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

BEAT_SECONDS = 0.02
FREE_SECONDS = 0.05
"""What a beat takes on a machine that does nothing else."""


class Pulse:
    """Does a little again and again, and keeps account of what it waited for."""

    def __init__(self) -> None:
        self.late = 0.0
        """Seconds by which its beats came later than on a machine that does nothing else."""

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, *asks: Callable[[], Awaitable[object]]) -> AsyncIterator[Pulse]:
        """A pulse of this process, and of servers that are there: `asks` ask them."""
        pulse = cls()
        beating = asyncio.create_task(pulse._beat(*asks))
        try:
            yield pulse
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self, *asks: Callable[[], Awaitable[object]]) -> None:
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            await asyncio.sleep(BEAT_SECONDS)
            for ask in asks:
                await ask()
            self.late += max(0.0, now() - began - BEAT_SECONDS - FREE_SECONDS)
