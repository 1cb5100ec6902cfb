"""Who is blamed for a job that failed, and what follows from too much of it."""

from __future__ import annotations

import msgspec
import pytest

from handlers.errors import ChatModelMismatch, ChatSubmitInvalid, ChatSubmitNonconformant, Refused
from handlers.settle import ABORTS_BORNE, DROPPED
from tests.handlers.pool import Pool
from tests.spec import spec


async def worker(pool: Pool, name: str = "w") -> dict[str, str]:
    return await pool.hash(pool.log.keys.worker(pool.names[name].id))


async def counters(pool: Pool, name: str = "w") -> tuple[int, int]:
    """Dropped jobs, and nonconformant replies."""
    await pool.settle()
    fields = await worker(pool, name)
    return int(fields.get("aborts", 0)), int(fields.get("nonconformant", 0))


async def job(pool: Pool, name: str = "w") -> str:
    taken = await pool.assign(await pool.submit(), name)
    assert taken is not None
    return taken.generation_id


async def drop(pool: Pool, times: int) -> None:
    for _ in range(times):
        taken = await pool.assign(await pool.submit())
        assert taken is not None
        await pool.fault(taken.generation_id)
        await pool.cancel(taken.request_id)
    await pool.settle()


@spec("Refusal record and worker counters", 4, 5)
@pytest.mark.parametrize("lapses", [False, True])
@pytest.mark.parametrize(
    ("refusals", "counted"),
    [
        ((), (1, 0)),
        ((ChatSubmitInvalid,), (1, 0)),
        ((ChatModelMismatch,), (1, 0)),
        ((ChatSubmitNonconformant,), (0, 1)),
        ((ChatSubmitInvalid, ChatSubmitNonconformant), (0, 1)),
        ((ChatSubmitNonconformant, ChatSubmitInvalid), (1, 0)),
    ],
)
async def test_the_last_refusal_of_the_job_decides_what_is_counted(
    pool: Pool, refusals: tuple[type[Refused], ...], counted: tuple[int, int], lapses: bool
) -> None:
    generation_id = await job(pool)
    for kind in refusals:
        await pool.refuse(generation_id, kind)

    if lapses:
        await pool.pass_time(160)
        await pool.sweep()
    else:
        await pool.fault(generation_id, "reply_refused")

    assert await counters(pool) == counted


@spec("Refusal record and worker counters", 4)
async def test_a_worker_cannot_claim_the_exemption(pool: Pool) -> None:
    await pool.fault(await job(pool), "tool_violation")

    assert await counters(pool) == (1, 0)


async def test_a_refusal_of_another_job_is_no_excuse(pool: Pool) -> None:
    request_id = await pool.submit()
    first = await pool.assign(request_id, "a")
    assert first is not None
    await pool.refuse(first.generation_id)
    await pool.fault(first.generation_id)
    second = await pool.assign(request_id, "b")
    assert second is not None
    await pool.fault(second.generation_id)

    assert [await counters(pool, name) for name in "ab"] == [(0, 1), (1, 0)]


async def test_the_same_refusal_twice_is_one_fact_and_the_last_message(pool: Pool) -> None:
    generation_id = await job(pool)

    for said in ("first", "second"):
        await pool.refuse(generation_id, said=said)

    assert (await pool.words("released")).count("refused") == 1
    request = (await pool.held(generation_id)).request_id
    content = await pool.log.read("HGET", pool.log.keys.content(request), "fault_reason")
    assert content == b"second"


async def test_of_a_request_whose_content_is_lost_nothing_is_kept_for_ever(pool: Pool) -> None:
    generation_id = await job(pool)
    content = pool.log.keys.content((await pool.held(generation_id)).request_id)
    await pool.log.read("DEL", content)

    await pool.refuse(generation_id)

    assert await pool.log.read("EXISTS", content) == 0


@spec("Refusal record and worker counters", 6)
async def test_too_many_drops_in_an_hour_put_a_worker_into_maintenance(pool: Pool) -> None:
    await drop(pool, ABORTS_BORNE)
    assert (await worker(pool))["maintenance"] == "0"

    await drop(pool, 1)

    fields = await worker(pool)
    assert (fields["maintenance"], fields["maintenance_msg"]) == ("1", DROPPED)
    assert fields["recent_aborts"] == "0"
    await drop(pool, 1)
    assert (await worker(pool))["aborts"] == str(ABORTS_BORNE + 2)


async def test_drops_of_the_hour_before_do_not_count(pool: Pool) -> None:
    await drop(pool, ABORTS_BORNE)
    await pool.pass_time(3601)

    await drop(pool, ABORTS_BORNE)

    assert (await worker(pool))["maintenance"] == "0"


@spec("Refusal record and worker counters", 6)
async def test_a_drop_that_is_carried_late_counts_in_its_own_hour(pool: Pool) -> None:
    """From the log of another partition, whose settler was away."""
    pool.limits = msgspec.structs.replace(pool.limits, concurrency=1000)
    keys = pool.log.keys
    late, prompt = 0, keys.partitions - 1

    async def drop_in(partition: int) -> None:
        while keys.of(request_id := await pool.submit()) != partition:
            await pool.cancel(request_id)
        taken = await pool.assign(request_id)
        assert taken is not None
        await pool.fault(taken.generation_id)
        await pool.cancel(request_id)

    for _ in range(ABORTS_BORNE):
        await drop_in(late)
        await pool.settle(prompt)
    await pool.pass_time(3700)
    await drop_in(prompt)

    await pool.settle(prompt)
    await pool.settle(late)

    fields = await worker(pool)
    assert (fields["aborts"], fields["maintenance"]) == (str(ABORTS_BORNE + 1), "0")


async def test_nonconformant_replies_never_put_a_worker_into_maintenance(pool: Pool) -> None:
    for _ in range(ABORTS_BORNE + 2):
        generation_id = await job(pool)
        await pool.refuse(generation_id)
        await pool.fault(generation_id)

    assert await counters(pool) == (0, ABORTS_BORNE + 2)
    assert (await worker(pool))["maintenance"] == "0"


async def test_a_job_settled_by_a_cancel_is_nobody_s_fault(pool: Pool) -> None:
    request_id = await pool.submit(stream=True)
    taken = await pool.assign(request_id)
    assert taken is not None

    await pool.cancel(request_id)

    assert await counters(pool) == (0, 0)
