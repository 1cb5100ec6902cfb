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
    places: int
    turn: asyncio.Future[None]


class Turns:
    """Free places go to whose parties hold the fewest; of several, to whose last turn is longest
    ago; of several, to who came first. Who needs more of them than are free keeps them from others:
    it would wait for ever.

    places   how many may be held at once
    waiting  how many may be waited for; of one party, half of them, or those of a single turn
    seconds  for which one waits at most
    most     how many one party may hold, unless it is by a single turn; None: all of them
    """

    def __init__(
        self, places: int, *, waiting: int, seconds: float, most: int | None = None
    ) -> None:
        self._free = places
        self._waiting = waiting
        self._seconds = seconds
        self._most = places if most is None else most
        self._waiters: list[_Waiter] = []
        self._held: Counter[int] = Counter()
        self._turn = 0
        self._last: dict[int, int] = {}  # turns of those who hold a place or wait for one

    @asynccontextmanager
    async def turn(self, parties: Set[int], places: int = 1) -> AsyncIterator[None]:
        """Hold places meanwhile, on behalf of some accounts. Raise Crowded."""
        own = _Waiter(parties, places, asyncio.get_running_loop().create_future())
        self._waiters.append(own)
        self._seat()
        if not own.turn.done():
            if self._crowded(own):
                self._waiters.remove(own)
                raise Crowded
            await self._wait(own)
        try:
            yield
        finally:
            self._leave(own)

    async def _wait(self, own: _Waiter) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await own.turn
        except BaseException as error:
            if own in self._waiters:
                self._waiters.remove(own)
                self._seat()
            else:  # its turn came in the very moment that it went
                self._leave(own)
            if isinstance(error, TimeoutError):
                raise Crowded from None
            raise

    def _crowded(self, own: _Waiter) -> bool:
        """Whether too many wait for it to wait, too."""
        others = [each for each in self._waiters if each is not own]
        return own.places + sum(each.places for each in others) > self._waiting or any(
            waited and own.places + waited > self._waiting // 2
            for waited in (
                sum(each.places for each in others if party in each.parties)
                for party in own.parties
            )
        )

    def _seat(self) -> None:
        """Give free places to those whose turn it is."""
        while waiting := [each for each in self._waiters if self._may_hold(each)]:
            following = min(waiting, key=self._had)
            if following.places > self._free:
                break
            self._waiters.remove(following)
            self._free -= following.places
            self._held.update(dict.fromkeys(following.parties, following.places))
            self._turn += 1
            self._last.update(dict.fromkeys(following.parties, self._turn))
            following.turn.set_result(None)

    def _may_hold(self, waiter: _Waiter) -> bool:
        """Whether it still waits, and its parties do not hold too much already."""
        return not waiter.turn.done() and all(
            not self._held[party] or self._held[party] + waiter.places <= self._most
            for party in waiter.parties
        )

    def _leave(self, own: _Waiter) -> None:
        self._free += own.places
        self._held.subtract(dict.fromkeys(own.parties, own.places))
        self._held += Counter()  # without those that hold none
        self._seat()
        here = self._held.keys() | {party for each in self._waiters for party in each.parties}
        self._last = {party: turn for party, turn in self._last.items() if party in here}

    def _had(self, waiter: _Waiter) -> tuple[int, int]:
        """How much its parties had: places that they hold, and their last turn."""
        held = max((self._held[party] for party in waiter.parties), default=0)
        return held, max((self._last.get(party, 0) for party in waiter.parties), default=0)
