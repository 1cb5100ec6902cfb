"""What is asked for often, and may be a little old: read once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """Answers by key, each for `seconds`, at most `most` of them.

    Callers that come while one is read share that reading; none of them ends it by going away. What
    failed is not kept, nor what was read while something was forgotten: it may be from before.
    """

    def __init__(self, seconds: float, most: int = 1000) -> None:
        self._seconds = seconds
        self._most = most
        self._known: OrderedDict[Key, tuple[float, Value]] = OrderedDict()
        self._reading: dict[Key, asyncio.Task[Value]] = {}

    async def get(self, key: Key, read: Callable[[], Awaitable[Value]]) -> Value:
        """The answer; raise what `read` raises."""
        known = self._known.get(key)
        if known is not None and asyncio.get_running_loop().time() < known[0]:
            return known[1]
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.get_running_loop().create_task(self._read(key, read))
            self._reading[key] = reading
            reading.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(reading)

    def forget(self, stale: Callable[[Value], bool]) -> None:
        """Answers that are like this have to be read again; who asks from now on shares no reading
        that began before."""
        self._reading.clear()
        for key, (_, value) in list(self._known.items()):
            if stale(value):
                del self._known[key]

    async def _read(self, key: Key, read: Callable[[], Awaitable[Value]]) -> Value:
        until = asyncio.get_running_loop().time() + self._seconds
        value = await read()
        if self._reading.get(key) is asyncio.current_task():
            self._known[key] = (until, value)
            self._known.move_to_end(key)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return value

    def _done(self, key: Key, reading: asyncio.Task[Value]) -> None:
        if self._reading.get(key) is reading:
            del self._reading[key]
        if not reading.cancelled():
            reading.exception()  # whoever waits for it gets it
