"""Who comes next where there are few places."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from handlers.turns import Crowded, Turns

ALICE, BOB, CAROL = 1, 2, 3


class Visits:
    """Visitors of one place after the other, each until it is told to go."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._told: dict[asyncio.Task[None], asyncio.Event] = {}
        self.inside: list[frozenset[int]] = []
        self.last: asyncio.Task[None] | None = None
        """Who came in last."""

    async def come(
        self, *parties: int, places: int = 1, room: int | None = None
    ) -> asyncio.Task[None]:
        """One more comes, and is inside or waits."""
        told = asyncio.Event()
        visit = asyncio.create_task(self._visit(frozenset(parties), places, told, room))
        self._told[visit] = told
        await self.rest()
        return visit

    async def go(self, visit: asyncio.Task[None]) -> None:
        """It goes; who follows is inside."""
        self._told[visit].set()
        await visit
        await self.rest()

    async def rest(self) -> None:
        """Until nobody moves."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def _visit(
        self,
        parties: frozenset[int],
        places: int,
        told: asyncio.Event,
        room: int | None = None,
    ) -> None:
        async with self._turns.turn(parties, places, room=room):
            self.inside.append(parties)
            self.last = asyncio.current_task()
            await told.wait()
            self.inside.remove(parties)

    async def close(self) -> None:
        for visit in self._told:
            visit.cancel()
        await asyncio.gather(*self._told, return_exceptions=True)


@contextlib.asynccontextmanager
async def visits(
    places: int, *, waiting: int = 8, seconds: float = 60, sparing: bool = False
) -> AsyncIterator[Visits]:
    opened = Visits(Turns(places, waiting=waiting, seconds=seconds, sparing=sparing))
    yield opened
    await opened.close()


async def test_whose_parties_hold_least_is_next_and_then_who_came_first() -> None:
    async with visits(2) as at:
        first, second = await at.come(ALICE), await at.come(ALICE)
        await at.come(ALICE)
        last = await at.come(ALICE, BOB)
        await at.come(CAROL)
        assert at.inside == [{ALICE}, {ALICE}]

        await at.go(first)
        assert at.inside == [{ALICE}, {CAROL}]
        await at.go(second)
        assert at.inside == [{CAROL}, {ALICE}]
        assert not last.done()


async def test_parties_take_turns_at_a_single_place() -> None:
    async with visits(1, waiting=10) as at:
        visit = await at.come(ALICE)
        waiting = [await at.come(*parties) for parties in ((ALICE,), (ALICE,), (BOB,), (BOB,))]
        came = []

        for _ in waiting:
            await at.go(visit)
            came += at.inside
            visit = at.last

        assert came == [{BOB}, {ALICE}, {BOB}, {ALICE}]


async def test_one_party_fills_half_of_the_line_at_most() -> None:
    async with visits(1, waiting=4) as at:
        await at.come(ALICE)
        for _ in range(2):
            await at.come(ALICE, BOB)

        for parties in ((ALICE,), (BOB,), (BOB, CAROL)):
            with pytest.raises(Crowded):
                await (await at.come(*parties))
        for _ in range(2):
            assert not (await at.come(CAROL)).done()


async def test_in_a_full_line_who_waits_for_least_takes_the_last_place_of_who_waits_for_most() -> (
    None
):
    async with visits(1, waiting=6) as at:
        first = await at.come(ALICE)
        hers = [await at.come(ALICE) for _ in range(3)]
        his = [await at.come(BOB) for _ in range(3)]

        for _ in range(2):
            await at.come(CAROL)

        for visit in (his[2], hers[2]):
            with pytest.raises(Crowded):
                await visit
        for full in (ALICE, BOB, CAROL):
            with pytest.raises(Crowded):
                await (await at.come(full))
        await at.go(first)
        came = [*at.inside]
        for _ in range(5):
            await at.go(at.last)
            came += at.inside
        assert sorted(map(min, came)) == [ALICE, ALICE, BOB, BOB, CAROL, CAROL]


async def test_nobody_is_sent_away_for_who_would_not_fit_still() -> None:
    async with visits(4, waiting=6) as at:
        await at.come(ALICE, places=4)
        hers = [await at.come(ALICE, places=1) for _ in range(3)]
        await at.come(BOB, places=3)

        with pytest.raises(Crowded):
            await (await at.come(CAROL, places=4))

        assert not any(visit.done() for visit in hers)


async def test_who_is_sent_away_holds_up_nobody_behind() -> None:
    async with visits(4, waiting=4) as at:
        await at.come(ALICE, places=3)
        large = await at.come(BOB, places=4)

        await at.come(CAROL)

        with pytest.raises(Crowded):
            await large
        assert at.inside == [{ALICE}, {CAROL}]


async def test_who_goes_as_it_is_sent_away_leaves_no_place_behind() -> None:
    async with visits(1, waiting=2) as at:
        first = await at.come(ALICE)
        second = await at.come(BOB, places=2)
        third = asyncio.create_task(at._visit(frozenset({CAROL}), 1, asyncio.Event()))
        await asyncio.sleep(0)  # it took the second's place, who has not moved yet
        second.cancel()
        await at.rest()
        assert second.cancelled()
        third.cancel()
        await at.rest()

        await at.go(first)
        await at.come(ALICE)
        await at.come(BOB)

        assert at.inside == [{ALICE}]


async def test_who_waits_too_long_goes_away_and_takes_no_place() -> None:
    async with visits(1, seconds=0) as at:
        first = await at.come(ALICE)
        with pytest.raises(Crowded):
            await (await at.come(BOB))

        await at.go(first)
        await at.come(CAROL)

        assert at.inside == [{CAROL}]


async def test_a_place_is_not_lost_with_who_goes_in_the_moment_of_its_turn() -> None:
    async with visits(1) as at:
        first, second = await at.come(ALICE), await at.come(BOB)
        at._told[first].set()
        while not first.done():
            await asyncio.sleep(0)
        second.cancel()  # its turn came, and it has not moved yet
        await at.rest()
        assert second.cancelled()

        await at.come(CAROL)

        assert at.inside == [{CAROL}]


async def test_a_place_goes_to_the_next_where_who_was_first_goes_in_the_same_moment() -> None:
    async with visits(1) as at:
        first, second = await at.come(ALICE), await at.come(BOB)
        await at.come(CAROL)

        at._told[first].set()
        second.cancel()
        await at.rest()

        await first
        assert second.cancelled()
        assert at.inside == [{CAROL}]


async def test_who_needs_many_places_waits_until_so_many_are_free_and_nobody_passes_by() -> None:
    async with visits(4) as at:
        first, second = await at.come(ALICE, places=2), await at.come(ALICE)
        await at.come(BOB, places=3)
        await at.come(ALICE)
        assert at.inside == [{ALICE}, {ALICE}]

        await at.go(second)
        assert at.inside == [{ALICE}]
        await at.go(first)
        assert at.inside == [{BOB}, {ALICE}]


async def test_several_come_in_where_one_with_many_places_goes() -> None:
    async with visits(4) as at:
        first = await at.come(ALICE, places=4)
        for party in (BOB, CAROL, BOB):
            await at.come(party)

        await at.go(first)

        assert at.inside == [{BOB}, {CAROL}, {BOB}]


async def test_who_goes_unserved_makes_way_for_those_behind() -> None:
    async with visits(4) as at:
        await at.come(ALICE, places=2)
        large = await at.come(BOB, places=4)
        await at.come(CAROL)
        assert at.inside == [{ALICE}]

        large.cancel()
        await at.rest()

        assert at.inside == [{ALICE}, {CAROL}]


async def test_a_party_leaves_as_much_to_others_as_it_holds() -> None:
    async with visits(6, sparing=True) as at:
        first = await at.come(ALICE)
        for party in (ALICE, ALICE, ALICE, BOB, BOB):
            await at.come(party)
        assert at.inside == [{ALICE}, {ALICE}, {ALICE}, {BOB}]

        await at.come(CAROL)
        assert at.inside == [{ALICE}, {ALICE}, {ALICE}, {BOB}, {CAROL}]

        await at.go(first)
        assert at.inside == [{ALICE}, {ALICE}, {BOB}, {CAROL}]


async def test_a_single_turn_may_take_more_than_the_most_of_a_party() -> None:
    async with visits(4, waiting=4, sparing=True) as at:
        first = await at.come(ALICE, places=4)
        await at.come(BOB, places=3)  # more than half of the line, and its only one
        assert at.inside == [{ALICE}]

        await at.go(first)
        assert at.inside == [{BOB}]


async def test_the_line_is_as_long_as_the_places_that_are_waited_for() -> None:
    async with visits(4, waiting=6) as at:
        await at.come(ALICE, places=4)
        await at.come(BOB, places=3)
        for visit in (await at.come(BOB), await at.come(CAROL, places=4)):
            with pytest.raises(Crowded):
                await visit
        assert not (await at.come(CAROL, places=3)).done()


async def test_the_line_is_as_long_as_the_room_that_each_takes_in_it() -> None:
    async with visits(4, waiting=4) as at:
        await at.come(ALICE, places=4)
        for party in (BOB, BOB, CAROL):
            assert not (await at.come(party, places=3, room=1)).done()
        with pytest.raises(Crowded):
            await (await at.come(BOB, room=1))
        with pytest.raises(Crowded):
            await (await at.come(ALICE, room=4))
