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
    """The way that ends at `end`, with the event in front of number `beyond`, as far back as there
    is one. Empty where nothing ends there.

    Of several that end at the same event the shortest is taken: an archiver begins where another
    ended, so that is what was counted on. It depends on nothing else, so that two who look at
    different times never take what the other leaves.
    """
    way: list[Segment] = []
    ending: dict[int, list[Segment]] = {}
    for each in segments:
        ending.setdefault(each.beyond, []).append(each)
    while found := [
        each
        for each in ending.get(way[0].number if way else beyond, ())
        if (each.last < way[0].first if way else each.last == end)
    ]:
        way.insert(0, max(found, key=lambda segment: (segment.number, segment.digest)))
    return way
