"""`read_log` over archive and stream: each event once, from wherever it is asked, or it says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archive.archive import Archive, ArchiveUnavailable, HistoryLost
from archive.bucket import Bucket, Place
from archive.s3 import Access
from archive.segments import Raw, Segment
from events.base import START, Position
from events.keys import Keys
from handlers.log import Log
from handlers.replay import PAGE, read_raw
from hordechat.datadir import free_port
from hordechat.process import Service
from lua.link import Link
from tests.handlers.shelf import archive_in, put_away, stream_of


@pytest.fixture
def archive(log: Log, s3_server: Service) -> Archive:
    """Of this log; empty."""
    log.archive = archive_in(s3_server, log.keys.partitions)
    return log.archive


async def write(log: Log, events: int, partition: int = 0, first: int = 1) -> None:
    """Events that are none: event n stands at millisecond n."""
    key = log.keys.events(partition)
    numbers = range(first, first + events)
    for begin in range(0, events, 200):  # in one batch, or they might not come in order
        some = numbers[begin : begin + 200]
        await asyncio.gather(*(log.read("XADD", key, f"{n}-1", "type", "t", "n", n) for n in some))


async def trim(log: Log, floor: Position, partition: int = 0) -> None:
    await log.read("XTRIM", log.keys.events(partition), "MINID", "=", str(floor))


async def read(log: Log, after: int = 0, partition: int = 0) -> list[int]:
    """The numbers of the events behind event `after`."""
    at = Position(after, 1) if after else START
    return [_n(each) async for page in read_raw(log, partition, at) for each in page]


async def read_until_lost(log: Log) -> list[int]:
    """The numbers that are told before history is said to be lost."""
    told: list[int] = []
    try:
        async for page in read_raw(log, 0):
            told += map(_n, page)
    except HistoryLost:
        return told
    raise AssertionError("nothing is lost")


def _n(entry: Raw) -> int:
    return int(entry.fields[3])


async def test_it_begins_anywhere(log: Log, archive: Archive) -> None:
    await write(log, 30)
    await put_away(archive, log, 0, leave=12, pieces=3)  # up to event 18
    await trim(log, Position(15, 1))

    for after in (0, 1, 6, 7, 14, 15, 17, 18, 19, 29, 30):
        assert await read(log, after) == list(range(after + 1, 31))


async def test_pages_are_of_one_size_whatever_they_come_from(log: Log, archive: Archive) -> None:
    await write(log, 3 * PAGE)
    await put_away(archive, log, 0, leave=PAGE)
    await trim(log, Position(2 * PAGE, 1))

    sizes = [len(page) async for page in read_raw(log, 0)]

    assert sizes == [PAGE, PAGE, PAGE]


async def test_what_is_trimmed_meanwhile_comes_from_the_archive(log: Log, archive: Archive) -> None:
    await write(log, 2 * PAGE)
    pages = read_raw(log, 0)
    found = [_n(each) for each in await anext(pages)]

    await put_away(archive, log, 0, leave=PAGE // 2)
    await trim(log, archive.end(0).last)
    found += [_n(each) for each in await anext(pages)]
    assert found[-1] < 2 * PAGE
    await write(log, 9, first=2 * PAGE + 1)
    await put_away(archive, log, 0, leave=2)
    await trim(log, archive.end(0).last)
    found += [_n(each) async for page in pages for each in page]

    assert found == list(range(1, 2 * PAGE + 10))


async def test_an_archiver_that_is_always_a_step_ahead_loses_nothing(
    log: Log, archive: Archive
) -> None:
    """Each time the archive is asked, more was archived and trimmed just before and behind that."""
    await write(log, 60)
    await put_away(archive, log, 0, leave=50, pieces=2)
    left = await stream_of(log, 0, Position(10, 1))

    class Busy(Log):
        """The same before each question to Redis."""

        async def read(self, *command: Any, **at: Any) -> Any:
            if left:
                archive.add(0, _n(left[0]), [left[0]])
                await trim(log, left.pop(0).position)
            return await super().read(*command, **at)

    class Busier(Archive):
        def listed(self, partition: int, since: Position = START) -> Iterator[Segment]:
            found = list(super().listed(partition, since))
            for entry in left[:2]:
                self.add(0, _n(entry), [entry])
            del left[:2]
            return iter(found)

    busy = Busy(log.redis, log.keys)
    busy.archive = Busier(archive.bucket, log.keys.partitions)

    assert await read(busy) == list(range(1, 61))


async def test_an_event_that_is_nowhere_is_not_passed_over(log: Log, archive: Archive) -> None:
    await write(log, 30)
    await put_away(archive, log, 0, leave=20)
    await trim(log, Position(12, 1))

    for after in (0, 5, 10):
        with pytest.raises(HistoryLost):
            await read(log, after)
    assert await read_until_lost(log) == list(range(1, 11))
    assert await read(log, 12) == list(range(13, 31))
    log.archive = None
    with pytest.raises(HistoryLost):
        await read(log)


@pytest.mark.parametrize("grown", [False, True])
async def test_what_a_redis_that_lost_its_log_had_is_told_before_it_is_said_to_be_lost(
    log: Log, archive: Archive, grown: bool
) -> None:
    await write(log, 30)
    await put_away(archive, log, 0, leave=5, pieces=2)
    await log.read("DEL", log.keys.events(0))
    if grown:
        await write(log, 3, first=40)

    assert await read_until_lost(log) == list(range(1, 26))


async def test_a_log_that_redis_loses_while_it_is_read_is_said_to_be_lost(log: Log) -> None:
    await write(log, PAGE + 9)
    pages = read_raw(log, 0)
    await anext(pages)
    await log.read("DEL", log.keys.events(0))
    await write(log, 3, first=2 * PAGE)

    with pytest.raises(HistoryLost):
        await anext(pages)


async def test_a_whole_stream_needs_no_object_to_be_read(log: Log, archive: Archive) -> None:
    await write(log, 9)
    assert await read(log) == list(range(1, 10))
    await put_away(archive, log, 0, pieces=2)
    for segment in archive.listed(0):
        archive.bucket.put(segment.key, b"damaged")

    assert await read(log) == list(range(1, 10))
    assert await read(log, 4) == list(range(5, 10))


async def test_an_archive_that_is_away_is_asked_only_where_it_is_needed(
    log: Log, archive: Archive
) -> None:
    await write(log, 9)
    await put_away(archive, log, 0, leave=4)
    await trim(log, Position(5, 1))
    nowhere = Place(f"http://127.0.0.1:{free_port()}", Access("a", "b", "c"), "archive")
    log.archive = Archive(Bucket(nowhere), log.keys.partitions)

    assert await read(log, 5) == [6, 7, 8, 9]
    with pytest.raises(ArchiveUnavailable, match="refused"):
        await read(log, 2)


async def test_an_empty_log_has_nothing(log: Log, archive: Archive) -> None:
    assert await read(log) == []


_ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 6)),
        st.tuples(st.just("archive"), st.integers(0, 6)),
        st.tuples(st.just("trim"), st.integers(0, 9)),
        st.tuples(st.just("read"), st.integers(0, 40)),
    ),
    max_size=20,
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(acts=_ACTS)
def test_what_is_read_is_the_log(redis_url: str, s3_server: Service, acts: list[Any]) -> None:
    """However it is cut into archive and stream."""

    async def play() -> None:
        log = Log(Link(redis_url), Keys(1), archive=archive_in(s3_server, 1))
        assert log.archive is not None
        await log.read("FLUSHALL")
        length, archived = 0, 0
        for what, n in [*acts, ("read", 0)]:
            if what == "write":
                await write(log, n, first=length + 1)
                length += n
            elif what == "archive":
                await put_away(log.archive, log, 0, leave=min(n, length - archived))
                end = log.archive.end(0)
                archived = end.beyond - 1 if end else 0
            elif what == "trim" and archived:
                await trim(log, Position(max(1, archived - n), 1))
            elif what == "read":
                after = min(n, length)
                assert await read(log, after) == list(range(after + 1, length + 1))
        await log.close()

    asyncio.run(play())
