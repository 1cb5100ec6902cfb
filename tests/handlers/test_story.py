"""One job from end to end through the handlers, and the ways in which it can go otherwise."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from handlers import errors
from handlers.admission import admit
from handlers.pop import give_back
from handlers.submit import abandon
from tests.handlers.pool import DECLARATION, MODEL, Pool, minting
from tests.spec import spec


async def test_a_job_goes_from_submit_to_reply(pool: Pool) -> None:
    request_id = await pool.submit()

    job = await pool.assign(request_id)
    assert job is not None
    done = await pool.reply(job.generation_id)

    assert done
    assert job.model == MODEL
    assert job.messages == b'[{"role":"user","content":"hi"}]'
    request = await pool.request(request_id)
    assert (request["state"], request["finished"], request["processing"], request["waiting"]) == (
        "done",
        "1",
        "0",
        "0",
    )
    assert await pool.words() == ["submitted", "assigned", "submitted-reply"]


async def test_a_job_is_given_once(pool: Pool) -> None:
    request_id = await pool.submit()

    first, second = await pool.assign(request_id, "a"), await pool.assign(request_id, "b")

    assert first is not None
    assert second is None


async def test_a_request_of_two_jobs_is_done_with_the_second_reply(pool: Pool) -> None:
    request_id = await pool.submit(jobs=2)
    jobs = [await pool.assign(request_id, name) for name in ("a", "b")]

    outcomes = [await pool.reply(job.generation_id) for job in jobs if job]

    assert outcomes == [False, True]


async def test_a_second_submit_is_refused_and_changes_nothing(pool: Pool) -> None:
    job = await pool.assign(await pool.submit())
    assert job is not None
    await pool.reply(job.generation_id)
    before = await pool.snapshot()

    with pytest.raises(errors.DuplicateGen):
        await pool.reply(job.generation_id)
    with pytest.raises(errors.DuplicateGen):
        await pool.fault(job.generation_id)

    assert await pool.snapshot() == before


@spec("Job lease", 1, 2)
async def test_a_lapsed_lease_frees_the_job_and_its_late_reply_is_refused(pool: Pool) -> None:
    request_id = await pool.submit()
    job = await pool.assign(request_id, "slow")
    assert job is not None
    await pool.pass_time(151)

    swept = await pool.sweep()

    assert swept.lapsed == 1
    before = await pool.snapshot()
    with pytest.raises(errors.AbortedGen, match="150 seconds"):
        await pool.reply(job.generation_id)
    assert await pool.snapshot() == before
    second = await pool.assign(request_id, "quick")
    assert second is not None
    assert await pool.reply(second.generation_id)


@spec("Job lease", 1, 7)
async def test_a_lease_does_not_lapse_early(pool: Pool) -> None:
    await pool.assign(await pool.submit())
    await pool.pass_time(130)

    assert (await pool.sweep()).lapsed == 0


async def test_the_third_fault_ends_the_request(pool: Pool) -> None:
    request_id = await pool.submit()
    for name in ("a", "b", "c"):
        job = await pool.assign(request_id, name)
        assert job is not None
        await pool.fault(job.generation_id)

    request = await pool.request(request_id)

    assert (request["state"], request["faulted"], request["waiting"]) == ("done", "1", "0")
    assert await pool.assign(request_id, "d") is None


async def test_a_worker_is_not_offered_what_it_faulted_a_moment_ago(pool: Pool) -> None:
    request_id = await pool.submit()
    job = await pool.assign(request_id, "w")
    assert job is not None
    await pool.fault(job.generation_id)

    assert await pool.assign(request_id, "w") is None
    await pool.pass_time(11)
    assert await pool.assign(request_id, "w") is not None


async def test_a_repeated_fault_changes_nothing(pool: Pool) -> None:
    job = await pool.assign(await pool.submit())
    assert job is not None
    await pool.fault(job.generation_id)
    before = await pool.snapshot()

    await pool.fault(job.generation_id)

    assert await pool.snapshot() == before


async def test_cancel_lets_an_unstreamed_job_finish(pool: Pool) -> None:
    request_id = await pool.submit(jobs=2)
    job = await pool.assign(request_id)
    assert job is not None

    ended = await pool.cancel(request_id)

    assert (ended.done, ended.changed) == (False, True)
    assert await pool.assign(request_id, "other") is None
    assert await pool.reply(job.generation_id)


async def test_a_fault_after_a_cancel_does_not_restart(pool: Pool) -> None:
    request_id = await pool.submit()
    job = await pool.assign(request_id)
    assert job is not None
    await pool.cancel(request_id)

    await pool.fault(job.generation_id)

    request = await pool.request(request_id)
    assert (request["state"], request["faulted"], request["waiting"]) == ("done", "0", "0")


async def test_cancel_settles_a_streamed_job_on_what_was_posted(pool: Pool) -> None:
    request_id = await pool.submit(stream=True)
    job = await pool.assign(request_id)
    assert job is not None
    await pool.post(job.generation_id, 1, "héllo")

    ended = await pool.cancel(request_id)

    assert ended.done
    cancelled = (await pool.events())[-1].recorded.event
    accepted = await pool.post(job.generation_id, 2, "more")
    assert accepted.cancelled
    with pytest.raises(errors.AbortedGen):
        await pool.reply(job.generation_id)
    words = [entry.recorded.event for entry in await pool.events()]
    settled = next(e for e in words if type(e).__name__ == "Cancelled")
    assert settled.characters == (5,)
    assert settled.settled == (job.generation_id,)
    assert cancelled is not None


async def test_a_repeated_cancel_changes_nothing(pool: Pool) -> None:
    request_id = await pool.submit(stream=True)
    await pool.assign(request_id)
    await pool.cancel(request_id)
    before = await pool.snapshot()

    assert not (await pool.cancel(request_id)).changed

    assert await pool.snapshot() == before


@spec("Streaming progress", 2, 4, 8, 9)
async def test_progress_follows_its_table(pool: Pool) -> None:
    """C-101: posts get lost, repeated or reordered."""
    job = await pool.assign(await pool.submit(stream=True))
    assert job is not None
    post, generation_id = pool.post, job.generation_id

    assert (await post(generation_id, 1, "a")).seq == 1
    assert (await post(generation_id, 2, "b")).seq == 2
    assert (await post(generation_id, 2, "b")).seq == 2
    for seq, content in ((2, "B"), (4, "d"), (1, "a")):
        with pytest.raises(errors.ChatProgressOutOfSequence) as refused:
            await post(generation_id, seq, content)
        assert refused.value.extra == {"expected_seq": 3}
    pool.owner, owner = pool.client, pool.owner
    with pytest.raises(errors.WrongCredentials):
        await post(generation_id, 3, "c")
    pool.owner = owner
    assert await pool.log.read("XLEN", pool.log.keys.stream(job.request_id)) == 2


@spec("Job lease", 3, 4)
async def test_progress_renews_the_lease_up_to_its_cap(pool: Pool) -> None:
    job = await pool.assign(await pool.submit(stream=True))
    assert job is not None
    for seq in range(1, 8):
        await pool.pass_time(100)
        await pool.post(job.generation_id, seq, "x")
        if seq <= 5:
            assert (await pool.sweep()).lapsed == 0

    assert (await pool.sweep()).lapsed == 1  # 700 s: past the cap of 600 s
    lease = await pool.hash(pool.log.keys.lease(job.generation_id))
    assert lease == {}


@spec("Streaming progress", 6, 7)
async def test_progress_says_why_there_is_no_lease(pool: Pool) -> None:
    plain = await pool.assign(await pool.submit(), "a")
    faulted = await pool.assign(await pool.submit(stream=True), "b")
    assert plain is not None
    assert faulted is not None
    await pool.fault(faulted.generation_id)

    with pytest.raises(errors.ChatProgressNotStreaming):
        await pool.post(plain.generation_id, 1, "x")
    with pytest.raises(errors.ChatJobAborted):
        await pool.post(faulted.generation_id, 1, "x")
    with pytest.raises(errors.ChatJobAborted):
        await pool.post(pool.log.keys.new_request_id(), 1, "x")


@spec("Streaming progress", 10)
async def test_progress_stops_at_the_byte_cap(pool: Pool) -> None:
    job = await pool.assign(await pool.submit(stream=True, max_length=16))
    assert job is not None
    await pool.post(job.generation_id, 1, "x" * 256)

    with pytest.raises(errors.ChatProgressCapReached):
        await pool.post(job.generation_id, 2, "x")


async def test_a_given_back_job_waits_again_without_blame(pool: Pool) -> None:
    request_id = await pool.submit()
    job = await pool.assign(request_id)
    assert job is not None

    await give_back(pool.log, request_id, job.generation_id)

    request = await pool.request(request_id)
    assert (request["waiting"], request["processing"], request["faults"]) == ("1", "0", "0")
    before = await pool.snapshot()
    await give_back(pool.log, request_id, job.generation_id)
    assert await pool.snapshot() == before
    assert await pool.assign(request_id) is not None


async def test_an_id_given_back_before_its_assign_is_spent(pool: Pool) -> None:
    """A hung Redis may run a give-back before the assign that it follows up."""
    request_id = await pool.submit()
    late = pool.log.keys.new_id_beside(request_id)
    await give_back(pool.log, request_id, late)

    assert await replace(pool, log=minting(pool.log, late)).assign(request_id) is None

    assert await pool.assign(request_id) is not None


async def test_a_request_expires_twenty_minutes_after_its_last_move(pool: Pool) -> None:
    request_id = await pool.submit()
    await pool.pass_time(1100)
    job = await pool.assign(request_id)
    assert job is not None
    await pool.reply(job.generation_id)
    await pool.pass_time(1170)
    assert (await pool.sweep()).expired == 0
    await pool.pass_time(31)

    assert (await pool.sweep()).expired == 1

    assert await pool.request(request_id) == {}
    assert await pool.hash(pool.log.keys.content(request_id)) == {}
    with pytest.raises(errors.InvalidJobID):
        await pool.held(job.generation_id)


async def test_a_request_without_content_ends_without_blame(pool: Pool) -> None:
    request_id = await pool.submit()
    await pool.log.read("DEL", pool.log.keys.content(request_id))

    assert await pool.assign(request_id) is None

    assert await pool.words() == ["submitted", "expired"]
    assert (await pool.request(request_id))["state"] == "abandoned"
    await pool.settle()  # or the sweep of another partition may bury the id anew, for a ttl
    await pool.pass_time(61)
    await pool.sweep()
    assert await pool.request(request_id) == {}


async def test_the_settler_frees_the_account_and_counts_faults_once(pool: Pool) -> None:
    request_id = await pool.submit()
    job = await pool.assign(request_id, "a")
    assert job is not None
    await pool.fault(job.generation_id)
    again = await pool.assign(request_id, "b")
    assert again is not None
    await pool.reply(again.generation_id)

    await pool.settle()
    await pool.settle()

    account = await pool.hash(pool.log.keys.account(pool.client.id))
    assert account["waiting"] == "0"
    assert not [name for name in account if name.startswith("admission:")]
    worker = await pool.hash(pool.log.keys.worker(pool.names["a"].id))
    assert worker["aborts"] == "1"
    words = await pool.words()
    assert words.count("released") == 1
    assert words.count("worker-aborted") == 1


async def test_an_admission_without_its_request_is_abandoned_and_released(pool: Pool) -> None:
    request_id = pool.log.keys.new_request_id()
    admission = await admit(pool.log, pool.limits, pool.client, request_id, 1)
    deadline_ms = admission.deadline_ms
    assert not await abandon(pool.log, pool.limits, pool.client.id, request_id, deadline_ms)
    await pool.pass_time(61)

    await pool.sweep()
    await pool.settle()

    account = await pool.hash(pool.log.keys.account(pool.client.id))
    assert account["waiting"] == "0"
    assert await pool.assign(request_id) is None


async def test_a_changed_declaration_is_recorded_at_once_and_the_same_one_only_after_the_window(
    pool: Pool,
) -> None:
    await pool.worker("w")
    await pool.worker("w")
    changed = msgspec.structs.replace(DECLARATION, threads=2)
    await pool.workers.check_in(pool.owner, "w", changed)
    await pool.pass_time(31)
    await pool.workers.check_in(pool.owner, "w", changed)

    words = [type(entry.recorded.event).__name__ for entry in await pool.events()]

    assert words.count("CheckedIn") == 3


async def test_a_worker_name_belongs_to_its_first_owner(pool: Pool) -> None:
    await pool.worker("w")
    before = await pool.snapshot()

    with pytest.raises(errors.WrongCredentials):
        await pool.workers.check_in(pool.client, "w", DECLARATION)

    assert await pool.snapshot() == before


async def test_no_effect_is_lost_where_a_run_is_cut(pool: Pool) -> None:
    """A fault that ends its request has two effects at one position: both go, or none."""
    pool.limits = msgspec.structs.replace(pool.limits, concurrency=100)
    job = await pool.assign(await pool.submit(), "a")
    assert job is not None
    await pool.reply(job.generation_id)  # one effect, so that pairs do not fit the cuts
    for number in range(60):
        request_id = await pool.submit()
        for name in ("a", "b", "c"):
            job = await pool.assign(request_id, f"{name}{number % 3}")
            assert job is not None
            await pool.fault(job.generation_id)

    await pool.settle()

    account = await pool.hash(pool.log.keys.account(pool.client.id))
    assert account["waiting"] == "0"
    words = await pool.words()
    assert (words.count("released"), words.count("worker-aborted")) == (61, 180)


async def test_a_give_back_that_ends_a_cancelled_request_frees_its_admission(pool: Pool) -> None:
    request_id = await pool.submit()
    job = await pool.assign(request_id)
    assert job is not None
    await pool.cancel(request_id)

    await give_back(pool.log, request_id, job.generation_id)
    await pool.settle()

    assert (await pool.request(request_id))["state"] == "done"
    account = await pool.hash(pool.log.keys.account(pool.client.id))
    assert account["waiting"] == "0"
