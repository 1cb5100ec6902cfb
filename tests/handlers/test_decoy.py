"""What a paused worker is given, and that nothing comes of it."""

from __future__ import annotations

import time

import msgspec
import pytest

from handlers import errors
from handlers.cancel import cancel
from handlers.decoy import Decoys, end_decoy
from handlers.log import Refusal
from handlers.pop import Assignment
from handlers.progress import Accepted
from tests.handlers.pool import DECLARATION, MODEL, TARIFF, Pool
from tests.instruments import counted
from tests.spec import spec


async def _given(pool: Pool, request_id: str, name: str = "w") -> Assignment | None:
    worker = await pool.worker(name)
    return await Decoys(pool.log, pool.limits).give(worker, DECLARATION, request_id, MODEL)


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
            "lease_cap": 200,
            "key": "k",
            "trusted": 0,
            "bytes_per_token": 16,
            "grace": 90,
            "kept": 100,
            "generation_id": generation_id,
            "most": 1,
            "validated": 0,
            "images": "",
            "messages": "",
        },
    )


async def _ends(pool: Pool, generation_id: str, seq: int) -> tuple[object, object]:
    """How a post and then a submit are answered: a real job's and a decoy's the same."""
    answers: list[object] = []
    for command in (
        lambda: pool.post(generation_id, seq, "x"),
        lambda: pool.reply(generation_id),
    ):
        try:
            answers.append(await command())
        except errors.Refused as refused:
            answers.append(type(refused))
    post, submit = answers
    return post, submit


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("cause", ["client", "maintenance"])
@spec("Streaming progress", 13)
async def test_a_cancel_reaches_decoys_as_it_reaches_jobs(
    pool: Pool, stream: bool, cause: str
) -> None:
    request_id = await pool.submit(stream=stream, jobs=2)
    job, decoy = await pool.assign(request_id, "real"), await _given(pool, request_id)
    assert job is not None
    assert decoy is not None

    await cancel(pool.log, pool.limits, TARIFF, request_id, cause)

    told = [await _ends(pool, each.generation_id, 1) for each in (decoy, job)]
    assert told[0][0] == told[1][0]
    if stream and cause == "client":
        assert told[0] == (Accepted(1, cancelled=True), errors.AbortedGen)
        ended = await pool.log.read("XRANGE", pool.log.keys.stream(request_id), "-", "+")
        assert decoy.generation_id.encode() not in repr(ended).encode()
    else:
        assert told[0][1] is not errors.AbortedGen


@pytest.mark.parametrize("posted", [True, False])
async def test_the_lease_of_a_decoy_is_renewed_and_runs_out_as_that_of_a_job(
    pool: Pool, posted: bool
) -> None:
    request_id, begun = await pool.submit(stream=True, jobs=2), time.monotonic()
    job, decoy = await pool.assign(request_id, "real"), await _given(pool, request_id)
    assert job is not None
    assert decoy is not None
    leases = [pool.log.keys.lease(each.generation_id) for each in (decoy, job)]

    await pool.pass_time(40)
    if posted:
        for each in (decoy, job):
            await pool.post(each.generation_id, 1, "x")
    ours, theirs = [await pool.hash(lease) for lease in leases]
    assert ours.keys() == theirs.keys()
    named = ("lease_cap", "trusted", "max_bytes", "bytes", "seq")
    assert [ours.get(name) for name in named] == [theirs.get(name) for name in named]
    # They began, and were posted to, one after the other. And it is rounded up to seconds.
    passed = time.monotonic() - begun
    assert abs(int(ours["job_ttl"]) - int(theirs["job_ttl"])) <= 1 + passed
    assert int(ours["job_ttl"]) >= 190 if posted else ours["job_ttl"] == "150"
    await pool.pass_time(120)
    await pool.sweep()

    told = [await _ends(pool, each.generation_id, 2 if posted else 1) for each in (decoy, job)]

    if posted:
        assert told == [(Accepted(2, cancelled=False), False)] * 2
    else:
        assert told == [(errors.ChatJobAborted, errors.AbortedGen)] * 2


async def test_a_decoy_whose_time_is_over_may_be_given_up_as_a_job_may(pool: Pool) -> None:
    request_id = await pool.submit(jobs=2)
    job, decoy = await pool.assign(request_id, "real"), await _given(pool, request_id)
    await pool.pass_time(160)
    await pool.sweep()

    for each in (decoy, job):
        assert each is not None
        await pool.fault(each.generation_id)


async def test_a_decoy_is_gone_with_its_request(pool: Pool) -> None:
    request_id = await pool.submit(stream=True)
    decoy = await _given(pool, request_id)
    assert decoy is not None
    await pool.pass_time(100)
    await pool.post(decoy.generation_id, 1, "x")

    await pool.pass_time(1110)
    assert (await pool.sweep()).expired == 1

    assert await _ends(pool, decoy.generation_id, 2) == (errors.ChatJobAborted, errors.InvalidJobID)
    with pytest.raises(Refusal, match="NOT_FOUND"):
        await end_decoy(pool.log, decoy.generation_id, "finished")
