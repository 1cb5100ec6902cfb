"""Turns at a few places, fair between parties: nobody's many keep another's few from coming."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Set
from contextlib import asynccontextmanager
from typing import NamedTuple


class Crowded(Exception):
    """There is no place, and too many wait for one."""


class _Waiter(NamedTuple):
    parties: Set[int]
    places: int
    room: int
    turn: asyncio.Future[bool]
    """True once it is in; false where it was sent away."""


class Turns:
    """Free places go to whose parties hold the fewest; of several, to whose last turn is longest
    ago; of several, to who came first. Who needs more of them than are free keeps them from others:
    it would wait for ever.

    Where the line is full, who comes takes the place of who came last of the party that takes most
    room in it, if that is more than its own party does: two parties with half of the line each
    would keep all others out.

    places   how many may be held at once
    waiting  how much room there is in line; of one party, half of it, or that of a single turn
    seconds  for which one waits at most
    sparing  whether a party takes more than a single turn only while as many places stay free as it
             has then: one party holds half of them at most, two a third each, and somebody else may
             always come, where turns are long
    """

    def __init__(self, places: int, *, waiting: int, seconds: float, sparing: bool = False) -> None:
        self._free = places
        self._waiting = waiting
        self._seconds = seconds
        self._sparing = sparing
        self._waiters: list[_Waiter] = []
        self._held: Counter[int] = Counter()
        self._turn = 0
        self._last: dict[int, int] = {}  # turns of those who hold a place or wait for one

    @asynccontextmanager
    async def turn(
        self, parties: Set[int], places: int = 1, *, room: int | None = None
    ) -> AsyncIterator[None]:
        """Hold places meanwhile, on behalf of some accounts. Raise Crowded.

        `room`: what it takes in line; None: as much as it needs places.
        """
        turn = asyncio.get_running_loop().create_future()
        own = _Waiter(parties, places, places if room is None else room, turn)
        self._waiters.append(own)
        self._seat()
        if not own.turn.done():
            self._line_up(own)
            await self._wait(own)
        try:
            yield
        finally:
            self._leave(own)

    async def _wait(self, own: _Waiter) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                came = await own.turn
        except BaseException as error:
            if own in self._waiters:
                self._waiters.remove(own)
                self._seat()
            elif not own.turn.cancelled() and own.turn.result():
                # Its turn came in the very moment that it went.
                self._leave(own)
            if isinstance(error, TimeoutError):
                raise Crowded from None
            raise
        if not came:
            raise Crowded

    def _line_up(self, own: _Waiter) -> None:
        """Let it wait, last in line, in the place of others if need be. Raise Crowded."""
        self._waiters.remove(own)
        if any(
            waited and own.room + waited > self._waiting // 2
            for waited in map(_waited_for(self._waiters).__getitem__, own.parties)
        ):
            raise Crowded
        line = [*self._waiters, own]
        while sum(each.room for each in line) > self._waiting:
            waited = _waited_for(line)
            last = max(reversed(line), key=lambda each: _most(waited, each))
            if _most(waited, last) <= _most(waited, own):
                raise Crowded
            line.remove(last)
        for each in self._waiters:
            if each not in line and not each.turn.done():
                each.turn.set_result(False)
        self._waiters = line
        self._seat()  # for those behind who needs more than is free and was sent away

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
            following.turn.set_result(True)

    def _may_hold(self, waiter: _Waiter) -> bool:
        """Whether it still waits, and its parties do not hold too much already."""
        return not waiter.turn.done() and not (
            self._sparing
            and any(
                self._held[party] and self._held[party] + waiter.places > self._free - waiter.places
                for party in waiter.parties
            )
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


def _waited_for(waiters: Iterable[_Waiter]) -> Counter[int]:
    """How much room each party takes in line."""
    waited: Counter[int] = Counter()
    for each in waiters:
        waited.update(dict.fromkeys(each.parties, each.room))
    return waited


def _most(waited: Counter[int], waiter: _Waiter) -> int:
    """How much the one of its parties takes that takes the most."""
    return max((waited[party] for party in waiter.parties), default=waiter.room)
