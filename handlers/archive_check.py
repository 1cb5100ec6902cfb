"""Whether the archive is the log: each segment what its name says, none missing, the stream next to
it, and where both have an event the same one.

It works beside an archiver. What is taken off the stream while it is read is not compared, and
segments that come meanwhile are read as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from archive.archive import Archive
from archive.bucket import ArchiveMissing
from archive.segments import Damaged, Raw, Segment, opened
from events.base import START, Position
from handlers.log import Log
from handlers.stream import Stretch, holds, stretch

PAGE = 1000


class Report(msgspec.Struct, kw_only=True):
    """What was found of a partition."""

    partition: int
    segments: int = 0
    overlapping: int = 0
    """Of these: hold events that others have as well, which harms nobody."""
    archived: int = 0
    """Events in the archive, each counted once."""
    in_stream: int = 0
    """Events in Redis."""
    in_both: int = 0
    """Of these: archived, and compared."""
    ever: int = 0
    """Events that Redis was given since the log began."""
    differences: list[str] = msgspec.field(default_factory=list)


async def check(log: Log, archive: Archive, partition: int) -> Report:
    """Read all that is archived of a partition. Raise ArchiveUnavailable, RedisUnavailable."""
    return await _Check(log, archive, partition).run()


class _Check:
    def __init__(self, log: Log, archive: Archive, partition: int) -> None:
        self._log = log
        self._archive = archive
        self._partition = partition
        self._report = Report(partition=partition)
        self._reached = START
        """The last archived event that was seen."""
        self._wanted = 1
        """Number of the one behind it."""
        self._last: tuple[int, Sequence[Raw]] = (1, ())
        """The segment before: number of its first event, and its events."""

    async def run(self) -> Report:
        report, seen, apart = self._report, set[str](), ""
        while True:
            fresh = [each for each in await self._listed() if each.key not in seen]
            fresh.sort(key=lambda each: (each.number, each.beyond))
            if apart and not fresh:
                self._differs(apart)
                break
            for segment in fresh:
                seen.add(segment.key)
                await self._take(segment)
            held = await stretch(self._log, self._partition)
            report.archived = self._wanted - 1
            report.in_stream, report.ever = held.events, held.added
            if await self._is_joined(held):
                break
            # Or it was trimmed just now, behind what was archived since we looked.
            apart = self._unjoined(held)
        return report

    async def _listed(self) -> list[Segment]:
        since = self._reached
        return await asyncio.to_thread(lambda: list(self._archive.listed(self._partition, since)))

    async def _take(self, segment: Segment) -> None:
        try:
            body = await asyncio.to_thread(self._archive.bucket.get, segment.key)
            entries = await asyncio.to_thread(opened, segment, body)
        except ArchiveMissing:
            if segment in await self._listed():
                self._differs(f"{segment.key} is listed, and is not there")
            return  # of two that overlapped one was deleted
        except Damaged as error:
            self._differs(str(error))
            entries = []
        self._report.segments += 1
        self._follow(segment, entries)
        await self._compare(segment, entries)

    def _follow(self, segment: Segment, entries: Sequence[Raw]) -> None:
        """Whether it goes on where the one before ended."""
        if segment.number > self._wanted:
            missing = segment.number - self._wanted
            self._differs(f"{missing} events from number {self._wanted} on are missing")
        elif segment.number < self._wanted:
            self._report.overlapping += 1
            first, before = self._last
            number = max(first, segment.number)
            common = min(first + len(before), segment.number + len(entries)) - number
            one = before[number - first :][: max(0, common)]
            other = entries[number - segment.number :][: max(0, common)]
            if list(one) != list(other):
                self._differs(f"{segment.key} has other events than the one before")
        elif segment.first <= self._reached:
            self._differs(f"{segment.key} begins in front of where the one before ends")
        if segment.beyond > self._wanted:
            self._wanted, self._reached = segment.beyond, segment.last
            self._last = (segment.number, entries)

    async def _compare(self, segment: Segment, entries: Sequence[Raw]) -> None:
        """With what the stream has of it: by position, by number and by what is in them."""
        if not entries or segment.last < (await stretch(self._log, self._partition)).first:
            return
        found = await self._streamed(segment)
        held = await stretch(self._log, self._partition)  # it may have been trimmed meanwhile
        if not held.events:
            return
        here = [each for each in entries if each.position >= held.first]
        there = [each for each in found if each.position >= held.first]
        self._report.in_both += len(here)
        if here != there:
            differ = {each.position for each in here} ^ {each.position for each in there}
            at = min(differ) if differ else _first_other(here, there)
            self._differs(f"{segment.key} and the stream differ at {at}")
        elif len(here) < len(entries) or segment.first == held.first:
            number = segment.beyond - len(here)
            counted = held.added - held.events + 1
            if here and number != counted:
                self._differs(
                    f"{held.first} is archived as event {number}, Redis counts it as {counted}"
                )

    async def _streamed(self, segment: Segment) -> list[Raw]:
        key, after, found = self._log.keys.events(self._partition), segment.first, list[Raw]()
        begin = str(after)
        while page := await self._log.read("XRANGE", key, begin, str(segment.last), "COUNT", PAGE):
            found += [Raw(*each) for each in page]
            begin = f"({found[-1].position}"
        return found

    async def _is_joined(self, held: Stretch) -> bool:
        if self._reached == START:
            return held.whole
        return await holds(self._log, self._partition, self._reached)

    def _unjoined(self, held: Stretch) -> str:
        if self._reached == START:
            return f"nothing is archived, and {held.added - held.events} events were trimmed"
        if not held.events:
            return f"Redis lost the log: the archive ends at {self._reached}"
        if held.first > self._reached:
            return (
                f"the archive ends at {self._reached}, the stream begins at {held.first}: "
                f"{held.added - held.events + 1 - self._wanted} events between them are nowhere"
            )
        return f"the archive ends at {self._reached}, and the stream does not hold that event"

    def _differs(self, what: str) -> None:
        self._report.differences.append(what)


def _first_other(here: Sequence[Raw], there: Sequence[Raw]) -> Position:
    return next(one.position for one, other in zip(here, there, strict=True) if one != other)
