"""What is counted and told of leases: renewals, lapses, and jobs too long for their worker."""

from __future__ import annotations

import time

import pytest

from handlers import pop
from handlers.errors import AbortedGen, WrongCredentials
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


@spec("Job lease", 2, 3)
async def test_a_late_reply_is_told_the_lease_as_it_was_in_the_end(pool: Pool) -> None:
    """The log is not told of each renewal."""
    request_id, begun = await pool.submit(stream=True), time.monotonic()
    job = await pool.assign(request_id)
    assert job is not None
    for seq in (1, 2):
        await pool.pass_time(10)
        await pool.post(job.generation_id, seq, "a")
    ttl = await _ttl(pool, job.generation_id)
    logged = await pool.hash(pool.log.keys.generation(job.generation_id))
    assert 170 <= ttl <= 171 + _since(begun)
    assert int(logged["job_ttl"]) < ttl

    await pool.pass_time(200)
    assert (await pool.sweep()).lapsed == 1

    with pytest.raises(AbortedGen, match=f"lease of {ttl} seconds"):
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


def _since(begun: float) -> float:
    """Seconds that really passed: a post that came late renews a lease for as much longer."""
    return time.monotonic() - begun


async def _ttl(pool: Pool, generation_id: str) -> int:
    """Seconds of the lease, as its hash has them."""
    return int((await pool.hash(pool.log.keys.lease(generation_id)))["job_ttl"])


@spec("Job lease", 3, 5)
async def test_a_lease_of_an_untrusted_owner_ends_at_two_hundred_seconds(pool: Pool) -> None:
    pool.owner = pool.client
    request_id, begun = await pool.submit(stream=True), time.monotonic()
    job = await pool.assign(request_id)
    assert job is not None

    await pool.pass_time(30)
    await pool.post(job.generation_id, 1, "a")
    assert 180 <= await _ttl(pool, job.generation_id) <= 181 + _since(begun)
    await pool.pass_time(100)
    await pool.post(job.generation_id, 2, "b")

    assert await _ttl(pool, job.generation_id) == 200


@spec("Job lease", 6)
@spec("Streaming progress", 4, 13)
async def test_neither_a_repeat_nor_a_post_after_the_lapse_or_the_cancel_renews(pool: Pool) -> None:
    request_id = await pool.submit(stream=True)
    job = await pool.assign(request_id)
    late = await pool.assign(await pool.submit(stream=True), "late")
    assert job is not None
    assert late is not None
    await pool.post(job.generation_id, 1, "a")
    before = await _ttl(pool, job.generation_id)

    await pool.pass_time(20)
    await pool.post(job.generation_id, 1, "a")
    assert await _ttl(pool, job.generation_id) == before
    await pool.cancel(request_id)
    assert (await pool.post(job.generation_id, 2, "b")).cancelled
    assert await _ttl(pool, job.generation_id) == before
    await pool.pass_time(140)
    await pool.post(late.generation_id, 1, "a")  # lapsed, and the janitor has not come by
    assert await _ttl(pool, late.generation_id) == 150


@spec("Streaming progress", 3, 12)
async def test_the_stream_holds_content_reasoning_and_the_end(pool: Pool) -> None:
    job = await pool.assign(await pool.submit(stream=True))
    assert job is not None
    worker = pool.names["w"]

    await pool.post(job.generation_id, 1, "a")
    await pool.post(job.generation_id, 2, "", "thinking")
    await pool.fault(job.generation_id)

    told = {"gen": job.generation_id, "worker": worker.id, "model": MODEL}
    assert await _entries(pool, job.request_id) == [
        told | {"seq": "1", "content": "a"},
        told | {"seq": "2", "content": "", "reasoning_content": "thinking"},
        {"gen": job.generation_id, "ended": "1"},
    ]


async def _entries(pool: Pool, request_id: str) -> list[dict[str, str]]:
    entries = await pool.log.read("XRANGE", pool.log.keys.stream(request_id), "-", "+")
    return [
        {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}
        for _, flat in entries
    ]


@spec("Streaming progress", 1)
async def test_a_post_is_judged_by_the_key_that_the_lease_was_given_for(pool: Pool) -> None:
    job = await pool.assign(await pool.submit(stream=True))
    assert job is not None
    generation = pool.log.keys.generation(job.generation_id)
    await pool.log.read("HSET", generation, "owner", pool.client.id)  # the log's copy has no say

    assert (await pool.post(job.generation_id, 1, "a")).seq == 1
    pool.owner = pool.client
    with pytest.raises(WrongCredentials):
        await pool.post(job.generation_id, 2, "b")
