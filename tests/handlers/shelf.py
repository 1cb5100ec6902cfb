"""An archive for tests, and what puts a log into it without an archiver."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from archive.archive import Archive
from archive.bucket import Bucket, Place
from archive.s3 import Access
from archive.segments import Raw
from events.base import START, Position
from handlers.log import Log
from hordechat.process import Service


def place_in(server: Service) -> Place:
    """A bucket of its own on a store; it does not exist yet."""
    keys = server.settings
    access = Access(keys["S3_ACCESS_KEY"], keys["S3_SECRET_KEY"], "us-east-1")
    return Place(server.url, access, f"archive-{secrets.token_hex(6)}")


def archive_in(server: Service, partitions: int) -> Archive:
    """An empty archive on a store."""
    return Archive(Bucket(place_in(server)), partitions)


async def stream_of(log: Log, partition: int, after: Position = START) -> list[Raw]:
    """What the stream holds behind a position."""
    found = await log.read("XRANGE", log.keys.events(partition), f"({after}", "+")
    return [Raw(id_, fields) for id_, fields in found]


async def put_away(
    archive: Archive, log: Log, partition: int, *, leave: int = 0, pieces: int = 1
) -> Sequence[Raw]:
    """Archive what a stream holds and the archive does not, but for its last few, in so many
    segments; nothing is trimmed. Return what was left."""
    end = archive.end(partition)
    number = end.beyond if end else 1
    entries = await stream_of(log, partition, end.last if end else START)
    whole, left = entries[: len(entries) - leave], entries[len(entries) - leave :]
    size = max(1, -(-len(whole) // pieces))
    for first in range(0, len(whole), size):
        part = whole[first : first + size]
        archive.add(partition, number, part)
        number += len(part)
    return left
