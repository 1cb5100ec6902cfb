"""What may be deleted of the archive, and what is lost then (docs/privacy.md)."""

from __future__ import annotations

import pytest

from archive.archive import Archive, HistoryLost
from archive.snapshots import Value
from events.base import Position
from handlers.history import history
from handlers.log import Log
from handlers.rebuild import rebuild_state
from handlers.replay import read_log
from handlers.snapshots import read, take
from hordechat.process import Service
from tests.handlers.pool import Pool
from tests.handlers.shelf import archive_in, put_away


async def _work(pool: Pool) -> None:
    job = await pool.assign(await pool.submit())
    assert job is not None
    await pool.reply(job.generation_id)
    await pool.submit()
    await pool.settle()


async def _state(log: Log) -> list[list[Value]]:
    return [sorted(await read(log, partition)) for partition in log.keys.all()]


@pytest.fixture
async def shortened(pool: Pool, scratch: Log, s3_server: Service) -> Archive:
    """A log of which the archive holds the newest snapshot and what is behind that."""
    log = pool.log
    log.archive = archive_in(s3_server, log.keys.partitions)
    for _ in range(2):
        await _work(pool)
        for partition in log.keys.all():
            await put_away(log.archive, log, partition, pieces=2)
            await take(log.archive, scratch, partition)
    await _work(pool)
    for partition in log.keys.all():
        segments = list(log.archive.listed(partition))
        log.archive.bucket.delete([each.key for each in segments[:-1]])
        if segments:
            end = str(segments[-1].last)
            await log.read("XTRIM", log.keys.events(partition), "MINID", end)
    return log.archive


async def test_state_is_rebuilt_from_a_snapshot_without_the_segments_in_front_of_it(
    pool: Pool, shortened: Archive
) -> None:
    before = await _state(pool.log)

    await rebuild_state(pool.log)

    assert await _state(pool.log) == before


async def test_what_reads_from_the_first_event_says_that_events_are_missing(
    pool: Pool, shortened: Archive
) -> None:
    at = pool.log.keys.of_account(pool.client.id)

    with pytest.raises(HistoryLost):
        assert [page async for page in read_log(pool.log, at)]

    (segment,) = shortened.listed(at)
    since = Position(segment.first.ms, segment.first.seq + 1)
    pages = history(pool.log, [at], since)
    told = [each.position async for page in pages for each in page]
    assert len([each for each in told if each <= segment.last]) == segment.events - 1
    assert told[-1] == await pool.log.head(at) > segment.last
