"""Who holds the trim of a log back, and when that is told. That all who need something hold it:
tests/handlers/test_archiver.py."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from events.base import Position
from handlers import trimming
from handlers.log import Log
from handlers.trimming import BEHIND, Marks, Trimming
from tests.logged import logged

EVENTS = BEHIND + 500
NOW = 10**9


class Paper:
    """Checkpoints."""

    def __init__(self, **at: int) -> None:
        """By reader: the number of the event at which it stands."""
        self.at = at

    async def readers(self, _partition: int) -> Mapping[str, Marks]:
        return {name: Marks(Position(n, 0), Position(n, 0)) for name, n in self.at.items()}


@pytest.fixture
async def key(log: Log) -> str:
    """A log whose n-th event stands at millisecond n, carried over to the end."""
    key = log.keys.events(0)
    script = (
        """for n = 1, tonumber(ARGV[1]) do redis.call("XADD", KEYS[1], n .. "-0", "n", n) end"""
    )
    await log.read("EVAL", script, 1, key, EVENTS)
    for target in log.keys.all():
        await log.read("HSET", log.keys.fences(target), 0, f"{EVENTS}-0")
    return key


async def told(
    log: Log, paper: Paper, turns: int, *, look_seconds: float = 0, again_seconds: float = 1000
) -> list[str]:
    """The words of so many turns, in which each reader goes on by an event."""
    trims = Trimming(log, paper, 0, 0, look_seconds=look_seconds, again_seconds=again_seconds)
    with logged(trimming.logger) as lines:
        for _ in range(turns):
            await trims.trim(Position(EVENTS, 0), NOW, pressed=False)
            paper.at = {name: n + 1 for name, n in paper.at.items()}
    return [line.get("by", line["event"]) for line in lines if line["event"] != "trimmed"]


@pytest.mark.parametrize("log", ["one partition"], indirect=True)
async def test_the_same_is_told_again_after_a_while(log: Log, key: str) -> None:
    assert await told(log, Paper(status=2), 3) == ["projector status"]
    assert await told(log, Paper(status=2), 3, again_seconds=0) == ["projector status"] * 3
    assert await told(log, Paper(status=2), 3, again_seconds=0, look_seconds=1000) == [
        "projector status"
    ]


@pytest.mark.parametrize("log", ["one partition"], indirect=True)
async def test_the_hindmost_is_told_of_and_once_that_nobody_is_behind(log: Log, key: str) -> None:
    paper = Paper(status=400, accounts=500)

    # They stand a round number in front of the end, and 1500 is as far as nobody minds.
    assert await told(log, paper, 102) == ["projector status", "trim_goes_on"]
    assert await log.head(0) == Position(EVENTS, 0)
