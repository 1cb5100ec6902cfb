"""What happened in some span of time, of several partitions in one order: archive, then stream.

Between partitions there is no order but that of their clocks: events of one millisecond come by
their positions, then by partition.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

from archive.segments import Raw
from events.base import START, Position
from handlers.log import Log
from handlers.replay import read_raw


class Happened(NamedTuple):
    """An event as its log holds it. Sorted, they come in their order."""

    position: Position
    partition: int
    entry: Raw


async def history(
    log: Log, partitions: Sequence[int], since: Position = START, until: Position | None = None
) -> AsyncGenerator[list[Happened], None]:
    """Pages of the events at `since` or behind it and in front of `until`, up to what is there now.

    Of each partition no more is held than what one read of its log brings: a page of the stream, or
    a segment of the archive. Raise what `read_raw` and `Archive` raise.
    """
    async with AsyncExitStack() as stack:
        spans = [
            await stack.enter_async_context(aclosing(_span(log, partition, since, until)))
            for partition in partitions
        ]
        waiting: dict[int, list[Happened]] = {}
        ended: set[int] = set()
        while True:
            empty = [n for n in range(len(spans)) if n not in ended and n not in waiting]
            read = (anext(spans[n], None) for n in empty)
            # All have to come to an end, or none of them could be closed.
            found = await asyncio.gather(*read, return_exceptions=True)
            for n, page in zip(empty, found, strict=True):
                if isinstance(page, BaseException):
                    raise page
                if page is None:
                    ended.add(n)
                else:
                    waiting[n] = page
            if not waiting:
                return
            # Nothing that is not read yet comes in front of the earliest page's end.
            bound = min(page[-1] for page in waiting.values())
            told: list[Happened] = []
            for n, page in list(waiting.items()):
                if page[-1] <= bound:
                    told += waiting.pop(n)
                else:
                    ready = bisect_left(page, bound)
                    told += page[:ready]
                    waiting[n] = page[ready:]
            told.sort()
            yield told


async def _span(
    log: Log, partition: int, since: Position, until: Position | None
) -> AsyncGenerator[list[Happened], None]:
    end = until
    head = await log.head(partition)
    if head != START:  # else all that there is may be in the archive
        behind = Position(head.ms, head.seq + 1)
        end = behind if until is None else min(until, behind)
    after = await _before(log, partition, since)
    async with aclosing(read_raw(log, partition, after)) as pages:
        async for page in pages:
            found = [Happened(each.position, partition, each) for each in page]
            last = found[-1].position
            if found[0].position < since:
                found = [each for each in found if each.position >= since]
            if end is not None and last >= end:
                found = [each for each in found if each.position < end]
            if found:
                yield found
            if end is not None and last >= end:
                return


async def _before(log: Log, partition: int, since: Position) -> Position:
    """The event to read behind, so that nothing at `since` is missed and little is read in vain."""
    if since == START:
        return START
    last = await log.read("XREVRANGE", log.keys.events(partition), f"({since}", "-", "COUNT", 1)
    if last:
        return Position.parse(last[0][0])
    if log.archive is None:
        return START
    return await asyncio.to_thread(log.archive.before, partition, since)
