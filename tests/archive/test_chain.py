"""Which of several segments make one log."""

from __future__ import annotations

from archive.chain import following, leading_to
from archive.segments import Segment
from events.base import START, Position


def of(first: int, last: int, digest: str = "") -> Segment:
    """Event n stands at millisecond n."""
    return Segment(1, 0, Position(first, 0), Position(last, 0), first, last + 1 - first, digest)


def test_the_way_on_is_the_one_that_leads_farthest() -> None:
    short, long, behind, gap = of(4, 5), of(4, 7), of(6, 9), of(11, 12)

    assert following([gap, long, behind, short, of(3, 6)], 4, Position(3, 0)) == [short, behind]
    assert following([gap, long, short], 4, Position(3, 0)) == [long]
    assert following([of(1, 2)], 1, START) == [of(1, 2)]
    assert following([gap, of(3, 8)], 4, Position(3, 0)) == []
    assert following([], 1, START) == []


def test_numbers_alone_make_no_way() -> None:
    """Of another log that has as many events."""
    assert following([of(4, 5)], 4, Position(4, 0)) == []
    assert leading_to([of(1, 3), of(4, 5)._replace(first=Position(3, 0))], Position(5, 0), 6) == [
        of(4, 5)._replace(first=Position(3, 0))
    ]


def test_the_way_up_to_an_end_takes_the_shortest_wherever_one_looks_from() -> None:
    found = [of(1, 3), of(2, 5), of(4, 6), of(4, 5), of(6, 9), of(7, 9), of(4, 9), of(10, 12)]

    whole = leading_to(found, Position(9, 0), 10)

    assert whole == [of(1, 3), of(4, 6), of(7, 9)]
    assert leading_to(found, Position(12, 0), 13) == [*whole, of(10, 12)]
    assert leading_to(found[1:], Position(9, 0), 10) == whole[1:]
    assert leading_to(found[::-1], Position(9, 0), 10) == whole
    assert leading_to(found, Position(8, 0), 10) == []
    assert leading_to(found, Position(7, 0), 8) == []
