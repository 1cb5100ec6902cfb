"""What happened in a span of time: every event of it once, of all partitions in one order."""

from __future__ import annotations

import pytest

from archive.archive import Gap
from events.base import Position
from handlers.history import history
from handlers.log import Log
from handlers.replay import PAGE
from hordechat.process import Service
from tests.handlers.shelf import archive_in, put_away

Found = list[tuple[int, int]]
"""Milliseconds and partition of each."""


async def write(log: Log, *at: tuple[int, int]) -> None:
    for ms, partition in at:
        await log.read("XADD", log.keys.events(partition), f"{ms}-0", "type", "t", "v", "1")


async def read(log: Log, since: int = 0, until: int | None = None) -> Found:
    begins, ends = Position(since, 0), None if until is None else Position(until, 0)
    pages = history(log, log.keys.all(), begins, ends)
    return [(each.position.ms, each.partition) async for page in pages for each in page]


def zigzag(log: Log, first: int, last: int) -> Found:
    """Stretches of events that lie in one partition after another."""
    return [(ms, ms // 7 % log.keys.partitions) for ms in range(first, last + 1)]


async def test_events_of_all_partitions_come_in_one_order(log: Log) -> None:
    written = zigzag(log, 1000, 1100) + [(2000, partition) for partition in log.keys.all()]
    await write(log, *written)

    assert await read(log) == written


async def test_partitions_of_any_length_are_merged_page_by_page(log: Log) -> None:
    last = log.keys.partitions - 1
    written = sorted([(ms, 0) for ms in range(1, 2 * PAGE + 10)] + [(PAGE, last), (5000, last)])
    await write(log, *dict.fromkeys(written))

    pages = [page async for page in history(log, log.keys.all())]

    assert [(e.position.ms, e.partition) for p in pages for e in p] == list(dict.fromkeys(written))
    assert max(map(len, pages)) <= (PAGE + 1) * log.keys.partitions


async def test_an_empty_log_has_no_history(log: Log) -> None:
    assert await read(log) == []
    assert await read(log, 5, 7) == []


async def test_a_span_begins_with_its_first_event_and_ends_in_front_of_its_end(log: Log) -> None:
    written = zigzag(log, 1000, 1060)
    await write(log, *written)

    assert await read(log, 1020, 1040) == [each for each in written if 1020 <= each[0] < 1040]
    assert await read(log, 1060) == written[-1:]
    assert await read(log, 1061) == []
    assert await read(log, 0, 1001) == written[:1]
    assert await read(log, 1020, 1020) == []


async def test_what_is_written_meanwhile_is_told_the_next_time(log: Log) -> None:
    written = [(ms, 0) for ms in range(1, PAGE + 3)]
    await write(log, *written)
    found: Found = []

    async for page in history(log, log.keys.all()):
        found += [(each.position.ms, each.partition) for each in page]
        await write(log, *((9000 + len(found), partition) for partition in log.keys.all()))

    assert found == written


async def test_archive_and_stream_are_one_history_wherever_it_begins(
    log: Log, s3_server: Service
) -> None:
    log.archive = archive_in(s3_server, log.keys.partitions)
    written = zigzag(log, 1000, 1080)
    for part in (written[:40], written[40:70]):
        await write(log, *part)
        for partition in log.keys.all():
            await put_away(log.archive, log, partition, pieces=2)
    await write(log, *written[70:])
    for partition in log.keys.all():
        end = log.archive.end(partition)
        assert end is not None
        await log.read("XTRIM", log.keys.events(partition), "MINID", str(end.last))

    spans = [(0, None), (1000, 1020), (1013, 1069), (1040, None), (1066, 1078), (1075, None)]

    for since, until in spans:
        ends = until or 10_000
        assert await read(log, since, until) == [e for e in written if since <= e[0] < ends]


async def test_a_span_of_the_archive_reads_none_of_the_segments_before_it(
    log: Log, s3_server: Service
) -> None:
    log.archive = archive_in(s3_server, log.keys.partitions)
    written = [(ms, 0) for ms in range(1000, 1040)]
    await write(log, *written)
    await put_away(log.archive, log, 0, pieces=4)
    await log.read("XTRIM", log.keys.events(0), "MAXLEN", 1)
    first, second, *_ = log.archive.listed(0)
    log.archive.bucket.delete([first.key])
    log.archive.bucket.put(second.key, b"damaged")

    assert await read(log, 1020) == written[20:]
    with pytest.raises(Gap, match=r"event 1 is not there"):
        await read(log)
