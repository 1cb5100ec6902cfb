"""What the settler carries of a stretch, and that it does not matter where stretches are cut."""

from __future__ import annotations

import random

import msgspec
import pytest

from events import types
from events.base import Position, Recorded
from events.keys import Keys
from handlers.effects import Count, Effect, effects_of
from handlers.errors import RedisUnavailable
from handlers.log import Log
from handlers.replay import read_log
from handlers.settle import RUN, Settler, merged
from handlers.verify import verify
from tests.handlers.driver import Driver
from tests.handlers.invariants import check_settled
from tests.handlers.pool import Pool, operation_of
from tests.spec import spec

KEYS = Keys(1)
A, B, C = (f"{number:08x}-0000-4000-8000-000000000000" for number in range(3))


def _assigned(request_id: str, waiting: int, user_id: int = 7) -> types.Assigned:
    return types.Assigned(
        request_id=request_id, generation_id=A, worker_id=B, worker_name="w", owner_id=9,
        model="m", max_length=1, max_context_length=1, job_ttl=1, lease_cap=1, waiting=waiting,
        user_id=user_id,
    )  # fmt: skip


def _replied(request_id: str, *, done: bool) -> types.SubmittedReply:
    return types.SubmittedReply(
        request_id=request_id, generation_id=A, user_id=7, worker_id=B, owner_id=9, model="m",
        state="ok", finish_reason="stop", characters=1, tool_calls=0, finished=1, done=done,
    )  # fmt: skip


def _effects(*events: types.Assigned | types.SubmittedReply) -> list[Effect | Count]:
    effects: list[Effect | Count] = []
    for number, event in enumerate(events, 1):
        effects += effects_of(KEYS, Recorded(0, Position(number, 0), event))
    return effects


def _told(effects: list[Effect]) -> list[tuple[object, ...]]:
    told: list[tuple[object, ...]] = []
    for effect in effects:
        match effect.event:
            case types.WaitingChanged(user_id=user_id, requests=requests, waiting=waiting):
                told.append(
                    (user_id, dict(zip(requests, waiting, strict=True)), effect.position.ms)
                )
            case types.Released(request_id=request_id):
                told.append(("released", request_id, effect.position.ms))
    return told


def test_counts_of_one_account_go_together_and_the_last_of_a_request_counts() -> None:
    effects = _effects(
        _assigned(A, 2), _assigned(B, 0), _assigned(A, 1), _assigned(C, 5, user_id=8)
    )

    assert _told(merged(KEYS, effects)) == [(7, {A: 1, B: 0}, 3), (8, {C: 5}, 4)]


def test_what_is_released_is_not_counted_first() -> None:
    effects = _effects(_assigned(A, 0), _assigned(B, 1), _replied(A, done=True))

    assert _told(merged(KEYS, effects)) == [(7, {B: 1}, 2), ("released", A, 3)]


def test_a_job_whose_stretch_holds_all_of_it_costs_one_effect() -> None:
    assert len(merged(KEYS, _effects(_assigned(A, 0), _replied(A, done=True)))) == 1


def test_a_reply_that_leaves_others_running_changes_no_account() -> None:
    assert _effects(_replied(A, done=False)) == []


@pytest.mark.parametrize("seed", range(2))
async def test_it_does_not_matter_where_stretches_are_cut_or_who_else_settles(
    pool: Pool, scratch: Log, seed: int
) -> None:
    """Two settlers of each partition that stop and begin anew, each at its own pace."""
    await Driver(pool, seed).run(250)
    pace = random.Random(seed)

    for partition in pool.log.keys.all():
        for _ in range(6):
            settlers = [Settler(pool.log, pool.limits, partition) for _ in range(2)]
            starts = [await settler.start() for settler in settlers]
            entries = [e async for page in read_log(pool.log, partition) for e in page]
            for settler, start in zip(settlers, starts, strict=True):
                rest = [e.recorded for e in entries if e.recorded.position > start]
                for _ in range(3):
                    cut = pace.randrange(1, 40)
                    await settler.settle(rest[:cut])
                    rest = rest[cut:]
    await pool.settle()

    await check_settled(pool)
    assert await verify(pool.log, scratch) == []


async def test_two_settlers_carry_each_effect_once(pool: Pool) -> None:
    """C-125: what is settled comes again."""
    request_ids = [await pool.submit(operation=operation_of())] + [
        await pool.submit() for _ in range(20)
    ]
    for request_id in request_ids:
        job = await pool.assign(request_id)
        assert job is not None
        await pool.reply(job.generation_id)
    await pool.pass_time(1300)
    await pool.sweep()

    for partition in pool.log.keys.all():
        first, second = (
            Settler(pool.log, pool.limits, partition),
            Settler(pool.log, pool.limits, partition),
        )
        await first.start()
        await second.start()
        run = [e.recorded async for page in read_log(pool.log, partition) for e in page]
        await first.settle(run[: len(run) // 2])
        await second.settle(run)
        await first.settle(run[len(run) // 2 :])

    words = await pool.words()
    assert (words.count("released"), words.count("unclaimed")) == (21, 1)
    await check_settled(pool)


async def test_a_long_stretch_is_carried_in_few_events(pool: Pool) -> None:
    pool.limits = msgspec.structs.replace(pool.limits, concurrency=1000)
    for number in range(3 * RUN // 20):
        request_id = await pool.submit(jobs=20)
        for _ in range(20):
            assert await pool.assign(request_id, f"w{number % 3}") is not None

    await pool.settle()

    words = await pool.words()
    assert words.count("assigned") == 3 * RUN
    assert words.count("waiting-changed") <= 3 * RUN // 20
    assert await pool.waiting() == 0


def _timed(worker_id: str, characters: int, elapsed_ms: int) -> types.SubmittedReply:
    reply = _replied(A, done=False)
    return msgspec.structs.replace(
        reply, worker_id=worker_id, characters=characters, elapsed_ms=elapsed_ms, max_length=1000
    )


def test_samples_of_one_worker_go_together_and_only_the_newest_are_carried() -> None:
    effects = _effects(_timed(A, 400, 10_000), _timed(B, 0, 1000), _timed(A, 401, 10_000))

    assert [
        (each.event.worker_id, each.event.samples, each.position.ms)
        for each in merged(KEYS, effects)
        if isinstance(each.event, types.WorkerMeasured)
    ] == [(B, (20_000,), 2), (A, (10_000, 10_100), 3)]
    (carried,) = merged(KEYS, _effects(*(_timed(A, 400, n * 1000) for n in range(1, 41))))
    assert isinstance(carried.event, types.WorkerMeasured)
    assert carried.event.samples == tuple(round(100_000 / n) for n in range(21, 41))


def test_a_reply_of_before_times_were_recorded_is_no_sample() -> None:
    assert _effects(_replied(A, done=False)) == []


@spec("Job lease", 9)
async def test_a_worker_is_as_fast_as_its_newest_twenty_replies(pool: Pool) -> None:
    assert (await pool.worker()).speed is None
    for seconds in (1, *(4 for _ in range(20))):  # 20 tokens each: the least that counts
        job = await pool.assign(await pool.submit())
        assert job is not None
        await pool.pass_time(seconds)
        await pool.reply(job.generation_id)
        await pool.settle()

    worker = pool.log.keys.worker((await pool.worker()).id)
    speeds = (await pool.hash(worker))["speeds"].split(",")
    assert len(speeds) == 20
    measured = (await pool.worker()).speed
    assert measured is not None
    assert 4.5 < measured <= 5.0
    await pool.settle()
    assert (await pool.worker()).speed == measured


async def test_a_fence_that_a_failover_took_back_makes_the_settler_begin_anew(pool: Pool) -> None:
    """What was carried behind it is gone with it: it must not go on with what comes next."""
    log = pool.log
    await pool.submit()
    source = log.keys.of_account(pool.client.id)
    run = [e.recorded async for page in read_log(log, source) for e in page]
    settler = Settler(log, pool.limits, source)
    await settler.start()
    await settler._move(0, run[-1].position)
    await log.read("HSET", log.keys.fences(0), source, str(run[0].position))

    with pytest.raises(RedisUnavailable):
        await settler._call(0, [], Position(run[-1].position.ms + 1, 0))

    assert await log.read("HGET", log.keys.fences(0), source) == str(run[0].position).encode()
