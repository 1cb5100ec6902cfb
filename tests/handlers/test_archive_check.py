"""`archive check` is silent while the archive and the stream are the log, and says what is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from archive.archive import Archive
from archive.segments import Raw
from handlers.archive_check import Report, check
from handlers.log import Log
from hordechat.process import Service
from tests.handlers.shelf import archive_in, put_away, stream_of


@pytest.fixture
def archive(log: Log, s3_server: Service) -> Archive:
    return archive_in(s3_server, log.keys.partitions)


async def write(log: Log, *numbers: int) -> None:
    """Event n stands at millisecond n."""
    for n in numbers:
        await log.read("XADD", log.keys.events(0), f"{n}-0", "type", "t", "n", n)


async def trim(log: Log, n: int) -> None:
    await log.read("XTRIM", log.keys.events(0), "MINID", "=", f"{n}-0")


async def test_a_log_that_is_all_there_has_no_difference(log: Log, archive: Archive) -> None:
    assert await check(log, archive, 0) == Report(partition=0)
    await write(log, *range(1, 21))
    assert await check(log, archive, 0) == Report(partition=0, in_stream=20, ever=20)

    await put_away(archive, log, 0, leave=8, pieces=3)
    whole = await check(log, archive, 0)
    await trim(log, 7)
    trimmed = await check(log, archive, 0)
    await trim(log, 12)
    least = await check(log, archive, 0)

    told = Report(partition=0, segments=3, archived=12, in_stream=20, in_both=12, ever=20)
    assert whole == told
    told.in_stream, told.in_both = 14, 6
    assert trimmed == told
    told.in_stream, told.in_both = 9, 1
    assert least == told


async def test_segments_that_overlap_are_counted_and_harm_nobody(
    log: Log, archive: Archive
) -> None:
    await write(log, *range(1, 11))
    entries = await stream_of(log, 0)
    for first, last in ((1, 5), (4, 7), (2, 8)):
        archive.add(0, first, entries[first - 1 : last])
    await trim(log, 8)

    found = await check(log, archive, 0)

    assert (found.differences, found.segments, found.overlapping) == ([], 3, 2)
    assert (found.archived, found.in_stream, found.in_both) == (8, 3, 1)


Break = Callable[[Log, Archive], Awaitable[object]]


async def damage(_log: Log, archive: Archive) -> None:
    segment = list(archive.listed(0))[1]
    body = archive.bucket.get(segment.key)
    archive.bucket.put(segment.key, body[:-9] + bytes([body[-9] ^ 1]) + body[-8:])


async def take_away(_log: Log, archive: Archive) -> None:
    archive.bucket.delete([list(archive.listed(0))[1].key])


async def take_the_first_away(_log: Log, archive: Archive) -> None:
    archive.bucket.delete([next(archive.listed(0)).key])


async def trim_too_far(log: Log, _archive: Archive) -> None:
    await trim(log, 15)


async def lose_the_log(log: Log, _archive: Archive) -> None:
    await log.read("DEL", log.keys.events(0))


async def lose_the_tail(log: Log, archive: Archive) -> None:
    left = await stream_of(log, 0)
    await log.read("DEL", log.keys.events(0))
    for each in left[:3]:
        await log.read("XADD", log.keys.events(0), each.id, *each.fields)
    await write(log, 30)


async def lose_the_archive(_log: Log, archive: Archive) -> None:
    archive.bucket.delete([each.key for each in archive.listed(0)])


async def change_an_event(log: Log, _archive: Archive) -> None:
    left = await stream_of(log, 0)
    await log.read("DEL", log.keys.events(0))
    left[1] = Raw(left[1].id, [*left[1].fields[:3], b"other"])
    for each in left:
        await log.read("XADD", log.keys.events(0), each.id, *each.fields)
    await _count(log, 20)


async def take_an_event_out(log: Log, _archive: Archive) -> None:
    await log.read("XDEL", log.keys.events(0), "9-0")


async def count_another(log: Log, _archive: Archive) -> None:
    await _count(log, 21)


async def _count(log: Log, events: int) -> None:
    last = str(await log.head(0))
    key = log.keys.events(0)
    await log.read("XSETID", key, last, "ENTRIESADDED", events, "MAXDELETEDID", "0-0")


async def archive_others(_log: Log, archive: Archive) -> None:
    """Events that overlap, and are not those."""
    other = [Raw(f"{n}-0".encode(), [b"type", b"t", b"n", b"x"]) for n in (12, 13)]
    archive.add(0, 12, other)


BROKEN: dict[str, tuple[Break, list[str]]] = {
    "a damaged object": (damage, ["has another digest"]),
    "a segment that is gone": (take_away, ["4 events from number 5 on are missing"]),
    "the first one gone": (take_the_first_away, ["4 events from number 1 on are missing"]),
    "a trim past the archive": (
        trim_too_far,
        ["the archive ends at 12-0, the stream begins at 15-0: 2 events between them are nowhere"],
    ),
    "a log that is gone": (lose_the_log, ["Redis lost the log: the archive ends at 12-0"]),
    "a tail that is gone": (
        lose_the_tail,
        [
            "Redis counts it as 1",
            "differ at 10-0",
            "ends at 12-0, and the stream does not hold that event",
        ],
    ),
    "an archive that is gone": (
        lose_the_archive,
        ["nothing is archived, and 6 events were trimmed"],
    ),
    "an event that was changed": (change_an_event, ["and the stream differ at 8-0"]),
    "an event that was taken out": (
        take_an_event_out,
        ["7-0 is archived as event 7, Redis counts it as 8", "and the stream differ at 9-0"],
    ),
    "a wrong count": (
        count_another,
        ["7-0 is archived as event 7, Redis counts it as 8"],
    ),
    "a segment of something else": (
        archive_others,
        ["has other events than the one before", "and the stream differ at"],
    ),
}


@pytest.mark.parametrize("log", ["one partition"], indirect=True)
@pytest.mark.parametrize("what", BROKEN)
async def test_it_says_what_is_wrong(log: Log, archive: Archive, what: str) -> None:
    await write(log, *range(1, 21))
    await put_away(archive, log, 0, leave=8, pieces=3)
    await trim(log, 7)
    spoil, expected = BROKEN[what]

    await spoil(log, archive)

    found = (await check(log, archive, 0)).differences
    assert len(found) == len(expected), found
    for told, words in zip(found, expected, strict=True):
        assert words in told


async def test_what_is_archived_and_trimmed_meanwhile_is_no_difference(
    log: Log, archive: Archive
) -> None:
    """An archiver at work, at every place where the check asks Redis for something."""
    await write(log, *range(1, 31))
    await put_away(archive, log, 0, leave=21, pieces=3)

    class Busy(Log):
        """Each time it is asked, an event was archived and the stream trimmed to it."""

        async def read(self, *command: Any, **at: Any) -> Any:
            end = archive.end(0)
            assert end is not None
            if end.beyond < 25:
                entries = await stream_of(log, 0, end.last)
                archive.add(0, end.beyond, entries[:1])
                await trim(log, entries[0].position.ms)
            return await super().read(*command, **at)

    found = await check(Busy(log.redis, log.keys), archive, 0)

    assert found.differences == []
    assert found.archived > 9
