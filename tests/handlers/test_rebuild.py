"""Hot state comes back from snapshot, archive and stream, whatever Redis lost; what is lost is
told."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from archive.archive import Archive, HistoryLost
from events import types
from events.base import START, Position
from events.keys import PARTITIONS, Keys
from handlers.errors import Rebuilding, RedisUnavailable
from handlers.limits import Limits
from handlers.log import Log, ResponseError
from handlers.rebuild import LostMeanwhile, Rebuilt, rebuild_state, take_up
from handlers.snapshots import read, take
from handlers.stream import stretch
from handlers.verify import Difference, verify
from hordechat.process import Service
from lua.link import Link
from tests.handlers.pool import KEY, Pool, operation_of
from tests.handlers.shelf import archive_in, put_away, stream_of


class Heard:
    """What Postgres knows: of each log as far as it was when `of` was called."""

    def __init__(self, heads: list[Position], lines: int = 0) -> None:
        self._heads = heads
        self._lines = lines

    @classmethod
    async def of(cls, log: Log, lines: int = 0) -> Heard:
        return cls([await log.head(partition) for partition in log.keys.all()], lines)

    async def farthest(self, partition: int) -> Position:
        return self._heads[partition]

    async def ledger_lines(self, partition: int, after: Position, until: Position | None) -> int:
        assert until is None or until > after
        return self._lines


class Dying:
    """A Redis that is killed at the n-th command, which may have been executed."""

    def __init__(self, inner: Any, at: int) -> None:
        self._inner = inner
        self._left = at
        self.ordered = inner.ordered

    async def call(self, *command: Any, **more: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise Killed
        answer = await self._inner.call(*command, **more)
        if self._left == 0:
            raise Killed
        return answer

    def scan(self, pattern: str) -> Any:
        return self._inner.scan(pattern)


class Emptied(Dying):
    """A Redis that comes back empty behind the n-th command."""

    async def call(self, *command: Any, **more: Any) -> Any:
        answer = await self._inner.call(*command, **more)
        self._left -= 1
        if self._left == 0:
            await self._inner.call("FLUSHDB")
        return answer


class Killed(Exception):
    """The process is no more."""


@pytest.fixture
def archive(log: Log, s3_server: Service) -> Archive:
    """Of the log, empty."""
    log.archive = archive_in(s3_server, log.keys.partitions)
    return log.archive


async def _worked(pool: Pool, jobs: int = 3) -> None:
    for n in range(jobs):
        job = await pool.assign(await pool.submit(stream=n % 2 == 0))
        assert job is not None
        if n % 2 == 0:
            await pool.reply(job.generation_id)
    await pool.settle()


async def _archive(
    archive: Archive, log: Log, *, leave: int = 0, trim: bool = False, pieces: int = 2
) -> None:
    for partition in log.keys.all():
        await put_away(archive, log, partition, leave=leave, pieces=pieces)
        end = archive.end(partition)
        if trim and end:
            await log.read("XTRIM", log.keys.events(partition), "MINID", "=", str(end.last))


async def _state(log: Log) -> list[Any]:
    return [sorted(await read(log, partition)) for partition in log.keys.all()]


async def _wipe(log: Log) -> None:
    """Redis comes back empty."""
    for partition in log.keys.all():
        doomed = {key async for key in log.redis.scan(log.keys.pattern(partition))}
        for key in doomed | {"horde:partitions"}:
            await log.read("DEL", key)


async def _differences(log: Log, scratch: Log, *, whole: bool = False) -> list[Difference]:
    await scratch.read("FLUSHDB")
    return await verify(log, scratch, whole=whole)


def _lost(found: list[Rebuilt]) -> list[int]:
    return [each.partition for each in found if each.lost]


async def test_state_comes_back_from_snapshot_archive_and_stream(
    pool: Pool, archive: Archive, scratch: Log
) -> None:
    log = pool.log
    await _worked(pool)
    await _archive(archive, log, trim=True)
    taken = [await take(archive, scratch, partition) for partition in log.keys.all()]
    await _worked(pool)
    await _archive(archive, log, leave=3, trim=True)
    before = await pool.snapshot()

    found = await rebuild_state(log, await Heard.of(log))

    assert await pool.snapshot() == before
    assert [each.snapshot for each in found] == [one.position if one else START for one in taken]
    assert [each.before for each in found] == [one.events if one else 0 for one in taken]
    for each in found:
        assert each.position == await log.head(each.partition)
        assert (each.lost, each.forgotten) == (None, False)
        assert each.before + each.folded == (await stretch(log, each.partition)).added
    assert await _differences(log, scratch) == []
    assert await _differences(log, scratch, whole=True) == []


async def test_into_an_empty_redis_comes_what_was_archived_and_content_is_gone(
    pool: Pool, archive: Archive, scratch: Log
) -> None:
    log = pool.log
    await _worked(pool)
    waiting = await pool.submit(jobs=2, operation=operation_of(KEY))
    held = await pool.assign(await pool.submit())
    assert held is not None
    await pool.settle()
    await _archive(archive, log)
    before, logs = await _state(log), [await stream_of(log, each) for each in log.keys.all()]
    await _wipe(log)

    with pytest.raises(Rebuilding):
        await pool.submit()
    with pytest.raises(RedisUnavailable):
        await log.check_begun()
    found = await rebuild_state(log, Heard([each[-1].position if each else START for each in logs]))

    assert int(await log.read("GET", PARTITIONS)) == log.keys.partitions
    assert await _state(log) == before
    for each, entries in zip(found, logs, strict=True):
        assert each.forgotten
        assert await stream_of(log, each.partition) == entries[-1:]
        assert (await stretch(log, each.partition)).added == len(entries)
        assert (each.lost is not None) == bool(entries)
        if each.lost and entries:
            assert each.lost.behind == each.lost.known == entries[-1].position

    done = await take_up(log, pool.limits)

    assert (done.fences, done.expired) == (0, 1)
    (expired,) = [
        entry.recorded.event
        for entry in await pool.events()
        if isinstance(entry.recorded.event, types.Expired)
    ]
    assert (expired.request_id, expired.cause) == (waiting, "content-lost")
    assert "faulted" not in await pool.words()
    await pool.reply(held.generation_id)  # its worker goes on
    await pool.settle()
    account = await pool.hash(log.keys.account(pool.client.id))
    assert account.get("held", "0") == "0"
    assert await log.read("EXISTS", log.keys.claim(pool.client.id, KEY)) == 0
    await _worked(pool)
    assert await _differences(log, scratch) == []


async def test_what_came_behind_the_archive_is_lost_and_told_and_no_new_event_stands_in_front_of_it(
    pool: Pool, archive: Archive, scratch: Log
) -> None:
    log = pool.log
    await _worked(pool)
    await _archive(archive, log)
    ends = [archive.end(each) for each in log.keys.all()]
    await pool.pass_time(60)
    await _worked(pool)
    heard = await Heard.of(log, lines=7)
    heads = [await log.head(each) for each in log.keys.all()]
    await _wipe(log)

    found = await rebuild_state(log, heard)

    for each, end, head in zip(found, ends, heads, strict=True):
        behind = end.last if end else START
        if head > behind:
            assert each.lost is not None
            assert (each.lost.behind, each.lost.known) == (behind, head)
            assert each.lost.ledger_lines == 7
    await take_up(log, pool.limits)
    last = max(heads)
    await _worked(pool)
    for partition in log.keys.all():
        new = [each.position for each in await stream_of(log, partition)][1:]
        assert all(position > last for position in new)
    await pool.settle()
    assert await _differences(log, scratch) == []


async def test_partitions_that_lost_tails_of_different_length_carry_each_effect_once(
    pool: Pool, archive: Archive, scratch: Log
) -> None:
    """Where the fence of one names an event that another lost, the settler goes on behind it."""
    log = pool.log
    await _worked(pool, 6)
    await _archive(archive, log)
    await _worked(pool, 8)
    # The effects on the payer of what other partitions lose are kept.
    await put_away(archive, log, log.keys.of_account(pool.client.id))
    await _wipe(log)

    await rebuild_state(log, Heard([START] * log.keys.partitions))  # Postgres lost all as well
    clocks = [
        int(await log.read("HGET", log.keys.control(each), "last_ms")) for each in log.keys.all()
    ]
    for target in log.keys.all():
        fences = await log.read("HVALS", log.keys.fences(target))
        assert all(Position.parse(fence).ms < min(clocks) for fence in fences)
    done = await take_up(log, pool.limits)

    assert (done.fences > 0) == (log.keys.partitions > 1)
    for target in log.keys.all():
        for source in log.keys.all():
            fence = await log.read("HGET", log.keys.fences(target), source)
            assert fence is None or await _is_in(archive, log, source, fence)
    await _worked(pool, 6)
    await pool.settle()
    rewarded = [
        generation
        for entry in await pool.events()
        if isinstance(entry.recorded.event, types.Rewarded)
        for generation in entry.recorded.event.generations
    ]
    assert len(rewarded) == len(set(rewarded))
    replied = {
        entry.recorded.event.generation_id
        for entry in await pool.events()
        if isinstance(entry.recorded.event, types.SubmittedReply)
    }
    assert replied <= set(rewarded)
    assert await _differences(log, scratch) == []


async def _is_in(archive: Archive, log: Log, partition: int, position: bytes) -> bool:
    at = position.decode()
    if Position.parse(at) == START:
        return archive.end(partition) is None
    stands = await log.read("XRANGE", log.keys.events(partition), at, at)
    return bool(stands) or archive.holds(partition, Position.parse(position))


async def test_what_a_redis_took_that_began_anew_is_folded_on_top(
    pool: Pool, archive: Archive, scratch: Log
) -> None:
    log = pool.log
    await _worked(pool)
    await _archive(archive, log)
    await _wipe(log)
    log.archive = None
    again = await Pool.opened(log, pool.limits)  # by somebody who knows no better
    await _worked(again)
    log.archive = archive
    kept = [await stream_of(log, each) for each in log.keys.all()]

    found = await rebuild_state(log)

    for each, entries in zip(found, kept, strict=True):
        end = archive.end(each.partition)
        stands = await stream_of(log, each.partition)
        assert stands[len(stands) - len(entries) :] == entries
        if end is None:
            continue
        assert each.lost is not None
        assert (each.lost.behind, each.lost.added) == (end.last, len(entries))
        assert (await stretch(log, each.partition)).added == end.beyond - 1 + len(entries)
    await take_up(log, pool.limits)
    await _archive(archive, log)
    assert await _differences(log, scratch) == []
    assert await _differences(log, scratch, whole=True) == []


@pytest.mark.parametrize("log", ["one partition"], indirect=True)
async def test_events_that_were_trimmed_before_they_were_archived_are_counted(
    pool: Pool, archive: Archive
) -> None:
    log = pool.log
    await _worked(pool)
    await _archive(archive, log)
    end = archive.end(0)
    assert end is not None
    await _worked(pool)
    behind = [each for each in await stream_of(log, 0) if each.position > end.last]
    await log.read("XTRIM", log.keys.events(0), "MINID", "=", str(behind[3].position))

    (found,) = await rebuild_state(log)

    assert found.lost is not None
    assert (found.lost.behind, found.lost.trimmed) == (end.last, 3)
    assert found.lost.added == len(behind) - 3
    assert [each.position for each in await stream_of(log, 0)] == [
        end.last,
        *(each.position for each in behind[3:]),
    ]


async def test_a_log_without_its_beginning_is_left_as_it_is(pool: Pool) -> None:
    log = pool.log
    await _worked(pool)
    at = log.keys.of_account(pool.client.id)
    await log.read("XTRIM", log.keys.events(at), "MINID", "=", str(await log.head(at)))
    before = await pool.snapshot()

    with pytest.raises(HistoryLost):
        await rebuild_state(log)

    assert await pool.snapshot() == before


@pytest.mark.parametrize("log", ["one partition"], indirect=True)
@pytest.mark.parametrize("wiped", [False, True])
async def test_a_rebuild_that_is_killed_is_mended_by_another(
    pool: Pool, archive: Archive, scratch: Log, wiped: bool
) -> None:
    log = pool.log
    await _worked(pool)
    await pool.submit()
    await _archive(archive, log)
    for partition in log.keys.all():
        await take(archive, scratch, partition)
    await _worked(pool, 1)
    await _archive(archive, log)
    before, heard = await _state(log), await Heard.of(log)
    counts = [(await stretch(log, each)).added for each in log.keys.all()]
    at, ended = 0, False
    while not ended:
        if wiped:
            await _wipe(log)
        at += 3 + at // 2
        dying = Log(Dying(log.redis, at), log.keys, test=True, archive=archive)
        try:
            await rebuild_state(dying, heard)
            ended = True
        except Killed:
            pass

        found = await rebuild_state(log, heard)

        assert await _state(log) == before
        assert [(await stretch(log, each)).added for each in log.keys.all()] == counts
        assert wiped or _lost(found) == []
        assert not await log.read("HGET", log.keys.control(0), "gate")
        await log.check_begun()
    assert at > 10


async def test_a_redis_that_is_emptied_while_it_is_rebuilt_is_not_taken_for_a_new_one(
    redis_url: str, s3_server: Service
) -> None:
    redis = Link(redis_url, timeout=10)
    log = Log(redis, Keys(4), test=True, archive=archive_in(s3_server, 4))
    assert log.archive is not None
    await _worked(await Pool.opened(log, Limits()), 1)
    await _archive(log.archive, log)
    before, heard = await _state(log), await Heard.of(log)
    whole = Emptied(redis, 10**6)
    await rebuild_state(Log(whole, log.keys, test=True, archive=log.archive), heard)
    commands, emptied = 10**6 - whole._left, 0
    for at in (commands // 3, commands * 2 // 3, *range(commands - 27, commands, 5)):
        dying = Emptied(redis, at)

        with contextlib.suppress(HistoryLost, LostMeanwhile, ResponseError):
            await rebuild_state(Log(dying, log.keys, test=True, archive=log.archive), heard)

        if dying._left > 0:  # one into an empty Redis took fewer
            break
        emptied += 1
        with pytest.raises(RedisUnavailable):
            await log.check_begun()
    assert emptied > 3
    await rebuild_state(log, heard)
    assert await _state(log) == before
    await log.check_begun()
    await log.close()
