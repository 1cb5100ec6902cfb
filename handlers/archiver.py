"""The archiver of one partition: its log goes into the archive segment by segment, and leaves Redis
when it is archived, read and old.

Its place is a checkpoint in Postgres, moved by compare-and-set when a segment was stored and read
back. A kill between the two leaves an object that nobody counts on: whoever begins takes over what
goes on exactly where the checkpoint stands, and deletes what overlaps. So each event is in one
object, and nothing is taken from Redis in front of that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import structlog

from archive.archive import Archive, ArchiveUnavailable, Damaged, Gap, WrongArchive
from archive.bucket import ArchiveMissing
from archive.chain import following, leading_to
from archive.segments import Raw, Segment, opened
from events.base import START, Position
from handlers.errors import Rebuilding
from handlers.log import Log
from handlers.stream import Stretch, holds, stretch
from handlers.threads import Busy, Threads
from handlers.trimming import Readers, Trimming

logger = structlog.get_logger()

T = TypeVar("T")

SETTLED_MS = 2000
"""The newest events are not archived yet: a Redis that comes back without its last second must not
have lost what the archive has."""

PAGE = 500

STORE_SECONDS = 120.0
"""What a call may take in all, where each of its answers comes in time."""

WINDOW_MS = 15 * 60_000
"""How far in front of the checkpoint an object may end that an archiver which was killed left."""

SWEEP_SECONDS = 60.0
"""An upload of which nobody heard any more has landed by then, or never will."""


class Stuck(Exception):
    """The archive and the log do not agree: nothing is archived or trimmed until somebody looked
    at it."""

    word: str
    """What the log line is called."""


class ArchiveAhead(Stuck):
    """The archive has events that Redis lost: run `hordechat rebuild state`."""

    word = "archive_ahead"


class LogTrimmed(Stuck):
    """Events were taken from Redis that the archive does not have."""

    word = "log_trimmed_ahead"


class ArchiveForeign(Stuck):
    """The archive is of a deployment with another number of partitions: HORDE_ARCHIVE_BUCKET names
    the wrong bucket."""

    word = "archive_foreign"


class ArchiveBroken(Stuck):
    """Events that were archived are missing or damaged in the archive."""

    word = "archive_broken"


class ArchiveShared(Stuck):
    """Another log is archived under the same names: two deployments share HORDE_ARCHIVE_BUCKET, or
    did."""

    word = "archive_shared"


class Interrupted(Exception):
    """Another archiver is at work, or the log is not what it was: begin anew."""


class Books(Readers, Protocol):
    """What Postgres knows of a partition's log."""

    async def place(self, partition: int) -> Position:
        """Up to where it is archived; START where that is not known."""

    async def move(self, partition: int, before: Position, after: Position) -> bool:
        """Archived up to `after`, if that was `before`; whether it was."""


class Bounds(NamedTuple):
    """When a segment is closed, and how long events stay."""

    segment_bytes: int
    segment_seconds: float
    retention: float
    """Seconds that events stay in Redis, where there is room."""


def size_of(entry: Raw) -> int:
    """Bytes of an entry, as segments count them."""
    return len(entry.id) + sum(map(len, entry.fields))


class Archiver:
    """Archives one partition's log and trims it.

    threads        for calls to the store, which may hang
    sweep_seconds  between two looks for objects that overlap, while segments are closed
    """

    def __init__(
        self,
        log: Log,
        archive: Archive,
        books: Books,
        threads: Threads,
        bounds: Bounds,
        partition: int,
        *,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self._log = log
        self._archive = archive
        self._books = books
        self._threads = threads
        self._bounds = bounds
        self._partition = partition
        self._key = log.keys.events(partition)
        self._sweep_seconds = sweep_seconds
        self._sound = False
        self._reached, self._number = START, 1
        self._pending: deque[Raw] = deque()
        self._bytes = 0
        self._swept_at = 0.0
        self._unswept = False
        self._sure: deque[Position] = deque(maxlen=2)
        self._trimming = Trimming(log, books, bounds.retention, partition)

    @property
    def reached(self) -> Position:
        """Up to where the log is archived."""
        return self._reached

    @property
    def archived(self) -> int:
        """How many events that are."""
        return self._number - 1

    async def step(self, *, pressed: bool = False) -> bool:
        """One pass: close a segment where it is time, trim; whether more waits already.

        `pressed`: the logs take more memory than they should. After anything that was raised the
        next pass begins anew: with the checkpoint, and what the archive has. Raise Stuck,
        Interrupted; ArchiveUnavailable, RedisUnavailable, Rebuilding, and what the books raise.
        """
        if await self._log.read("HGET", self._log.keys.control(self._partition), "gate"):
            self._sound = False  # the stream may be another one afterwards
            raise Rebuilding
        if not self._sound:
            await self._begin()
        self._sound = False
        now = await self._log.now_ms(self._partition)
        await self._fill(now - SETTLED_MS)
        full = self._bytes >= self._bounds.segment_bytes
        if (
            full
            or self._ripe(now)
            or (pressed and self._pending and await self._trimming.frees(self._reached))
        ):
            await self._close()
        await self._trimming.trim(self._reached, now, pressed=pressed)
        await self._sweep_in_time()
        self._sound = True
        return full

    # where to begin

    async def _begin(self) -> None:
        self._pending.clear()
        self._bytes = 0
        try:
            await self._store(self._archive.check)
        except WrongArchive as error:
            raise ArchiveForeign(str(error)) from error
        place = await self._books.place(self._partition)
        try:
            found, end, number = await self._agreed(place)
        except Stuck as error:
            if await self._books.place(self._partition) != place:
                raise Interrupted from error  # another was at it meanwhile, and trimmed
            raise
        if end != place:
            if not await self._books.move(self._partition, place, end):
                raise Interrupted
            logger.info("archive_adopted", partition=self._partition, position=str(end))
        self._reached, self._number = end, number
        self._sure.clear()
        self._sure.append(_earlier(end))
        await self._sweep(found)
        self._unswept = True

    async def _agreed(self, place: Position) -> tuple[list[Segment], Position, int]:
        """What the archive has there, where what it and the log agree on ends, and the number of
        the event that comes behind. Raise Stuck."""
        here = await stretch(self._log, self._partition)
        try:
            found, way, number = await self._known(place, here)
        except Gap as error:
            raise ArchiveBroken(str(error)) from error
        way = await self._true(way, place, here)
        end, number = (way[-1].last, way[-1].beyond) if way else (place, number)
        await self._check_joins(end, here)
        if end < place:
            raise ArchiveBroken(f"it ends at {end}, and was archived up to {place}")
        return found, end, number

    async def _known(
        self, place: Position, here: Stretch
    ) -> tuple[list[Segment], list[Segment], int]:
        """What the archive has there, what of it goes on behind `place`, and the number of the
        event that comes behind `place`."""
        if place != START:
            found = await self._listed(_earlier(place))
            if numbers := {each.beyond for each in found if each.last == place}:
                number = max(numbers)
                beyond = (each for each in found if each.last > place)
                way = following(beyond, number, place)
                if here.first <= (way[-1].last if way else place):
                    return found, way, number
        # The checkpoint is lost, or of another time: the archive says itself how far it goes.
        end = await self._store(partial(self._archive.end, self._partition))
        if end is None:
            if place != START:
                raise ArchiveBroken(f"nothing of what was archived up to {place} is there")
            return [], [], 1
        since = _earlier(end.last)
        if here.first != START:
            since = min(since, here.first)
        found = await self._listed(since)
        way = leading_to(found, end.last, end.beyond)
        return found, way, way[0].number

    async def _true(self, way: Sequence[Segment], place: Position, here: Stretch) -> list[Segment]:
        """As much of the way as is whole, and what the log has."""
        taken: list[Segment] = []
        for segment in way:
            # What the log does not hold any more was archived for good before it was trimmed.
            if segment.last > place and segment.last >= here.first != START:
                try:
                    entries = await self._read(segment)
                except (Damaged, ArchiveMissing) as error:
                    counted_on = place == START and not taken and segment.number > 1
                    if counted_on or segment.first < here.first:
                        raise ArchiveBroken(str(error)) from error
                    return taken
                await self._check_same(segment, entries)
            taken.append(segment)
        return taken

    async def _check_same(self, segment: Segment, entries: Sequence[Raw]) -> None:
        """Raise ArchiveAhead where the log has other events there, as far as it goes back."""
        held: list[Raw] = []
        start = str(segment.first)
        while page := await self._log.read(
            "XRANGE", self._key, start, str(segment.last), "COUNT", PAGE
        ):
            held += [Raw(*each) for each in page]
            start = f"({page[-1][0].decode()}"
        trimmed = len(entries) - len(held)
        first = (await stretch(self._log, self._partition)).first
        if held != entries[trimmed:] or (trimmed > 0 and first <= entries[trimmed - 1].position):
            raise ArchiveAhead(f"{segment.key} holds other events than the log")

    async def _check_joins(self, end: Position, here: Stretch) -> None:
        """Raise Stuck unless the log goes on where the archive ends."""
        if end == START:
            if not here.whole:
                raise LogTrimmed(f"the log begins at {here.first}, and nothing is archived")
        elif not await holds(self._log, self._partition, end):
            if here.first > end:
                raise LogTrimmed(f"the archive ends at {end}, the log begins at {here.first}")
            told = f"the archive ends at {end}"
            raise ArchiveAhead(f"{told}, the log at {here.last}" if here.last < end else told)

    # segments

    async def _fill(self, horizon_ms: int) -> None:
        """Read what is settled, a segment's worth at most. Raise Interrupted where the log does not
        hold what was read last."""
        while self._bytes < self._bounds.segment_bytes:
            read = self._pending[-1].position if self._pending else self._reached
            if horizon_ms < read.ms:
                return
            start = "-" if read == START else str(read)
            page = await self._log.read("XRANGE", self._key, start, horizon_ms, "COUNT", PAGE + 1)
            if read == START:
                if not (await stretch(self._log, self._partition)).whole:
                    raise Interrupted
            elif not page or Position.parse(page[0][0]) != read:
                raise Interrupted
            for id_, fields in page if read == START else page[1:]:
                entry = Raw(id_, fields)
                self._pending.append(entry)
                self._bytes += size_of(entry)
            if len(page) <= PAGE:
                return

    def _ripe(self, now: int) -> bool:
        if not self._pending:
            return False
        return now - self._pending[0].position.ms >= self._bounds.segment_seconds * 1000

    async def _close(self) -> None:
        entries = list(self._cut())
        segment = await self._store(
            partial(self._archive.add, self._partition, self._number, entries)
        )
        if not await self._books.move(self._partition, self._reached, segment.last):
            raise Interrupted
        self._reached, self._number = segment.last, segment.beyond
        for entry in entries:
            self._bytes -= size_of(entry)
            self._pending.popleft()
        self._unswept = True
        logger.info(
            "archived",
            partition=self._partition,
            position=str(segment.last),
            number=segment.number,
            events=segment.events,
        )

    def _cut(self) -> Iterator[Raw]:
        """The first of what is pending that come to a segment."""
        total = 0
        for entry in self._pending:
            yield entry
            total += size_of(entry)
            if total >= self._bounds.segment_bytes:
                return

    # objects that nobody counts on

    async def _sweep_in_time(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._unswept and now - self._swept_at >= self._sweep_seconds:
            await self._sweep(await self._listed(self._sure[0]))
            self._unswept = False

    async def _sweep(self, found: Sequence[Segment]) -> None:
        """Delete what overlaps the archive's way up to here: of an archiver that was killed, or
        came second. What covers it is read before, and has to be the same."""
        self._swept_at = asyncio.get_running_loop().time()
        self._sure.append(self._reached)
        way = leading_to(found, self._reached, self._number)
        begin = way[0].number if way else self._number
        left = [each for each in found if begin <= each.number < self._number and each not in way]
        if left and await self._books.place(self._partition) != self._reached:
            raise Interrupted
        for each in left:
            await self._check_covered(each, way)
            await self._store(partial(self._archive.bucket.delete, [each.key]))
            logger.info("archive_swept", partition=self._partition, key=each.key)

    async def _check_covered(self, spare: Segment, way: Sequence[Segment]) -> None:
        """Raise Stuck unless the way has the events of this object, as far as it leads."""
        try:
            spared = await self._read(spare)
        except (Damaged, ArchiveMissing):
            spared = []  # half written, say: of no use to anybody
        for segment in way:
            number = max(segment.number, spare.number)
            common = min(segment.beyond, spare.beyond) - number
            if common <= 0:
                continue
            try:
                kept = await self._read(segment)
            except (Damaged, ArchiveMissing) as error:
                raise ArchiveBroken(str(error)) from error
            one = spared[number - spare.number :][:common]
            if spared and one != kept[number - segment.number :][:common]:
                raise ArchiveShared(f"{spare.key} and {segment.key} hold different events")

    async def _listed(self, since: Position) -> list[Segment]:
        return await self._store(lambda: list(self._archive.listed(self._partition, since)))

    async def _read(self, segment: Segment) -> list[Raw]:
        return await self._store(lambda: opened(segment, self._archive.bucket.get(segment.key)))

    async def _store(self, work: Callable[[], T]) -> T:
        """What a call to the store returns. Raise ArchiveUnavailable."""
        try:
            async with asyncio.timeout(STORE_SECONDS):
                return await self._threads.run(work)
        except (TimeoutError, Busy) as error:
            raise ArchiveUnavailable("it hangs") from error


def _earlier(position: Position) -> Position:
    return Position(max(0, position.ms - WINDOW_MS), 0)
