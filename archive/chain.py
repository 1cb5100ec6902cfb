"""Which of several segments make one log: those that join, each event in one of them.

An archiver that was killed, or one that was not the only one, leaves objects that overlap others.
"""

from __future__ import annotations

from collections.abc import Iterable

from archive.segments import Segment
from events.base import Position


def following(segments: Iterable[Segment], number: int, after: Position) -> list[Segment]:
    """The way that leads farthest, each where the one before ended, the first at event `number`
    behind `after`."""
    ways: dict[int, list[Segment]] = {number: []}
    for each in sorted(segments, key=lambda segment: (segment.number, segment.beyond)):
        way = ways.get(each.number)
        if way is not None and each.first > (way[-1].last if way else after):
            ways.setdefault(each.beyond, [*way, each])
    return ways[max(ways)]


def leading_to(segments: Iterable[Segment], end: Position, beyond: int) -> list[Segment]:
    """The way that comes from farthest back and ends at `end`, with the event in front of number
    `beyond`. Empty where none ends there."""
    ways: dict[int, list[Segment]] = {beyond: []}
    for each in sorted(segments, key=lambda segment: (-segment.beyond, segment.number)):
        way = ways.get(each.beyond)
        if way is None:
            continue
        if each.last < way[0].first if way else each.last == end:
            ways.setdefault(each.number, [each, *way])
    return ways[min(ways)]
