"""What large bodies cost the event loop, shared out fairly with everything else on it.

Taking one apart is a single step that nothing interrupts, up to some tenths of a second. Many at
once would follow each other without a gap, and pops, status reads and the process's own sign of
life would wait for all of them.
"""

from __future__ import annotations

import asyncio

LIGHT_BYTES = 2**15
HEAVY_BYTES = 2**22
HEAVY_MARKS = 2**14
"""Of quotation marks, commas and opening brackets: each value of a document has one or more."""
_MARKS = (b'"', b",", b"{", b"[")


def heavy(raw: bytes) -> bool:
    """Whether taking a body apart may be felt by others: some 20 ms, and what comes after it."""
    if len(raw) <= LIGHT_BYTES:
        return False
    return len(raw) > HEAVY_BYTES or sum(map(raw.count, _MARKS)) > HEAVY_MARKS


class Pace:
    """Lets one heavy step of a process begin at a time, in line, and after each a pause that is as
    long as the step was: half of the loop's time is everyone else's."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._began = 0.0
        self._free_at = 0.0

    async def enter(self) -> None:
        """Wait for the step's turn. Every `enter` that returns has a `leave`."""
        await self._turn.acquire()
        now = asyncio.get_running_loop().time
        try:
            if (left := self._free_at - now()) > 0:
                await asyncio.sleep(left)
        except asyncio.CancelledError:
            self._turn.release()
            raise
        self._began = now()

    def leave(self) -> None:
        """The step is over."""
        now = asyncio.get_running_loop().time()
        self._free_at = now + (now - self._began)
        self._turn.release()
