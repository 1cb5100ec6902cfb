"""What a paused worker is given, and that nothing comes of it."""

from __future__ import annotations

import msgspec
import pytest

from handlers import errors
from handlers.decoy import Decoys
from handlers.log import Refusal
from handlers.pop import Assignment
from tests.handlers.pool import MODEL, Pool
from tests.instruments import counted


async def _given(pool: Pool, request_id: str, name: str = "w") -> Assignment | None:
    worker = await pool.worker(name)
    return await Decoys(pool.log, pool.limits).give(worker, request_id, MODEL)


async def _told(pool: Pool) -> dict[str, object]:
    """All that is stored but decoys themselves."""
    return {
        key: value
        for key, value in (await pool.snapshot()).items()
        if not any(part in key for part in ("decoy:", "tricked:", "chat:lease:"))
    }


async def test_a_decoy_is_answered_as_a_job_and_changes_nothing(pool: Pool) -> None:
    await pool.worker()
    request_id, before = await pool.submit(stream=True), counted()
    stored = await _told(pool)

    job = await _given(pool, request_id)
    assert job is not None
    assert msgspec.json.decode(job.messages)[0]["content"] == "hi"
    assert (await pool.post(job.generation_id, 1, "a")).seq == 1
    assert (await pool.post(job.generation_id, 1, "a")).seq == 1
    with pytest.raises(errors.ChatProgressOutOfSequence):
        await pool.post(job.generation_id, 3, "c")
    assert not await pool.reply(job.generation_id)
    with pytest.raises(errors.DuplicateGen):
        await pool.reply(job.generation_id)
    with pytest.raises(errors.DuplicateGen):
        await pool.fault(job.generation_id)

    assert await _told(pool) == stored
    assert counted() == before
    assert await pool.assign(request_id, "real") is not None


async def test_a_decoy_that_is_given_up_counts_for_nobody(pool: Pool) -> None:
    await pool.worker()
    request_id = await pool.submit()
    job = await _given(pool, request_id)
    assert job is not None
    stored = await _told(pool)

    await pool.fault(job.generation_id)
    await pool.fault(job.generation_id)
    with pytest.raises(errors.AbortedGen):
        await pool.reply(job.generation_id)
    await pool.pass_time(160)
    await pool.sweep()
    await pool.settle()

    assert (await pool.request(request_id))["faults"] == "0"
    assert stored.keys() <= (await _told(pool)).keys()


async def test_a_worker_gets_no_second_decoy_of_a_request(pool: Pool) -> None:
    request_id = await pool.submit()

    assert await _given(pool, request_id) is not None
    assert await _given(pool, request_id) is None  # in any process
    assert await _given(pool, request_id, "other") is not None


async def test_only_the_owner_may_submit_it(pool: Pool) -> None:
    job = await _given(pool, await pool.submit())
    assert job is not None
    pool.owner = pool.client

    with pytest.raises(errors.WrongCredentials):
        await pool.reply(job.generation_id)


async def test_nothing_is_given_of_what_waits_no_more(pool: Pool) -> None:
    request_id = await pool.submit()
    await pool.assign(request_id)

    assert await _given(pool, request_id, "paused") is None
    with pytest.raises(Refusal, match="GONE"):
        await pool.log.run("decoy", *_call(pool))


def _call(pool: Pool) -> tuple[int, dict[str, object], dict[str, object]]:
    keys, request_id = pool.log.keys, pool.log.keys.new_request_id()
    generation_id = keys.new_id_beside(request_id)
    return (
        keys.of(request_id),
        {
            "request": keys.request(request_id),
            "decoy": keys.decoy(generation_id),
            "tricked": keys.tricked(request_id),
            "lease": keys.lease(generation_id),
        },
        {
            "request_id": request_id,
            "worker_id": "w",
            "owner_id": 1,
            "model": MODEL,
            "job_ttl": 150,
            "key": "k",
            "bytes_per_token": 16,
            "grace": 90,
            "kept": 100,
        },
    )
