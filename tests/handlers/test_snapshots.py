"""A snapshot is the fold of the archive, and comes back as it was."""

from __future__ import annotations

import pytest

import handlers.snapshots
from archive import snapshots
from archive.archive import Archive
from archive.snapshots import Snapshot, Value
from events.base import START, Position
from handlers.log import Log
from handlers.snapshots import Base, drop, put_newest, read, take, write
from hordechat.process import Service
from tests.handlers.pool import Pool
from tests.handlers.shelf import archive_in, put_away
from tests.logged import logged


@pytest.fixture
def archive(log: Log, s3_server: Service) -> Archive:
    """Empty, of as many partitions as the log has."""
    return archive_in(s3_server, log.keys.partitions)


def _payer_s(pool: Pool) -> int:
    """The partition in which something happens whatever is settled."""
    return pool.log.keys.of_account(pool.client.id)


async def _worked(pool: Pool, jobs: int = 4) -> None:
    for n in range(jobs):
        job = await pool.assign(await pool.submit(stream=n % 2 == 0))
        assert job is not None
        if n % 2:
            await pool.reply(job.generation_id)
    await pool.settle()


async def test_a_snapshot_is_the_fold_of_what_was_archived(
    pool: Pool, scratch: Log, archive: Archive
) -> None:
    await _worked(pool)
    for partition in pool.log.keys.all():
        await put_away(archive, pool.log, partition, pieces=3)

    for partition in pool.log.keys.all():
        taken = await take(archive, scratch, partition)

        if await pool.log.head(partition) == START:
            assert taken is None
            continue
        assert taken is not None
        assert taken.position == await pool.log.head(partition)
        assert taken.events == archive.end(partition).beyond - 1
        assert Snapshot.parse(taken.key) == taken
        live = sorted(await read(pool.log, partition))
        found, values, bad = snapshots.newest(archive, partition)
        assert (found, bad) == (taken, [])
        assert values == live


async def test_a_snapshot_goes_on_from_the_one_before_and_none_is_taken_for_nothing(
    pool: Pool, scratch: Log, archive: Archive
) -> None:
    at = _payer_s(pool)
    assert await take(archive, scratch, at) is None
    taken = []
    for _ in range(3):
        await _worked(pool, 2)
        await put_away(archive, pool.log, at)
        taken.append(await take(archive, scratch, at))
        assert await take(archive, scratch, at) is None
        assert sorted(await read(scratch, at)) == sorted(await read(pool.log, at))

    assert snapshots.listed(archive, at) == taken[:0:-1]


@pytest.mark.parametrize("harm", ["changed", "cut", "no snapshot", "gone"])
async def test_a_damaged_snapshot_is_passed_over_for_the_one_before(
    pool: Pool, scratch: Log, archive: Archive, harm: str
) -> None:
    at = _payer_s(pool)
    await put_away(archive, pool.log, at)
    first = await take(archive, scratch, at)
    await _worked(pool, 2)
    await put_away(archive, pool.log, at)
    second = await take(archive, scratch, at)
    assert first is not None
    assert second is not None
    body = archive.bucket.get(second.key)
    match harm:
        case "changed":
            archive.bucket.put(second.key, body[:-9] + bytes([body[-9] ^ 1]) + body[-8:])
        case "cut":
            archive.bucket.put(second.key, body[: len(body) // 2])
        case "no snapshot":
            archive.bucket.put(second.key, b"")
        case _:
            archive.bucket.delete([second.key])

    await drop(scratch, at)
    assert await put_newest(archive, scratch, at) == Base(first.position, first.events)
    again = await take(archive, scratch, at)

    assert again == second
    assert sorted(await read(scratch, at)) == sorted(await read(pool.log, at))


async def test_without_any_good_snapshot_a_fold_begins_at_the_beginning(
    pool: Pool, scratch: Log, archive: Archive
) -> None:
    at = _payer_s(pool)
    await put_away(archive, pool.log, at)
    taken = await take(archive, scratch, at)
    assert taken is not None
    archive.bucket.put(taken.key, b"nonsense")
    await drop(scratch, at)

    with logged(handlers.snapshots.logger) as lines:
        assert await put_newest(archive, scratch, at) == Base(START, 0)
    assert [(line["event"], line["key"]) for line in lines] == [("snapshot_damaged", taken.key)]
    assert await put_newest(None, scratch, 0) == Base(START, 0)
    assert await read(scratch, at) == []
    await write(scratch, await read(pool.log, at))
    assert await take(archive, scratch, at) == taken
    assert snapshots.newest(archive, at)[0] == taken


async def test_every_kind_of_value_comes_back_as_it_was_whatever_its_size(
    scratch: Log, archive: Archive
) -> None:
    scores = [b"-1.5", b"0", b"0.1", b"1732900000000", b"17329000000001", b"inf"]
    many = [b"%06d" % n for n in range(2600)]
    key = scratch.keys.request
    values = [
        Value(key("a-0000").encode(), "hash", [b"\x00", b"\xff", b"f", b""]),
        Value(key("b-0000").encode(), "hash", [each for n in many for each in (n, b"v")]),
        Value(key("c-0000").encode(), "list", many[::-1]),
        Value(key("d-0000").encode(), "set", many),
        Value(key("e-0000").encode(), "string", [b"1"]),
        Value(
            key("f-0000").encode(),
            "zset",
            [each for n, score in enumerate(scores) for each in (b"%d" % n, score)],
        ),
    ]

    await write(scratch, values)
    assert await read(scratch, 0) == values

    archive.bucket.put("first", b"", first=True)
    added = snapshots.add(archive, 0, Position(7, 0), 1, reversed(values))
    assert snapshots.newest(archive, 0) == (added, values, [])
