"""Turns at a few places, fair between parties: nobody's many keep another's few from coming."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from typing import NamedTuple


class Crowded(Exception):
    """There is no place, and too many wait for one."""


class _Waiter(NamedTuple):
    parties: Set[int]
    turn: asyncio.Future[None]


class Turns:
    """A free place goes to whose parties hold the fewest places; of several, to whose last turn is
    longest ago; of several, to who came first.

    places   how many may be in at once
    waiting  how many may wait; of one party, half of them
    seconds  for which one waits at most
    """

    def __init__(self, places: int, *, waiting: int, seconds: float) -> None:
        self._free = places
        self._most = waiting
        self._seconds = seconds
        self._waiters: list[_Waiter] = []
        self._held: Counter[int] = Counter()
        self._turn = 0
        self._last: dict[int, int] = {}  # turns of those who hold a place or wait for one

    @asynccontextmanager
    async def turn(self, parties: Set[int]) -> AsyncIterator[None]:
        """Hold a place meanwhile, on behalf of some accounts. Raise Crowded."""
        if self._free:
            self._take(parties)
        else:
            await self._wait(parties)
        try:
            yield
        finally:
            self._leave(parties)

    async def _wait(self, parties: Set[int]) -> None:
        if len(self._waiters) >= self._most or any(map(self._waits_enough, parties)):
            raise Crowded
        waiter = _Waiter(parties, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._seconds):
                await waiter.turn
        except BaseException as error:
            if not waiter.turn.cancelled():  # its turn came in the very moment that it went
                self._leave(parties)
            if isinstance(error, TimeoutError):
                raise Crowded from None
            raise
        finally:
            self._waiters.remove(waiter)

    def _waits_enough(self, party: int) -> bool:
        return sum(party in each.parties for each in self._waiters) >= self._most // 2

    def _take(self, parties: Set[int]) -> None:
        self._free -= 1
        self._held.update(parties)
        self._turn += 1
        self._last.update(dict.fromkeys(parties, self._turn))

    def _leave(self, parties: Set[int]) -> None:
        self._free += 1
        self._held.subtract(parties)
        self._held += Counter()  # without those that hold none
        waiting = [each for each in self._waiters if not each.turn.done()]
        if waiting:
            following = min(waiting, key=self._had)
            self._take(following.parties)
            following.turn.set_result(None)
        here = self._held.keys() | {party for each in waiting for party in each.parties}
        self._last = {party: turn for party, turn in self._last.items() if party in here}

    def _had(self, waiter: _Waiter) -> tuple[int, int]:
        """How much its parties had: places that they hold, and their last turn."""
        held = max((self._held[party] for party in waiter.parties), default=0)
        return held, max((self._last.get(party, 0) for party in waiter.parties), default=0)
