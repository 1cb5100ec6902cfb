"""How far everyone is with each partition's log, as operators read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from archive import snapshots
from archive.archive import Archive, ArchiveUnavailable
from events.base import START, Position
from handlers.log import Log
from handlers.stream import memory_of, stretch
from handlers.trimming import Held, fences_of, holders
from hordechat.archiving import Checkpoints


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who reads the log, or the archiver."""

    name: str
    position: str
    """The last event that it is done with."""
    seconds_behind: float
    """Behind the log's last event."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's log."""

    partition: int
    events: int
    """In Redis."""
    bytes: int
    """That they take there, about."""
    first: str
    last: str
    events_ever: int
    archived: Reader
    segments: int | None
    """In the archive, by their names; None where there is no archive, or it does not answer."""
    events_archived: int | None
    snapshot: str | None
    """Position of the newest one."""
    snapshot_events: int | None
    """How many were folded into it."""
    archive_error: str | None
    """Why the archive could not be asked."""
    readers: list[Reader]
    held_by: str
    """What keeps the oldest event of Redis there."""


async def status(
    log: Log, archive: Archive | None, checkpoints: Checkpoints, partition: int, retention: float
) -> Status:
    """Ask Redis, Postgres and the store, whose absence is told and not raised.

    retention  seconds that events stay in Redis; 0 where there is no room

    Raise RedisUnavailable, DatabaseUnavailable.
    """
    here = await stretch(log, partition)
    place = await checkpoints.place(partition)
    marks = await checkpoints.readers(partition)
    fences = await fences_of(log, partition)
    segments, archived, snapshot, error = await _archived(archive, partition)
    now = await log.now_ms(partition)

    def reader(name: str, position: Position) -> Reader:
        behind = max(0, here.last.ms - (here.first if position == START else position).ms) / 1000
        return Reader(name=name, position=str(position), seconds_behind=behind)

    readers = [reader(f"projector {name}", each.position) for name, each in sorted(marks.items())]
    readers += [
        reader(f"settler to partition {target}", fence) for target, fence in enumerate(fences)
    ]
    kept = Held("retention", Position(max(0, now - round(retention * 1000)), 0))
    held = [Held("archiver", place), kept, *holders(marks, fences, here.first)]
    return Status(
        partition=partition,
        events=here.events,
        bytes=await memory_of(log, partition),
        first=str(here.first),
        last=str(here.last),
        events_ever=here.added,
        archived=reader("archiver", place),
        segments=segments,
        events_archived=archived,
        snapshot=None if snapshot is None else str(snapshot.position),
        snapshot_events=None if snapshot is None else snapshot.events,
        archive_error=error,
        readers=readers,
        held_by=min(held, key=lambda each: each.position).by,
    )


async def _archived(
    archive: Archive | None, partition: int
) -> tuple[int | None, int | None, snapshots.Snapshot | None, str | None]:
    """Segments, events in them, the newest snapshot, and what the store said instead."""
    if archive is None:
        return None, None, None, "no object store: S3_ENDPOINT_URL is not set"

    def ask() -> tuple[int, int, snapshots.Snapshot | None]:
        segments, beyond = 0, 1
        for each in archive.listed(partition):
            segments, beyond = segments + 1, max(beyond, each.beyond)
        return segments, beyond - 1, next(iter(snapshots.listed(archive, partition)), None)

    try:
        return *(await asyncio.to_thread(ask)), None
    except ArchiveUnavailable as error:
        return None, None, None, str(error)


def told(status: Status) -> Iterator[str]:
    """The same in lines."""
    yield (
        f"partition {status.partition}: {status.events} of {status.events_ever} events in Redis, "
        f"{status.bytes / 2**20:.1f} MiB"
    )
    if status.events:
        yield f"  {_shown(status.first)} to {_shown(status.last)}"
    if status.archive_error is None:
        yield f"  archived: {status.events_archived} events in {status.segments} segments"
    else:
        yield f"  the archive cannot be asked: {status.archive_error}"
    if status.snapshot is not None:
        yield f"  newest snapshot: {_shown(status.snapshot)}, of {status.snapshot_events} events"
    for each in (status.archived, *status.readers):
        behind = f"{each.seconds_behind:.0f} s behind"
        yield f"  {each.name:<24} {_shown(each.position):<48} {behind}"
    yield f"  the oldest of them stay for: {status.held_by}"


def _shown(position: str) -> str:
    """A position with its time."""
    if position == str(START):
        return "the beginning"
    at = datetime.fromtimestamp(Position.parse(position).ms / 1000, UTC)
    return f"{position} ({at.isoformat(timespec='seconds')})"
