"""One partition's archiver: what it archives and when, what it takes from Redis, and what it makes
of what others left. Its clock stands, so that a busy machine changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from archive.archive import Archive, ArchiveUnavailable, Damaged
from archive.bucket import Bucket, Place
from archive.s3 import Access
from archive.segments import Raw, Segment
from events.base import START, Position
from handlers import stream, trimming
from handlers.archiver import (
    ArchiveAhead,
    ArchiveBroken,
    ArchiveForeign,
    Archiver,
    ArchiveShared,
    Bounds,
    Interrupted,
    LogTrimmed,
)
from handlers.errors import Rebuilding
from handlers.log import Log
from handlers.threads import Threads
from handlers.trimming import Marks
from hordechat.process import Service
from tests.handlers.shelf import archive_in, stream_of
from tests.logged import logged

BASE = 1_700_000_000_000
TICK = 10_000
"""Milliseconds between two events."""
PAD = b"x" * 4096
"""Makes an event fill a node of the stream: trimming takes whole nodes."""
SIZE = 4100
"""Bytes of an event, a few less."""
BOUNDS = Bounds(segment_bytes=3 * SIZE, segment_seconds=1000, retention=0)
"""Three events come to a segment."""


def at(n: int) -> Position:
    """Where event n stands."""
    return Position(BASE + n * TICK, 0)


@dataclass
class Paper:
    """Books on paper."""

    at: Position = START
    marks: dict[str, Marks] = field(default_factory=dict)

    async def place(self, _partition: int) -> Position:
        return self.at

    async def move(self, _partition: int, before: Position, after: Position) -> bool:
        if self.at != before:
            return False
        self.at = after
        return True

    async def readers(self, _partition: int) -> Mapping[str, Marks]:
        return self.marks


class Standing(Log):
    """A log whose clock stands where it was put."""

    clock_ms = 0

    async def now_ms(self, _partition: int) -> int:
        return self.clock_ms


@dataclass
class Desk:
    """A log, its archive, its books, and trimming."""

    log: Standing
    archive: Archive
    threads: Threads
    partition: int
    books: Paper = field(default_factory=Paper)
    written: int = 0

    @property
    def key(self) -> str:
        return self.log.keys.events(self.partition)

    async def write_quickly(self, count: int) -> None:
        """So many small ones."""
        script = """for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
            local id = string.format("%.0f-0", tonumber(ARGV[3]) + n * tonumber(ARGV[4]))
            redis.call("XADD", KEYS[1], id, "type", "t", "n", n) end"""
        first, self.written = self.written + 1, self.written + count
        await self.log.read("EVAL", script, 1, self.key, first, self.written, BASE, TICK)

    async def write(self, count: int) -> None:
        """So many more events."""
        numbers = range(self.written + 1, self.written + count + 1)
        self.written += count
        for n in numbers:
            await self.log.read("XADD", self.key, str(at(n)), "type", "t", "n", n, "pad", PAD)

    def clock(self, milliseconds: float) -> None:
        """It is so late behind the first event's place."""
        self.log.clock_ms = round(BASE + milliseconds)

    def late(self) -> None:
        """Everything that was written is settled, and the next would not be written yet."""
        self.clock(self.written * TICK + 5000)

    async def settled(self, position: Position | None = None) -> None:
        """The settler has come so far, in each partition."""
        for target in self.log.keys.all():
            fence = str(position or at(self.written))
            await self.log.read("HSET", self.log.keys.fences(target), self.partition, fence)

    def archiver(
        self, bounds: Bounds = BOUNDS, archive: Archive | None = None, **more: float
    ) -> Archiver:
        return Archiver(
            self.log,
            archive or self.archive,
            self.books,
            self.threads,
            bounds,
            self.partition,
            **more,
        )

    def segments(self) -> list[list[int]]:
        """The events of each object, as its name says."""
        found = list(self.archive.listed(self.partition))
        return [list(range(each.number, each.beyond)) for each in found]

    def archived(self) -> list[int]:
        return [int(raw.fields[3]) for page in self.archive.read(self.partition) for raw in page]

    async def in_redis(self) -> list[int]:
        return [int(raw.fields[3]) for raw in await stream_of(self.log, self.partition)]

    async def put(self, first: int, last: int) -> Segment:
        """Store these events as somebody did who went no further."""
        entries = await stream_of(self.log, self.partition)
        of = [raw for raw in entries if at(first) <= raw.position <= at(last)]
        return self.archive.add(self.partition, first, of)

    async def settle_down(self, archiver: Archiver) -> None:
        """Step until nothing waits."""
        while await archiver.step():
            pass


@pytest.fixture
def threads() -> Iterator[Threads]:
    opened = Threads(2, waiting=2, name="archive of a test")
    yield opened
    opened.close()


@pytest.fixture
async def desk(log: Log, s3_server: Service, threads: Threads) -> Desk:
    """The last partition's."""
    partitions = log.keys.partitions
    standing = Standing(log.redis, log.keys, test=True)
    made = Desk(standing, archive_in(s3_server, partitions), threads, partitions - 1)
    made.clock(0)
    return made


plain = pytest.mark.parametrize("log", ["one partition"], indirect=True)
"""For what a cluster does not change."""


# when a segment is closed


async def test_events_go_into_segments_of_the_size_that_was_asked_for(desk: Desk) -> None:
    await desk.write(8)
    desk.late()
    await desk.settled()
    archiver = desk.archiver()

    assert await archiver.step()
    assert await archiver.step()
    assert not await archiver.step()

    assert desk.segments() == [[1, 2, 3], [4, 5, 6]]
    assert desk.archived() == [1, 2, 3, 4, 5, 6]
    assert (archiver.reached, archiver.archived) == (desk.books.at, 6) == (at(6), 6)
    assert await desk.in_redis() == [6, 7, 8]
    for page in desk.archive.read(desk.partition):
        assert all(raw.fields[::2] == [b"type", b"n", b"pad"] for raw in page)


@plain
async def test_an_event_larger_than_a_segment_has_one_of_its_own(desk: Desk) -> None:
    await desk.write(3)
    desk.late()

    await desk.settle_down(desk.archiver(BOUNDS._replace(segment_bytes=1)))

    assert desk.segments() == [[1], [2], [3]]


@plain
async def test_the_newest_two_seconds_are_not_archived_yet(desk: Desk) -> None:
    await desk.write(3)
    archiver = desk.archiver(BOUNDS._replace(segment_bytes=1))
    desk.clock(3 * TICK + 500)  # the third is half a second old

    await desk.settle_down(archiver)

    assert desk.segments() == [[1], [2]]
    desk.clock(3 * TICK + 2001)
    await desk.settle_down(archiver)
    assert desk.segments() == [[1], [2], [3]]


@plain
async def test_a_segment_is_closed_when_its_first_event_is_old(desk: Desk) -> None:
    await desk.write(2)
    archiver = desk.archiver(BOUNDS._replace(segment_bytes=10**6, segment_seconds=60))
    desk.clock(TICK + 55_000)
    assert not await archiver.step()
    assert desk.segments() == []
    desk.clock(TICK + 60_001)

    assert not await archiver.step()

    assert desk.segments() == [[1, 2]]


@plain
@pytest.mark.parametrize("events", [0, 1])
async def test_an_idle_log_costs_nothing(desk: Desk, events: int) -> None:
    await desk.write(events)
    desk.clock(10**9)
    await desk.settled()
    archiver = desk.archiver()
    for _ in range(3):
        assert not await archiver.step()

    assert desk.segments() == [[1]] * events
    assert await desk.in_redis() == [1] * events


@plain
async def test_many_small_events_are_read_page_by_page(desk: Desk) -> None:
    await desk.write_quickly(1201)
    desk.late()
    await desk.settled()
    archiver = desk.archiver(BOUNDS._replace(segment_bytes=20_000))

    await desk.settle_down(archiver)

    assert len(desk.segments()) > 1
    desk.clock(10**9)
    await desk.settle_down(archiver)
    assert desk.archived() == list(range(1, 1202))


# who holds the trim


@plain
async def test_events_stay_for_the_retention_unless_memory_runs_short(desk: Desk) -> None:
    await desk.write(9)
    desk.late()
    await desk.settled()
    archiver = desk.archiver(BOUNDS._replace(retention=74))

    await desk.settle_down(archiver)

    assert desk.archived() == list(range(1, 10))
    assert await desk.in_redis() == [3, 4, 5, 6, 7, 8, 9]  # now is between 9.5 and 10.4 ticks
    await archiver.step(pressed=True)
    assert await desk.in_redis() == [9]


async def test_each_reader_that_stands_in_the_stream_holds_what_comes_behind_it(
    desk: Desk,
) -> None:
    await desk.write(9)
    desk.late()
    await desk.settled()
    archiver = desk.archiver()
    fences = desk.log.keys.fences(desk.log.keys.all()[-1])
    await desk.log.read("HSET", fences, desk.partition, str(at(3)))
    desk.books.marks = {"one": Marks(at(8), at(5)), "other": Marks(at(7), at(7))}

    await desk.settle_down(archiver)
    assert await desk.in_redis() == [3, 4, 5, 6, 7, 8, 9]
    await desk.settled()
    await archiver.step()
    assert await desk.in_redis() == [5, 6, 7, 8, 9]
    desk.books.marks["one"] = Marks(at(8), at(8))
    await archiver.step()
    assert await desk.in_redis() == [7, 8, 9]
    desk.books.marks["other"] = Marks(at(9), at(9))
    await archiver.step(pressed=True)
    assert await desk.in_redis() == [8, 9]


@plain
async def test_a_reader_in_front_of_the_stream_holds_nothing_and_a_settler_that_never_began_all(
    desk: Desk,
) -> None:
    await desk.write(9)
    desk.late()
    archiver = desk.archiver()
    await desk.settle_down(archiver)
    assert await desk.in_redis() == list(range(1, 10))
    await desk.settled(at(3))
    await desk.settle_down(archiver)
    assert await desk.in_redis() == list(range(3, 10))
    await desk.settled()
    desk.books.marks = {"being rebuilt": Marks(at(1), at(2)), "new": Marks(START, START)}

    await archiver.step()

    assert await desk.in_redis() == [9]


@plain
async def test_memory_that_runs_short_closes_a_segment_where_that_frees_something(
    desk: Desk,
) -> None:
    await desk.write(2)
    desk.late()
    await desk.settled()
    archiver = desk.archiver(BOUNDS._replace(retention=10**6))
    desk.books.marks = {"behind": Marks(at(1), at(1))}
    await archiver.step(pressed=True)
    assert desk.segments() == [[1, 2]]
    await desk.write(2)
    desk.late()
    await archiver.step(pressed=True)
    assert desk.segments() == [[1, 2]]
    desk.books.marks = {"at the head": Marks(at(4), at(4))}
    await desk.settled()

    await archiver.step(pressed=True)

    assert desk.segments() == [[1, 2], [3, 4]]
    assert await desk.in_redis() == [4]


@plain
async def test_who_holds_the_trim_back_is_said_once(desk: Desk) -> None:
    await desk.write_quickly(trimming.BEHIND + 10)
    desk.late()
    await desk.settled()
    desk.books.marks = {"status": Marks(at(2), at(2))}
    archiver = desk.archiver(BOUNDS._replace(segment_bytes=10**6))
    desk.clock(10**9)

    with logged(trimming.logger) as lines:
        for _ in range(3):
            await archiver.step()

    (said,) = [line for line in lines if line["event"] == "trim_held_back"]
    assert (said["by"], said["position"]) == ("projector status", str(at(2)))
    assert said["seconds"] == (trimming.BEHIND + 8) * TICK // 1000
    assert said["log_level"] == "warning"


@plain
async def test_a_reader_just_behind_is_not_told_of(desk: Desk) -> None:
    await desk.write(20)
    desk.late()
    await desk.settled()
    desk.books.marks = {"status": Marks(at(2), at(2))}

    with logged(trimming.logger) as lines:
        await desk.settle_down(desk.archiver())

    assert await desk.in_redis() == list(range(2, 21))
    assert "trim_held_back" not in {line["event"] for line in lines}


@plain
async def test_nothing_is_done_while_state_is_being_rebuilt(desk: Desk) -> None:
    await desk.write(4)
    desk.late()
    await desk.settled()
    await desk.log.read("HSET", desk.log.keys.control(desk.partition), "gate", "rebuild")

    with pytest.raises(Rebuilding):
        await desk.archiver().step()

    assert desk.segments() == []


@plain
async def test_what_was_read_before_a_rebuild_is_read_again(desk: Desk) -> None:
    await desk.write(8)
    desk.late()
    archiver = desk.archiver()
    await desk.settle_down(archiver)
    control = desk.log.keys.control(desk.partition)
    await desk.log.read("HSET", control, "gate", "rebuild")
    with pytest.raises(Rebuilding):
        await archiver.step()
    await desk.log.read("XDEL", desk.key, str(at(7)))  # it was lost
    await desk.log.read("HDEL", control, "gate")
    desk.clock(10**9)

    await desk.settle_down(archiver)

    assert desk.archived() == [1, 2, 3, 4, 5, 6, 8]


# what others left


async def test_an_object_that_nobody_counts_on_yet_is_taken_over(desk: Desk) -> None:
    await desk.write(8)
    desk.late()
    await desk.put(1, 3)
    desk.books.at = at(3)
    await desk.put(4, 5)
    await desk.put(6, 7)
    archiver = desk.archiver()

    await desk.settle_down(archiver)

    assert desk.books.at == at(7)
    assert desk.segments() == [[1, 2, 3], [4, 5], [6, 7]]
    desk.clock(10**9)
    await desk.settle_down(archiver)
    assert desk.segments() == [[1, 2, 3], [4, 5], [6, 7], [8]]


@plain
async def test_of_what_overlaps_each_event_is_kept_once(desk: Desk) -> None:
    await desk.write(9)
    desk.late()
    await desk.put(1, 3)
    await desk.put(2, 4)
    await desk.put(4, 6)
    desk.books.at = at(6)
    for first, last in ((1, 2), (5, 7), (7, 7), (7, 8), (6, 9)):
        await desk.put(first, last)

    await desk.settle_down(desk.archiver())

    assert desk.books.at == at(8)
    assert desk.segments() == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert desk.archived() == list(range(1, 9))


@plain
async def test_what_lands_late_is_deleted_when_the_next_one_is_closed(desk: Desk) -> None:
    await desk.write(6)
    desk.late()
    archiver = desk.archiver(sweep_seconds=0)
    await archiver.step()
    await desk.put(1, 2)
    await desk.put(4, 5)

    await desk.settle_down(archiver)

    assert desk.segments() == [[1, 2, 3], [4, 5, 6]]


@plain
async def test_nothing_is_deleted_where_what_covers_it_cannot_be_read(desk: Desk) -> None:
    await desk.write(4)
    desk.late()
    whole = await desk.put(1, 3)
    spare = await desk.put(1, 2)
    desk.books.at = at(3)
    desk.archive.bucket.put(whole.key, b"something else")

    with pytest.raises(ArchiveBroken):
        await desk.archiver().step()

    assert spare in list(desk.archive.listed(desk.partition))


@plain
async def test_events_of_another_log_in_the_same_bucket_are_not_deleted(desk: Desk) -> None:
    """Two deployments that began together on one bucket."""
    await desk.write(4)
    desk.late()
    archiver = desk.archiver(BOUNDS._replace(segment_bytes=1), sweep_seconds=0)
    await archiver.step()
    others = [Raw(str(at(n)).encode(), [b"type", b"t", b"n", b"-1"]) for n in (1, 2)]
    other = desk.archive.add(desk.partition, 1, others)

    for _ in range(2):
        with pytest.raises(ArchiveShared):
            await desk.settle_down(archiver)

    assert other in list(desk.archive.listed(desk.partition))


@plain
async def test_a_bucket_that_is_gone_is_not_begun_anew(desk: Desk) -> None:
    await desk.write(8)
    desk.late()
    archiver = desk.archiver()
    await archiver.step()
    bucket = desk.archive.bucket
    bucket.delete([each.key for each in desk.archive.listed(desk.partition)])
    bucket._client.remove_bucket(bucket._bucket)

    with pytest.raises(ArchiveUnavailable, match="NoSuchBucket"):
        await archiver.step()
    with pytest.raises(ArchiveBroken):
        await archiver.step()

    assert desk.segments() == []


@plain
async def test_a_half_written_object_is_written_anew(desk: Desk) -> None:
    await desk.write(6)
    desk.late()
    await desk.put(1, 3)
    desk.books.at = at(3)
    half = await desk.put(4, 6)
    body = desk.archive.bucket.get(half.key)
    desk.archive.bucket.put(half.key, body[: len(body) // 2])

    await desk.settle_down(desk.archiver())

    assert desk.archived() == [1, 2, 3, 4, 5, 6]
    assert desk.segments() == [[1, 2, 3], [4, 5, 6]]


@plain
async def test_a_damaged_object_whose_events_have_left_redis_is_told_as_that(desk: Desk) -> None:
    """Not as events that somebody took from Redis."""
    await desk.write(8)
    desk.late()
    await desk.settled()
    await desk.settle_down(desk.archiver())
    assert await desk.in_redis() == [6, 7, 8]
    _, damaged = desk.archive.listed(desk.partition)
    desk.archive.bucket.put(damaged.key, b"something else")
    desk.books.at = at(3)

    with pytest.raises(ArchiveBroken):
        await desk.archiver().step()


@pytest.mark.parametrize("known", [START, at(3)])
async def test_a_checkpoint_that_postgres_lost_is_found_in_the_archive(
    desk: Desk, known: Position
) -> None:
    await desk.write(8)
    desk.late()
    await desk.settled()
    await desk.settle_down(desk.archiver())
    assert await desk.in_redis() == [6, 7, 8]
    desk.books.at = known
    desk.clock(10**9)

    await desk.settle_down(desk.archiver())

    assert desk.segments() == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert desk.archived() == list(range(1, 9))


@plain
async def test_a_checkpoint_of_another_time_is_found_in_the_archive(desk: Desk) -> None:
    """No segment ends there any more."""
    await desk.write(8)
    desk.late()
    await desk.settle_down(desk.archiver())
    desk.books.at = at(2)

    await desk.settle_down(desk.archiver())

    assert desk.books.at == at(6)
    assert desk.segments() == [[1, 2, 3], [4, 5, 6]]


@plain
async def test_a_checkpoint_of_another_time_may_be_where_a_spare_object_ends(desk: Desk) -> None:
    await desk.write(6)
    desk.late()
    spare = await desk.put(1, 2)
    desk.books.at = at(2)
    await desk.put(1, 6)
    await desk.log.read("XTRIM", desk.key, "MINID", "=", str(at(6)))

    await desk.archiver().step()

    assert desk.books.at == at(6)
    assert desk.segments() == [[1, 2, 3, 4, 5, 6]]
    assert spare not in list(desk.archive.listed(desk.partition))


@plain
async def test_who_comes_second_begins_anew_and_leaves_nothing(desk: Desk) -> None:
    await desk.write(6)
    desk.late()
    first, second = desk.archiver(), desk.archiver(BOUNDS._replace(segment_bytes=2 * SIZE))
    await first.step()
    await second.step()

    with pytest.raises(Interrupted):
        await first.step()
    assert desk.segments() == [[1, 2, 3], [4, 5], [4, 5, 6]]
    desk.clock(10**9)
    await desk.settle_down(first)

    assert desk.segments() == [[1, 2, 3], [4, 5], [6]]


# a store in trouble


class Damaging(Bucket):
    """Gives back something else than it was given."""

    def get(self, key: str) -> bytes:
        return super().get(key)[:-1]


@plain
async def test_a_store_that_damages_what_it_is_given_is_not_counted_on(
    desk: Desk, s3_server: Service
) -> None:
    await desk.write(4)
    desk.late()
    await desk.settled()
    damaged = archive_in(s3_server, desk.log.keys.partitions)
    damaged.bucket.__class__ = Damaging
    archiver = desk.archiver(archive=damaged)
    for _ in range(2):
        with pytest.raises(Damaged):
            await archiver.step()

    assert desk.books.at == START
    assert await desk.in_redis() == [1, 2, 3, 4]
    damaged.bucket.__class__ = Bucket
    await archiver.step()
    assert desk.books.at == at(3)


@plain
async def test_a_store_that_is_away_holds_the_trim(desk: Desk) -> None:
    await desk.write(7)
    desk.late()
    await desk.settled()
    archiver = desk.archiver()
    await archiver.step()
    there = desk.archive.bucket
    desk.archive.bucket = Bucket(Place("http://127.0.0.1:1", Access("a", "s", "us-east-1"), "gone"))

    with pytest.raises(ArchiveUnavailable):
        await archiver.step(pressed=True)

    assert await desk.in_redis() == [3, 4, 5, 6, 7]
    desk.archive.bucket = there
    await desk.settle_down(archiver)
    assert desk.segments() == [[1, 2, 3], [4, 5, 6]]


# what cannot go on


async def test_a_redis_that_was_wiped_stops_it(desk: Desk) -> None:
    await desk.write(6)
    desk.late()
    await desk.settle_down(desk.archiver())
    await desk.log.read("DEL", desk.key)

    for place in (at(6), START):
        desk.books.at = place
        with pytest.raises(ArchiveAhead):
            await desk.archiver().step()

    assert desk.segments() == [[1, 2, 3], [4, 5, 6]]


@plain
async def test_a_redis_that_is_wiped_under_it_stops_it(desk: Desk) -> None:
    await desk.write(6)
    desk.late()
    archiver = desk.archiver()
    await desk.settle_down(archiver)
    await desk.log.read("DEL", desk.key)
    desk.written = 2
    await desk.write(9)
    desk.late()
    await desk.log.read("XDEL", desk.key, str(at(6)))

    with pytest.raises(Interrupted):
        await archiver.step(pressed=True)
    with pytest.raises(ArchiveAhead):
        await archiver.step(pressed=True)

    assert desk.segments() == [[1, 2, 3], [4, 5, 6]]
    assert len(await desk.in_redis()) == 8


@plain
async def test_other_events_than_were_archived_stop_it(desk: Desk) -> None:
    await desk.write(6)
    desk.late()
    await desk.put(1, 3)
    await desk.put(4, 6)
    desk.books.at = at(3)
    await desk.log.read("XDEL", desk.key, str(at(5)))

    with pytest.raises(ArchiveAhead):
        await desk.archiver().step()

    assert desk.books.at == at(3)
    assert desk.segments() == [[1, 2, 3], [4, 5, 6]]


@plain
async def test_events_that_somebody_else_took_away_stop_it(desk: Desk) -> None:
    await desk.write(6)
    desk.late()
    await desk.log.read("XTRIM", desk.key, "MAXLEN", 4)
    with pytest.raises(LogTrimmed):
        await desk.archiver().step()
    desk.written = 6
    desk.archive.add(desk.partition, 1, [Raw(str(at(1)).encode(), [b"type", b"t"])])
    desk.books.at = at(1)

    with pytest.raises(LogTrimmed):
        await desk.archiver().step()


@plain
@pytest.mark.parametrize("gone", [0, 1])
async def test_an_archive_that_lost_an_object_stops_it(desk: Desk, gone: int) -> None:
    await desk.write(6)
    desk.late()
    segments = [await desk.put(1, 3), await desk.put(4, 6)]
    desk.books.at = at(6)
    desk.archive.bucket.delete([segments[gone].key])
    if gone == 0:
        desk.books.at = at(5)

    with pytest.raises(ArchiveBroken):
        await desk.archiver().step()


@plain
async def test_the_archive_of_another_deployment_stops_it(desk: Desk) -> None:
    await desk.write(6)
    desk.late()
    other = Archive(desk.archive.bucket, 7)
    other.add(0, 1, [Raw(b"1-1", [b"type", b"t"])])

    with pytest.raises(ArchiveForeign):
        await desk.archiver().step()


# memory


async def test_the_memory_of_all_logs_is_told(desk: Desk) -> None:
    assert await stream.memory(desk.log) == 0
    await desk.write(20)

    used = await stream.memory(desk.log)

    assert 20 * 4096 < used < 20 * 4096 * 2
    told = await stream.stretch(desk.log, desk.partition)
    assert told == stream.Stretch(at(1), at(20), 20, 20)
    assert told.whole
