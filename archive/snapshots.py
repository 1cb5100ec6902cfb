"""Snapshots: all that a partition's hot state is behind an event of the archive, in one object.

As with segments, a name tells what is in it, and a listing of names is all the index that there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from archive.archive import Archive
from archive.bucket import ArchiveMissing
from archive.sealed import Damaged, seal, unseal
from archive.segments import padded
from events.base import Position

_NAME = re.compile(
    r"state/(?P<partitions>[1-9]\d{0,3})/(?P<partition>\d{4})/(?P<position>\d{15}-\d{10})"
    r"_(?P<events>[1-9]\d*)_(?P<digest>[0-9a-f]{64})\.msgpack\.gz"
)
KEPT = 2
"""How many of a partition are kept: the newest may turn out to be damaged."""

Kind = Literal["hash", "zset", "set", "list", "string"]


class Value(NamedTuple):
    """What a key holds, whatever Redis keeps it in."""

    key: bytes
    kind: Kind
    members: Sequence[bytes]
    """hash: field, value, … by field; zset: member, score, … by score; set: sorted; list: in order;
    string: the one."""


class Snapshot(NamedTuple):
    """An object that holds a partition's state, as its name tells it."""

    partitions: int
    """Of the deployment."""
    partition: int
    position: Position
    """Of the last event that was folded."""
    events: int
    """How many were folded, from the first of the log."""
    digest: str
    """SHA-256 of the object, hexadecimal."""

    @property
    def key(self) -> str:
        """The name: sorted by it, snapshots of a partition come in the order of their positions."""
        return (
            f"{_prefix(self.partitions, self.partition)}{padded(self.position)}_{self.events}"
            f"_{self.digest}.msgpack.gz"
        )

    @classmethod
    def parse(cls, key: str) -> Snapshot | None:
        """What a name of ours says; None for anybody else's."""
        found = _NAME.fullmatch(key)
        if found is None:
            return None
        return cls(
            int(found["partitions"]),
            int(found["partition"]),
            Position.parse(found["position"]),
            int(found["events"]),
            found["digest"],
        )


def _prefix(partitions: int, partition: int) -> str:
    return f"state/{partitions}/{partition:04d}/"


def listed(archive: Archive, partition: int) -> list[Snapshot]:
    """Every snapshot of a partition, the newest first. Raise ArchiveUnavailable."""
    names = archive.bucket.names(_prefix(archive.partitions, partition))
    return [found for name in names if (found := Snapshot.parse(name))][::-1]


class PassedOver(NamedTuple):
    """A snapshot that cannot be used."""

    key: str
    reason: str


def newest(
    archive: Archive, partition: int
) -> tuple[Snapshot | None, list[Value], list[PassedOver]]:
    """The newest good snapshot of a partition and what is in it; None and nothing where there is
    none. Raise ArchiveUnavailable.

    The third: those that were passed over on the way, for being damaged or taken away meanwhile.
    """
    bad: list[PassedOver] = []
    for snapshot in listed(archive, partition):
        try:
            body = archive.bucket.get(snapshot.key)
            return snapshot, unseal(snapshot.key, snapshot.digest, body, _decode), bad
        except (Damaged, ArchiveMissing) as error:
            bad.append(PassedOver(snapshot.key, str(error)))
    return None, [], bad


def add(
    archive: Archive, partition: int, position: Position, events: int, values: Iterable[Value]
) -> Snapshot:
    """Store a snapshot and read it back; delete those that it makes one too many.

    Raise ArchiveUnavailable, Damaged.
    """
    digest, body = seal(sorted(values))
    snapshot = Snapshot(archive.partitions, partition, position, events, digest)
    archive.bucket.put(snapshot.key, body)
    if archive.bucket.get(snapshot.key) != body:
        raise Damaged(f"{snapshot.key} is not what was stored")
    archive.bucket.delete([each.key for each in listed(archive, partition)[KEPT:]])
    return snapshot


def pieces(value: Value, most: int) -> Iterator[list[bytes]]:
    """Its members in parts of at most `most` of them; pairs stay together."""
    width = 2 if value.kind in ("hash", "zset") else 1
    for first in range(0, len(value.members), most * width):
        yield list(value.members[first : first + most * width])


_decode = msgspec.msgpack.Decoder(list[Value]).decode
