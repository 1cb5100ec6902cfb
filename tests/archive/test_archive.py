"""The archive as one log: segment behind segment, each event once, nothing missing unseen."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from archive.archive import Archive, Damaged, Gap, WrongArchive
from archive.bucket import ArchiveMissing, Bucket, Place
from archive.segments import Raw, Segment
from events.base import START, Position


def entries(numbers: Iterable[int]) -> list[Raw]:
    """Event n stands at millisecond 1000 + n."""
    return [Raw(f"{1000 + n}-0".encode(), [b"type", b"t", b"n", b"%d" % n]) for n in numbers]


def numbers(archive: Archive, after: Position = START) -> list[int]:
    return [int(each.fields[3]) for page in archive.read(0, after) for each in page]


def add(archive: Archive, first: int, last: int) -> Segment:
    return archive.add(0, first, entries(range(first, last + 1)))


def test_what_was_added_is_read_in_order_from_anywhere(archive: Archive) -> None:
    assert numbers(archive) == []
    assert archive.end(0) is None
    add(archive, 1, 5)
    second = add(archive, 6, 9)

    assert numbers(archive) == list(range(1, 10))
    assert numbers(archive, Position(1003, 0)) == [4, 5, 6, 7, 8, 9]
    assert numbers(archive, Position(1005, 0)) == [6, 7, 8, 9]
    assert numbers(archive, Position(1009, 0)) == []
    assert numbers(archive, Position(2000, 0)) == []
    assert archive.end(0) == archive.end(0, Position(1005, 0)) == second
    assert archive.end(0, Position(1009, 0)) == second
    assert archive.end(0, Position(2000, 0)) is None


def test_a_name_says_what_is_in_it(archive: Archive) -> None:
    segment = add(archive, 1, 5)

    assert list(archive.listed(0)) == [segment]
    assert Segment.parse(segment.key) == segment
    assert (segment.first, segment.last) == (Position(1001, 0), Position(1005, 0))
    assert (segment.number, segment.events, segment.beyond) == (1, 5, 6)
    assert Segment.parse("log/1/0000/anything") is None


def test_positions_of_any_size_are_listed_in_their_order(archive: Archive) -> None:
    ids = [b"999-9", b"999-10", b"1000-0", b"1732900000000-0", b"1732900000000-12"]
    for number, id_ in enumerate(ids, 1):
        archive.add(0, number, [Raw(id_, [b"type", b"t"])])

    assert [each.id for page in archive.read(0) for each in page] == ids


def test_overlapping_segments_tell_each_event_once(archive: Archive) -> None:
    add(archive, 1, 5)
    add(archive, 1, 7)
    add(archive, 6, 9)
    add(archive, 2, 8)

    assert numbers(archive) == list(range(1, 10))
    assert numbers(archive, Position(1006, 0)) == [7, 8, 9]


def test_reading_may_begin_at_any_time(archive: Archive) -> None:
    """A month lies between some segments: names are listed from further and further back."""
    month = 31 * 24 * 3_600_000
    for number, ms in enumerate((1000, 1001, month, month + 7_200_000, 3 * month), 1):
        archive.add(0, number, [Raw(f"{ms}-{number}".encode(), [b"type", b"t"])])

    found = [
        archive.before(0, Position(ms, 0))
        for ms in (1, 1001, month, month + 1, month + 7_200_000, 3 * month, 4 * month)
    ]

    assert [each.seq for each in found] == [0, 1, 2, 3, 3, 4, 5]
    assert archive.before(0, Position(1001, 2)) == Position(1000, 1)
    assert archive.before(0, Position(1001, 3)) == Position(1001, 2)
    assert archive.before(0, START) == START


def test_reading_may_begin_in_the_first_segment_that_is_left(archive: Archive) -> None:
    gone = add(archive, 1, 5)
    add(archive, 6, 9)
    archive.bucket.delete([gone.key])

    assert archive.before(0, Position(1008, 0)) == Position(1006, 0)
    assert numbers(archive, Position(1006, 0)) == [7, 8, 9]
    assert archive.before(0, Position(1006, 0)) == START


def test_a_missing_event_is_never_passed_over(archive: Archive) -> None:
    first = add(archive, 1, 5)
    middle = add(archive, 6, 6)
    add(archive, 7, 9)
    archive.bucket.delete([middle.key])

    with pytest.raises(Gap):
        numbers(archive)
    with pytest.raises(Gap):
        numbers(archive, Position(1006, 0))
    archive.bucket.delete([first.key])
    with pytest.raises(Gap):
        numbers(archive)
    assert numbers(archive, Position(1008, 0)) == [9]


def test_it_knows_which_events_it_holds(archive: Archive) -> None:
    add(archive, 1, 5)
    add(archive, 6, 9)

    for n in (1, 3, 5, 6, 9):
        assert archive.holds(0, Position(1000 + n, 0))
        assert not archive.holds(0, Position(1000 + n, 1))
    assert not archive.holds(0, Position(1000, 0))
    assert not archive.holds(1, Position(1003, 0))


def test_what_is_deleted_while_one_reads_is_read_where_else_it_is(archive: Archive) -> None:
    add(archive, 1, 5)
    spare = add(archive, 1, 7)
    add(archive, 6, 9)
    reading = archive.read(0)
    assert len(next(reading)) == 5
    archive.bucket.delete([spare.key])

    assert [raw.position.ms for page in reading for raw in page] == [1006, 1007, 1008, 1009]


def test_what_is_listed_and_is_not_there_is_told(archive: Archive) -> None:
    segment = add(archive, 1, 5)

    class Forgetful(Bucket):
        def get(self, key: str) -> bytes:
            raise ArchiveMissing(key)

    archive.bucket.__class__ = Forgetful

    with pytest.raises(Damaged, match=re.escape(segment.key)):
        numbers(archive)


def test_an_object_that_was_changed_is_not_read(archive: Archive) -> None:
    segment = add(archive, 1, 5)
    body = archive.bucket.get(segment.key)
    archive.bucket.put(segment.key, body[:-9] + bytes([body[-9] ^ 1]) + body[-8:])

    with pytest.raises(Damaged):
        numbers(archive)


def test_an_archive_of_another_number_of_partitions_is_refused(
    archive: Archive, place: Place
) -> None:
    archive.check()
    add(archive, 1, 5)
    archive.check()

    with pytest.raises(WrongArchive):
        Archive(Bucket(place), 4).check()


def test_what_others_keep_in_the_bucket_is_no_archive(archive: Archive) -> None:
    add(archive, 1, 5)
    for name in ("log/7", "log/4/0000/read me", "log/1/0000/a b..c", "log/1/00000/x"):
        archive.bucket.put(name, b"")

    archive.check()

    assert numbers(archive) == [1, 2, 3, 4, 5]


def test_what_lies_within_another_segment_is_no_gap(archive: Archive) -> None:
    """An archiver that came second left it: what was in front of it is swept already."""
    for first, last in ((1, 3), (4, 9), (6, 7)):
        add(archive, first, last)
    events = range(1, 10)

    assert numbers(archive) == list(events)
    for n in events:
        position = Position(1000 + n, 0)
        assert numbers(archive, position) == list(range(n + 1, 10))
        assert archive.holds(0, position)
    assert not archive.holds(0, Position(1005, 1))
    assert archive.end(0).beyond == 10
