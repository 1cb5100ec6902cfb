"""Folding a log into hot state by the very code that made it: rebuilding state, and the scratch
copy that verify needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import NamedTuple

from archive.segments import Raw
from events import codec
from events.base import START, Position, Recorded
from events.keys import kind_of
from events.touch import touched
from handlers.log import Log

PAGE = 500


class Entry(NamedTuple):
    """A log entry, decoded and as stored."""

    recorded: Recorded
    fields: Sequence[bytes]


async def read_log(log: Log, partition: int, after: Position = START) -> AsyncIterator[list[Entry]]:
    """Pages of a partition's log behind `after`, up to where it ends while reading.

    Raise UnknownType.
    """
    async for page in read_raw(log, partition, after):
        yield [Entry(codec.decode(partition, id_, fields), fields) for id_, fields in page]


async def read_raw(
    log: Log, partition: int, after: Position = START
) -> AsyncGenerator[list[Raw], None]:
    """The same as stored: for who shows events, whether this build knows them or not."""
    position = after
    while True:
        found = await log.read(
            "XRANGE", log.keys.events(partition), f"({position}", "+", "COUNT", PAGE
        )
        if not found:
            return
        page = [Raw(id_, fields) for id_, fields in found]
        position = page[-1].position
        yield page


async def fold(target: Log, entries: Sequence[Entry]) -> None:
    """Apply entries of one partition to `target`'s hot state, in order."""
    if target.redis.ordered:
        await asyncio.gather(*(replay(target, entry) for entry in entries))
    else:
        for entry in entries:
            await replay(target, entry)


async def replay(target: Log, entry: Entry) -> None:
    """Apply one entry to `target`'s hot state."""
    recorded = entry.recorded
    roles: list[str] = []
    lists: list[str] = []
    names: list[str] = []
    for role, keys in touched(target.keys, recorded.partition, recorded.event).items():
        if isinstance(keys, str):
            roles.append(role)
            names.append(keys)
        else:
            lists.append(role)
            roles += [role] * len(keys)
            names += keys
    await target.run(
        "replay_event",
        recorded.partition,
        {"roles": names},
        {
            "roles": ",".join(roles),
            "lists": ",".join(lists),
            "position": str(recorded.position),
            "event": list(entry.fields),
        },
    )


async def keys_of(log: Log, partition: int, *kinds: str) -> list[str]:
    """The stored keys of these kinds (a scan of the database: for operators, never on a request's
    path)."""
    found = {key async for key in log.redis.scan(log.keys.pattern(partition))}
    return sorted(key for key in found if kind_of(key) in kinds)


async def rebuild_state(log: Log) -> dict[int, int]:
    """Drop hot state and fold it again from the log; return events folded by partition.

    Every command is refused (503) meanwhile. The gate outlives a crash: run it again. Streams and
    content stay.
    """
    folded: dict[int, int] = {}
    await log.scripts.preload("replay_event")
    for partition in log.keys.all():
        await log.read("HSET", log.keys.control(partition), "gate", "rebuild")
    for partition in log.keys.all():
        doomed = await keys_of(log, partition, "state")
        for first in range(0, len(doomed), PAGE):
            await asyncio.gather(*(log.read("UNLINK", key) for key in doomed[first : first + PAGE]))
        folded[partition] = 0
        async for page in read_log(log, partition):
            await fold(log, page)
            folded[partition] += len(page)
    for partition in log.keys.all():
        await log.read("HDEL", log.keys.control(partition), "gate")
    return folded
