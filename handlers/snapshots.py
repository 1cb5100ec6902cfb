"""Snapshots of hot state: taken by folding the archive elsewhere, and put back in its place.

A snapshot is never read from the hot state at work: it is what the log comes to, so it can neither
keep a fault of that state nor be of no one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import structlog

from archive import snapshots
from archive.archive import Archive
from archive.snapshots import Kind, Snapshot, Value, pieces
from events import codec
from events.base import START, Position
from handlers.log import Log
from handlers.replay import PAGE, Entry, fold, keys_of
from handlers.threads import Threads
from lua.link import Argument

logger = structlog.get_logger()

T = TypeVar("T")

MEMBERS = 500
"""That one command writes: others on the server get their turn in between."""


class Base(NamedTuple):
    """From where a fold goes on."""

    position: Position
    """START: from the beginning."""
    events: int
    """How many came before."""


async def put_newest(archive: Archive | None, target: Log, partition: int) -> Base:
    """Put the newest good snapshot of a partition into `target`, which holds no state of it.

    Those that cannot be used are said and passed over. Raise ArchiveUnavailable, RedisUnavailable.
    """
    if archive is None:
        return Base(START, 0)
    with _thread() as thread:
        found, values, bad = await thread.run(lambda: snapshots.newest(archive, partition))
    for each in bad:
        logger.error("snapshot_damaged", partition=partition, key=each.key, reason=each.reason)
    if found is None:
        return Base(START, 0)
    await write(target, values)
    return Base(found.position, found.events)


async def take(archive: Archive, scratch: Log, partition: int) -> Snapshot | None:
    """Fold what was archived behind the newest snapshot, and store what comes of it.

    None where nothing was. `scratch` is of nobody else; it keeps issued order, and holds the fold
    afterwards. Raise ArchiveUnavailable, Damaged, Gap, UnknownType, RedisUnavailable.
    """
    await scratch.scripts.preload("replay_event")
    await drop(scratch, partition)
    position, events = before = await put_newest(archive, scratch, partition)
    async for page in _archived(archive, partition, position):
        await fold(scratch, page)
        position, events = page[-1].recorded.position, events + len(page)
    if position == before.position:
        return None
    values = await read(scratch, partition)
    with _thread() as thread:
        taken = await thread.run(
            lambda: snapshots.add(archive, partition, position, events, values)
        )
    logger.info("snapshot_taken", partition=partition, position=str(position), events=events)
    return taken


async def _archived(
    archive: Archive, partition: int, after: Position
) -> AsyncIterator[Sequence[Entry]]:
    with _thread() as thread:
        segments = archive.read(partition, after)
        while segment := await thread.run(lambda: next(segments, None)):
            for first in range(0, len(segment), PAGE):
                yield [
                    Entry(codec.decode(partition, each.id, each.fields), each.fields)
                    for each in segment[first : first + PAGE]
                ]


@contextmanager
def _thread() -> Iterator[Threads]:
    """For calls of the archive: a store that hangs must not hold up our end."""
    threads = Threads(1, waiting=1, name="snapshots")  # one may still be on its way out
    try:
        yield threads
    finally:
        threads.close()


async def drop(log: Log, partition: int) -> None:
    """Nothing is left of a partition's state."""
    doomed = await keys_of(log, partition, "state")
    for some in _parts(doomed):
        await asyncio.gather(*(log.read("UNLINK", key) for key in some))


async def read(log: Log, partition: int) -> list[Value]:
    """All of a partition's state. Nothing else may change it meanwhile."""
    found: list[Value] = []
    for some in _parts(await keys_of(log, partition, "state")):
        found += await asyncio.gather(*(_read(log, key) for key in some))
    return found


async def write(log: Log, values: Iterable[Value]) -> None:
    """Put values where there is nothing yet, in commands of bounded size."""
    for some in _parts(list(values)):
        await asyncio.gather(*(_write(log, value) for value in some))


def _parts(whole: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(whole), PAGE):
        yield whole[first : first + PAGE]


async def _read(log: Log, key: str) -> Value:
    kind: Kind
    members: list[bytes]
    match kind := (await log.read("TYPE", key)).decode():
        case "hash":
            flat = await log.read("HGETALL", key)
            pairs = sorted(zip(flat[::2], flat[1::2], strict=True))
            members = [each for pair in pairs for each in pair]
        case "zset":
            members = await log.read("ZRANGE", key, 0, -1, "WITHSCORES")
        case "set":
            members = sorted(await log.read("SMEMBERS", key))
        case "list":
            members = await log.read("LRANGE", key, 0, -1)
        case _:
            members = [await log.read("GET", key)]
    return Value(key.encode(), kind, members)


async def _write(log: Log, value: Value) -> None:
    for members in pieces(value, MEMBERS):
        await log.read(*_command(value, members))


def _command(value: Value, members: list[bytes]) -> tuple[Argument, ...]:
    match value.kind:
        case "hash":
            return ("HSET", value.key, *members)
        case "zset":
            scored = zip(members[1::2], members[::2], strict=True)
            return ("ZADD", value.key, *(each for pair in scored for each in pair))
        case "set":
            return ("SADD", value.key, *members)
        case "list":
            return ("RPUSH", value.key, *members)
        case "string":
            return ("SET", value.key, *members)
