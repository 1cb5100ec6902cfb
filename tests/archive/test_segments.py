"""What an object of the archive holds has to be what its name says, whoever named it."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence

import msgspec
import pytest

from archive.segments import Damaged, Raw, Segment, closed, opened
from events.base import Position

ENTRIES = [Raw(f"{n}-0".encode(), [b"type", b"t", b"n", b"%d" % n]) for n in (5, 6, 8)]


def named(entries: Sequence[Raw], **fields: int | Position) -> tuple[Segment, bytes]:
    """An object with these entries, and a name with its digest that says something else."""
    body = gzip.compress(msgspec.msgpack.encode([(each.id, each.fields) for each in entries]))
    segment, _ = closed(1, 0, 3, ENTRIES)
    digest = hashlib.sha256(body).hexdigest()
    return segment._replace(digest=digest, **fields), body


def test_a_name_says_all_and_is_read_back() -> None:
    segment, body = closed(4, 2, 7, ENTRIES)

    assert Segment.parse(segment.key) == segment
    assert (segment.number, segment.events, segment.beyond) == (7, 3, 10)
    assert opened(segment, body) == ENTRIES
    assert closed(4, 2, 7, ENTRIES) == (segment, body)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (ENTRIES, {"events": 2}),
        (ENTRIES, {"first": Position(4, 0)}),
        (ENTRIES, {"last": Position(9, 0)}),
        ([ENTRIES[0], ENTRIES[0], ENTRIES[2]], {}),
        ([ENTRIES[0], Raw(b"9-0", []), ENTRIES[2]], {}),
        ([], {}),
    ],
    ids=["count", "first", "last", "twice", "order", "nothing"],
)
def test_what_a_name_does_not_say_is_damage(
    entries: Sequence[Raw], said: dict[str, int | Position]
) -> None:
    segment, body = named(entries, **said)

    with pytest.raises(Damaged, match="other events"):
        opened(segment, body)


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_what_was_cut_off_is_damage_even_where_the_digest_fits(cut: int) -> None:
    _, body = closed(1, 0, 3, ENTRIES)
    half = body[:cut]
    segment, _ = closed(1, 0, 3, ENTRIES)

    with pytest.raises(Damaged, match="digest"):
        opened(segment, half)
    with pytest.raises(Damaged):
        opened(segment._replace(digest=hashlib.sha256(half).hexdigest()), half)
