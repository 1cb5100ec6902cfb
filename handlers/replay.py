"""Reading a log, archive and stream as one, and folding it into hot state by the very code that
made that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from archive.archive import HistoryLost
from archive.segments import Raw
from events import codec
from events.base import START, Position, Recorded
from events.keys import kind_of
from events.touch import touched
from handlers.log import Log
from handlers.stream import holds, stretch
from handlers.threads import Threads

PAGE = 500
RUN = 100
"""Events that one script folds: a script costs as much to begin as an event costs."""


class Entry(NamedTuple):
    """A log entry, decoded and as stored."""

    recorded: Recorded
    fields: Sequence[bytes]


async def read_log(
    log: Log, partition: int, after: Position = START
) -> AsyncGenerator[list[Entry], None]:
    """Pages of a partition's log behind `after` (an event of it, or START), up to where it ends
    while reading: the archive's where the stream was trimmed, then the stream's.

    Raise UnknownType, HistoryLost where what comes next is in neither (once all that the archive
    has was told, where Redis lost its log), Damaged, ArchiveUnavailable, RedisUnavailable.
    """
    async with aclosing(read_raw(log, partition, after)) as pages:
        async for page in pages:
            yield [Entry(codec.decode(partition, id_, fields), fields) for id_, fields in page]


async def read_raw(
    log: Log, partition: int, after: Position = START
) -> AsyncGenerator[list[Raw], None]:
    """The same as stored: for who shows events, whether this build knows them or not."""
    threads = Threads(1, waiting=1, name="archive")
    try:
        position = after
        while True:
            page = await _streamed(log, threads, partition, position, told=position != after)
            if page is None:
                behind = position
                async for archived in _archived(log, threads, partition, position):
                    yield archived
                    position = archived[-1].position
                if position == behind:
                    stream = log.keys.events(partition)
                    raise HistoryLost(f"neither {stream} nor the archive goes on at {position}")
            elif page:
                yield page
                position = page[-1].position
            else:
                return
    finally:
        threads.close()


async def _streamed(
    log: Log, threads: Threads, partition: int, position: Position, *, told: bool
) -> list[Raw] | None:
    """A page of the stream; None where it does not hold all that comes behind `position`.

    What proves that it does is read behind the page: it may be trimmed at any time.
    told  that the event there was read: if it is gone, so is what was behind it
    """
    stream = log.keys.events(partition)
    found = await log.read("XRANGE", stream, str(position), "+", "COUNT", PAGE + 1)
    page = [Raw(*each) for each in found]
    if page and page[0].position == position:
        return page[1:]
    if told:
        return None
    held = await stretch(log, partition)
    if held.events and held.first <= position:
        return page[:PAGE]
    if held.whole and await _begins_with(log, threads, partition, position):
        return page[:PAGE]
    return None


async def _begins_with(log: Log, threads: Threads, partition: int, position: Position) -> bool:
    """Whether a stream that was never trimmed has what the archive has behind `position`: one that
    was begun anew, after Redis lost all, has not."""
    if log.archive is None:
        return True
    archived = log.archive.listed(partition, position)
    first = await threads.run(lambda: next(archived, None))
    if first is None:
        return True
    return await holds(log, partition, first.first)


async def _archived(
    log: Log, threads: Threads, partition: int, position: Position
) -> AsyncIterator[list[Raw]]:
    """What the archive has behind a position: a segment at a time, told in pages."""
    if log.archive is None:
        return
    segments = log.archive.read(partition, position)
    while entries := await threads.run(lambda: next(segments, None)):
        for first in range(0, len(entries), PAGE):
            yield entries[first : first + PAGE]
        del entries  # or it would be held while the next one is opened


async def fold(target: Log, entries: Sequence[Entry]) -> None:
    """Apply entries of one partition to `target`'s hot state, in order."""
    runs = [entries[first : first + RUN] for first in range(0, len(entries), RUN)]
    if target.redis.ordered:
        await asyncio.gather(*(_replay(target, run) for run in runs))
    else:
        for run in runs:
            await _replay(target, run)


async def replay(target: Log, entry: Entry) -> None:
    """Apply one entry to `target`'s hot state."""
    await _replay(target, (entry,))


async def _replay(target: Log, run: Sequence[Entry]) -> None:
    names: list[str] = []
    flat: list[str | bytes] = []
    for recorded, fields in run:
        roles: list[str] = []
        lists: list[str] = []
        for role, keys in touched(target.keys, recorded.partition, recorded.event).items():
            if isinstance(keys, str):
                roles.append(role)
                names.append(keys)
            else:
                lists.append(role)
                roles += [role] * len(keys)
                names += keys
        flat += (",".join(roles), ",".join(lists), str(recorded.position), str(len(fields)))
        flat += fields
    partition = run[0].recorded.partition
    await target.run("replay_event", partition, {"roles": names}, {"run": flat})


async def keys_of(log: Log, partition: int, *kinds: str) -> list[str]:
    """The stored keys of these kinds (a scan of the database: for operators, never on a request's
    path)."""
    found = {key async for key in log.redis.scan(log.keys.pattern(partition))}
    return sorted(key for key in found if kind_of(key) in kinds)
