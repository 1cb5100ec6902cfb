"""What of a log stands in Redis, and taking off its beginning."""

from __future__ import annotations

from events.base import START, Position
from handlers.log import Log
from handlers.stream import Stretch, holds, memory, memory_of, passes, stretch, trim


async def write(log: Log, events: int) -> None:
    """Event n stands at millisecond n."""
    script = 'for n = 1, tonumber(ARGV[1]) do redis.call("XADD", KEYS[1], n .. "-0", "n", n) end'
    await log.read("EVAL", script, 1, log.keys.events(0), events)


async def test_what_is_there_and_what_ever_was(log: Log) -> None:
    assert await stretch(log, 0) == Stretch(START, START, 0, 0)
    assert (await stretch(log, 0)).whole
    await write(log, 9)
    assert await stretch(log, 0) == Stretch(Position(1, 0), Position(9, 0), 9, 9)
    await log.read("XTRIM", log.keys.events(0), "MINID", "=", "4-0")

    assert await stretch(log, 0) == Stretch(Position(4, 0), Position(9, 0), 6, 9)
    assert not (await stretch(log, 0)).whole
    assert not await holds(log, 0, Position(3, 0))
    assert await holds(log, 0, Position(4, 0))
    await log.read("XTRIM", log.keys.events(0), "MAXLEN", 0)
    assert await stretch(log, 0) == Stretch(START, START, 0, 9)


async def test_all_is_taken_off_in_pieces_and_never_past_the_floor(log: Log) -> None:
    await write(log, 1001)
    before = await memory_of(log, 0)

    trimmed = await trim(log, 0, Position(950, 0), piece=100)

    here = await stretch(log, 0)
    assert trimmed == here.added - here.events
    assert Position(800, 0) < here.first <= Position(950, 0)
    assert await memory_of(log, 0) < before / 2
    assert await memory(log) == await memory_of(log, 0)
    assert await trim(log, 0, Position(1, 0)) == 0


def test_a_limit_that_is_passed_is_until_a_twentieth_below() -> None:
    assert [passes(used, 100, already=False) for used in (100, 101)] == [False, True]
    assert [passes(used, 100, already=True) for used in (95, 96, 100)] == [False, True, True]
