"""Maintenance: what waits is cancelled, what a worker holds may be finished."""

from __future__ import annotations

import msgspec
import pytest

from events import types
from handlers import modes as modes_module
from handlers.log import Log
from handlers.modes import Modes, cancel_waiting, read_modes, set_modes
from tests.handlers.pool import Pool


async def _switch(pool: Pool, *, on: bool = True) -> bool:
    return await set_modes(pool.log, pool.limits, maintenance=on)


async def _cancelled(pool: Pool) -> list[types.Cancelled]:
    events = [entry.recorded.event for entry in await pool.events()]
    return [event for event in events if isinstance(event, types.Cancelled)]


async def test_it_is_off_until_someone_switches_it(pool: Pool) -> None:
    assert not (await read_modes(pool.log)).maintenance

    assert await _switch(pool)
    assert (await read_modes(pool.log)).maintenance

    assert await _switch(pool, on=False)
    assert not (await read_modes(pool.log)).maintenance


async def test_switching_it_to_where_it_stands_changes_nothing(pool: Pool) -> None:
    before = await pool.snapshot()
    assert not await _switch(pool, on=False)
    assert await pool.snapshot() == before

    await _switch(pool)
    before = await pool.snapshot()
    assert not await _switch(pool)
    assert await pool.snapshot() == before


async def test_what_waits_is_cancelled_in_its_name(pool: Pool) -> None:
    waiting = [await pool.submit(), await pool.submit(jobs=2, stream=True)]

    await _switch(pool)

    cancelled = await _cancelled(pool)
    assert {event.request_id for event in cancelled} == set(waiting)
    assert {(event.cause, event.done, event.settled) for event in cancelled} == {
        ("maintenance", True, ())
    }
    for request_id in waiting:
        assert (await pool.request(request_id))["state"] == "done"
        assert await pool.assign(request_id) is None
    await pool.settle()
    assert await pool.waiting() == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_jobs_in_flight_may_be_finished(pool: Pool, stream: bool) -> None:
    request_id = await pool.submit(jobs=2, stream=stream)
    job = await pool.assign(request_id)
    assert job is not None
    posted = await pool.log.read("XLEN", pool.log.keys.stream(request_id))

    await _switch(pool)

    assert len(await _cancelled(pool)) == 1
    assert await pool.log.read("XLEN", pool.log.keys.stream(request_id)) == posted
    if stream:
        accepted = await pool.post(job.generation_id, 1, "still at it")
        assert not accepted.cancelled
    assert await pool.reply(job.generation_id)


async def test_a_request_of_which_nothing_waits_is_left_alone_until_it_does(pool: Pool) -> None:
    request_id = await pool.submit()
    job = await pool.assign(request_id)
    assert job is not None
    await _switch(pool)
    assert await _cancelled(pool) == []

    await pool.fault(job.generation_id)
    swept = await pool.sweep()

    assert swept.cancelled == 1
    assert (await pool.request(request_id))["state"] == "done"


async def test_the_janitor_cancels_what_slipped_in(pool: Pool) -> None:
    """A web process that had not heard of it, or a switch that was cut short."""
    await _switch(pool)
    late = await pool.submit()

    assert (await pool.sweep()).cancelled == 1
    assert (await pool.sweep()).cancelled == 0

    assert [event.request_id for event in await _cancelled(pool)] == [late]


async def test_without_it_the_janitor_leaves_waiting_requests_alone(pool: Pool) -> None:
    await _switch(pool)
    await _switch(pool, on=False)
    request_id = await pool.submit()

    assert (await pool.sweep()).cancelled == 0

    assert await pool.assign(request_id) is not None


async def test_every_page_of_a_long_queue_is_cancelled(pool: Pool) -> None:
    """Many requests of one millisecond, too: they share a place in the order of the due-set."""
    pool.limits = msgspec.structs.replace(pool.limits, concurrency=1000)
    count = modes_module.PAGE * 2 + 7
    for _ in range(count):
        await pool.submit()
    for partition in pool.log.keys.all():
        due = pool.log.keys.due(partition, "request")
        members = await pool.log.read("ZRANGE", due, 0, -1)
        for number, member in enumerate(members):
            await pool.log.read("ZADD", due, 1_900_000_000_000 + number // 150, member)

    cancelled = [
        await cancel_waiting(pool.log, pool.limits, partition) for partition in pool.log.keys.all()
    ]

    assert sum(cancelled) == count


async def test_a_busy_process_does_not_read_the_modes_each_time(pool: Pool) -> None:
    busy = Log(pool.log.redis, pool.log.keys)
    kept, fresh = Modes(busy, keep_seconds=3600), Modes(busy, keep_seconds=0)
    tested = Modes(pool.log, keep_seconds=3600)
    for modes in (kept, fresh, tested):
        assert not (await modes.current()).maintenance

    await _switch(pool)

    assert not (await kept.current()).maintenance
    assert (await fresh.current()).maintenance
    assert (await tested.current()).maintenance
