"""Snapshots as objects: their names say what is in them, and the newest good one is found."""

from __future__ import annotations

import pytest

from archive import snapshots
from archive.archive import Archive
from archive.bucket import Bucket
from archive.segments import Damaged, Raw
from archive.snapshots import Snapshot, Value
from events.base import Position


@pytest.fixture
def archive(archive: Archive) -> Archive:
    """With a segment: that makes the bucket."""
    archive.add(0, 1, [Raw(b"1-0", [b"type", b"t"])])
    return archive


def add(archive: Archive, n: int) -> Snapshot:
    """Of n events; the n-th stands at millisecond n."""
    values = [
        Value(b"b", "set", [b"1", b"2"]),
        Value(b"a", "hash", [b"events", b"%d" % n]),
    ]
    return snapshots.add(archive, 0, Position(n, 0), n, values)


def test_the_newest_is_found_and_two_are_kept(archive: Archive) -> None:
    assert snapshots.newest(archive, 0) == (None, [], [])
    made = [add(archive, n) for n in (9, 10, 100)]

    assert [Snapshot.parse(each.key) for each in made] == made
    assert snapshots.listed(archive, 0) == [made[2], made[1]]
    assert snapshots.newest(archive, 0) == (
        made[2],
        [Value(b"a", "hash", [b"events", b"100"]), Value(b"b", "set", [b"1", b"2"])],
        [],
    )
    assert snapshots.listed(archive, 1) == []


def test_one_that_holds_what_another_does_is_passed_over(archive: Archive) -> None:
    good, other = add(archive, 5), add(archive, 9)
    archive.bucket.put(other.key, archive.bucket.get(good.key))

    found, values, passed = snapshots.newest(archive, 0)

    assert (found, values[0].members) == (good, [b"events", b"5"])
    assert [each.key for each in passed] == [other.key]
    assert "digest" in passed[0].reason


def test_a_store_that_damages_it_is_told_and_costs_no_older_one(archive: Archive) -> None:
    made = [add(archive, n) for n in (1, 2)]

    class Damaging(Bucket):
        def get(self, key: str) -> bytes:
            return super().get(key)[:-1]

    archive.bucket.__class__ = Damaging
    with pytest.raises(Damaged):
        add(archive, 3)

    assert set(made) < set(snapshots.listed(archive, 0))


def test_pairs_stay_together_in_pieces() -> None:
    members = [b"%d" % n for n in range(10)]

    assert list(snapshots.pieces(Value(b"k", "zset", members), 2)) == [
        members[:4],
        members[4:8],
        members[8:],
    ]
    assert list(snapshots.pieces(Value(b"k", "list", members), 6)) == [members[:6], members[6:]]
