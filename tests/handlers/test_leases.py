"""What is counted and told of leases: renewals, lapses, and jobs too long for their worker."""

from __future__ import annotations

import pytest

from handlers import pop
from handlers.errors import AbortedGen
from handlers.pop import Overrun, assign
from tests.handlers.pool import DECLARATION, MODEL, Pool
from tests.instruments import counted, point, recorded
from tests.logged import logged
from tests.spec import spec

RENEWALS = "horde.text.lease_renewals"
SHADOW = "horde.text.gate_shadow"


@spec("Job lease", 11)
async def test_posts_that_renew_a_lease_or_find_it_at_its_cap_are_counted(pool: Pool) -> None:
    job = await pool.assign(await pool.submit(stream=True))
    assert job is not None
    before = counted()

    await pool.pass_time(10)
    await pool.post(job.generation_id, 1, "a")
    await pool.post(job.generation_id, 1, "a")  # a repeat
    for seq, seconds in enumerate((140, 140, 140, 60, 10), 2):
        await pool.pass_time(seconds)
        await pool.post(job.generation_id, seq, "b")

    assert counted() - before == {
        point(RENEWALS, outcome="granted", worker_trusted=True): 5,
        point(RENEWALS, outcome="at_cap", worker_trusted=True): 1,
    }


@spec("Job lease", 2, 12)
async def test_a_lapse_is_counted_and_the_late_reply_is_told_its_lease(pool: Pool) -> None:
    job = await pool.assign(await pool.submit())
    assert job is not None
    before = counted()

    await pool.pass_time(151)
    await pool.sweep()

    assert counted() - before == {
        point("horde.text.stale_aborts", worker_trusted=True, chat=True): 1
    }
    with pytest.raises(AbortedGen, match="150 seconds"):
        await pool.reply(job.generation_id)


@spec("Job lease", 2)
async def test_a_reply_between_the_deadline_and_the_janitor_is_taken(pool: Pool) -> None:
    job = await pool.assign(await pool.submit())
    assert job is not None

    await pool.pass_time(200)

    assert await pool.reply(job.generation_id)


@spec("Job lease", 10, 14, 15, 16)
@pytest.mark.parametrize("end", ["completed", "faulted", "aborted"])
async def test_a_job_over_capacity_is_told_of_and_its_end_counted(pool: Pool, end: str) -> None:
    request_id, before = await pool.submit(max_length=1500), counted()
    seconds = recorded(f"{SHADOW}.service_seconds")
    worker = await pool.worker()

    with logged(pop.logger) as lines:
        job = await assign(
            pool.log,
            pool.limits,
            worker,
            DECLARATION,
            request_id,
            MODEL,
            Overrun(max_length=1500, capacity=600, speed=5.0),
        )
    assert job is not None
    match end:
        case "completed":
            await pool.reply(job.generation_id)
        case "faulted":
            await pool.fault(job.generation_id)
        case _:
            await pool.pass_time(151)
            await pool.sweep()

    (line,) = [each for each in lines if each["event"] == "assigned_over_capacity"]
    told = (
        "log_level",
        "generation_id",
        "request_id",
        "worker_id",
        "max_length",
        "capacity",
        "speed",
    )
    assert [line[name] for name in told] == [
        "info", job.generation_id, request_id, worker.id, 1500, 600, 5.0,
    ]  # fmt: skip
    size = {"worker_trusted": True, "size_bucket": "1025-2048"}
    added = counted() - before
    assert added[point(f"{SHADOW}.assignments", **size)] == 1
    assert added[point(f"{SHADOW}.outcomes", **size, outcome=end)] == 1
    took = recorded(f"{SHADOW}.service_seconds") - seconds
    assert sum(took.values()) == (1 if end == "completed" else 0)
