"""Closed stretches of a partition's log: what their names say, and what is in them.

A name is all the index that there is: a listing of names tells which events an archive has, and
nothing has to agree with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from archive.sealed import Damaged, seal, unseal
from events.base import Position

_NAME = re.compile(
    r"log/(?P<partitions>[1-9]\d{0,3})/(?P<partition>\d{4})/(?P<last>\d{15}-\d{10})"
    r"_(?P<first>\d{15}-\d{10})_(?P<number>[1-9]\d*)_(?P<events>[1-9]\d*)_(?P<digest>[0-9a-f]{64})"
    r"\.msgpack\.gz"
)


class Raw(NamedTuple):
    """An entry as the log holds it."""

    id: bytes
    """Its position."""
    fields: Sequence[bytes]
    """Field, value, …"""

    @property
    def position(self) -> Position:
        """The same, to compare."""
        return Position.parse(self.id)


class Segment(NamedTuple):
    """An object that holds a stretch of a log, as its name tells it."""

    partitions: int
    """Of the deployment."""
    partition: int
    first: Position
    last: Position
    number: int
    """Of its first event, counted from 1 in its partition's log."""
    events: int
    """How many are in it."""
    digest: str
    """SHA-256 of the object, hexadecimal."""

    @property
    def beyond(self) -> int:
        """The number of the event that comes behind it."""
        return self.number + self.events

    @property
    def key(self) -> str:
        """The name: sorted by it, segments of a partition come in order of their last events."""
        return (
            f"{prefix(self.partitions, self.partition)}{padded(self.last)}_{padded(self.first)}"
            f"_{self.number}_{self.events}_{self.digest}.msgpack.gz"
        )

    @classmethod
    def parse(cls, key: str) -> Segment | None:
        """What a name of ours says; None for anybody else's."""
        found = _NAME.fullmatch(key)
        if found is None:
            return None
        return cls(
            int(found["partitions"]),
            int(found["partition"]),
            Position.parse(found["first"]),
            Position.parse(found["last"]),
            int(found["number"]),
            int(found["events"]),
            found["digest"],
        )


def prefix(partitions: int, partition: int) -> str:
    """What the names of a partition's segments begin with."""
    return f"log/{partitions}/{partition:04d}/"


def padded(position: Position) -> str:
    """A position whose order as text is its order."""
    return f"{position.ms:015d}-{position.seq:010d}"


def closed(
    partitions: int, partition: int, number: int, entries: Sequence[Raw]
) -> tuple[Segment, bytes]:
    """The segment that holds these entries (at least one), and its object. The same entries give
    the same bytes."""
    digest, body = seal([(each.id, list(each.fields)) for each in entries])
    segment = Segment(
        partitions,
        partition,
        entries[0].position,
        entries[-1].position,
        number,
        len(entries),
        digest,
    )
    return segment, body


def opened(segment: Segment, body: bytes) -> list[Raw]:
    """The entries of a segment, in order; raise Damaged where they are not those that it names."""
    entries = [Raw(*each) for each in unseal(segment.key, segment.digest, body, _decode)]
    positions = [each.position for each in entries]
    if (
        len(entries) != segment.events
        or (positions[0], positions[-1]) != (segment.first, segment.last)
        or any(one >= other for one, other in pairwise(positions))
    ):
        raise Damaged(f"{segment.key} holds other events")
    return entries


_decode = msgspec.msgpack.Decoder(list[tuple[bytes, list[bytes]]]).decode

__all__ = ["Damaged", "Raw", "Segment", "closed", "opened", "padded", "prefix"]
