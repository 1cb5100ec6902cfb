"""One operation key, one request: repeated, at once, in conflict, across crashes, and anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from events import types
from handlers import errors
from handlers.admission import Claim, Operation, admit, check_concurrency, find_claim
from handlers.cancel import expire
from handlers.log import Log
from handlers.submit import NewRequest, Receipt, repeated, submit
from tests.handlers.pool import KEY, SECRET, TARIFF, Pool, operation_of, request_of
from tests.spec import spec

OTHER = "a" * 64


async def _count(pool: Pool, kind: type) -> int:
    return sum(isinstance(entry.recorded.event, kind) for entry in await pool.events())


async def _claim(pool: Pool) -> Claim | None:
    return await find_claim(pool.log, pool.client, KEY)


async def _again(pool: Pool, operation: Operation) -> Receipt | None:
    """The look-up before anything else is checked."""
    return await repeated(pool.log, pool.limits, pool.client, operation)


@spec("Operation key", 1)
async def test_a_repeat_is_told_the_first_id_and_kudos(pool: Pool) -> None:
    first = await pool.submitted(request_of(kudos=61_000), operation=operation_of())
    before = await pool.snapshot()

    second = await pool.submitted(request_of(kudos=70_000), operation=operation_of())
    looked_up = await _again(pool, operation_of())

    assert (first.kudos, first.repeated) == (61_000, False)
    assert second == looked_up == first._replace(repeated=True)
    assert await pool.snapshot() == before


@spec("Operation key", 2)
async def test_another_request_under_the_key_is_refused_and_changes_nothing(pool: Pool) -> None:
    await pool.submit(operation=operation_of())
    before = await pool.snapshot()

    for attempt in (
        pool.submit(operation=operation_of(fingerprint=OTHER)),
        _again(pool, operation_of(fingerprint=OTHER)),
    ):
        with pytest.raises(errors.OperationKeyConflict):
            await attempt

    assert await pool.snapshot() == before


@spec("Operation key", 3)
async def test_a_repeat_is_answered_although_the_account_is_full(pool: Pool) -> None:
    pool.limits = msgspec.structs.replace(pool.limits, concurrency=1)
    first = await pool.submitted(request_of(), operation=operation_of())

    second = await pool.submitted(request_of(), operation=operation_of())

    assert second.request_id == first.request_id
    assert await _again(pool, operation_of()) == second
    with pytest.raises(errors.TooManyPrompts):
        await pool.submit()


@spec("Operation key", 4)
async def test_of_twenty_at_once_one_is_queued_and_all_are_told_it(pool: Pool) -> None:
    """C-111."""
    receipts = await asyncio.gather(
        *(pool.submitted(request_of(kudos=61_000), operation=operation_of()) for _ in range(20))
    )

    assert len({receipt.request_id for receipt in receipts}) == 1
    assert {receipt.kudos for receipt in receipts} == {61_000}
    assert [receipt.repeated for receipt in receipts].count(False) == 1
    assert await _count(pool, types.Admitted) == await _count(pool, types.Submitted) == 1
    assert await pool.waiting() == 1


@spec("Operation key", 5)
async def test_of_those_that_differ_one_operation_wins(pool: Pool) -> None:
    fingerprints = [digit * 64 for digit in "abcd" * 5]

    outcomes = await asyncio.gather(
        *(
            pool.submitted(request_of(), operation=operation_of(fingerprint=each))
            for each in fingerprints
        ),
        return_exceptions=True,
    )

    won = {
        fingerprint
        for fingerprint, outcome in zip(fingerprints, outcomes, strict=True)
        if isinstance(outcome, Receipt)
    }
    lost = [each for each in outcomes if isinstance(each, errors.OperationKeyConflict)]
    assert (len(won), len(lost)) == (1, 15)
    assert await _count(pool, types.Admitted) == await _count(pool, types.Submitted) == 1


@spec("Operation key", 6)
async def test_the_same_key_of_another_user_is_another_claim(pool: Pool) -> None:
    mine = await pool.submitted(request_of(), operation=operation_of())

    theirs = await pool.submitted(
        request_of(), account=pool.owner, operation=operation_of(fingerprint=OTHER)
    )

    assert not theirs.repeated
    assert theirs.request_id != mine.request_id
    assert (await pool.submitted(request_of(), operation=operation_of())) == mine._replace(
        repeated=True
    )


@spec("Operation key", 8)
async def test_the_claim_lasts_as_long_as_the_request(pool: Pool) -> None:
    first = await pool.submitted(request_of(), operation=operation_of())
    job = await pool.assign(first.request_id)
    assert job is not None
    await pool.reply(job.generation_id)
    await pool.settle()
    await pool.pass_time(1190)  # done long ago, and released; its reply can still be read
    await pool.sweep()
    await pool.settle()

    assert (await pool.submitted(request_of(), operation=operation_of())).repeated

    await pool.pass_time(20)
    await pool.sweep()
    await pool.settle()
    assert await _claim(pool) is None
    anew = await pool.submitted(request_of(), operation=operation_of(fingerprint=OTHER))
    assert (anew.repeated, anew.request_id == first.request_id) == (False, False)


async def test_a_claim_names_its_request_before_that_is_stored(pool: Pool) -> None:
    admission = await admit(
        pool.log, pool.limits, pool.client, pool.log.keys.new_request_id(), 1,
        operation=operation_of(), kudos=61_000,
    )  # fmt: skip

    claim = await _claim(pool)

    assert claim == Claim(
        admission.request_id, operation_of().fingerprint, 61_000, admission.deadline_ms
    )
    assert await _again(pool, operation_of()) is None  # nothing to answer with yet
    receipt = await pool.submitted(request_of(), operation=operation_of())
    assert (receipt.request_id, receipt.repeated) == (admission.request_id, True)


@spec("Operation key", 3)
async def test_an_admission_without_its_request_does_not_stand_in_its_own_way(pool: Pool) -> None:
    """The last free place went to a try that died; the next one carries on with it."""
    pool.limits = msgspec.structs.replace(pool.limits, concurrency=1)
    operation = operation_of()
    admission = await admit(
        pool.log, pool.limits, pool.client, pool.log.keys.new_request_id(), 1, operation=operation
    )

    async def check(operation: Operation | None) -> None:
        await check_concurrency(
            pool.log, pool.limits, pool.client, 1, (), pool.settled, operation=operation
        )

    await check(operation)
    receipt = await pool.submitted(request_of(), operation=operation)

    assert receipt.request_id == admission.request_id
    for other in (None, operation_of("00000000-0000-4000-8000-000000000000")):
        with pytest.raises(errors.TooManyPrompts):
            await check(other)


class Died(BaseException):
    """The process is no more."""


class Dying:
    """A link to Redis whose process dies with its nth command, which is executed or not."""

    def __init__(self, redis: Any, at: int, *, executed: bool) -> None:
        self.ordered = redis.ordered
        self._redis = redis
        self._left = at
        self._executed = executed

    async def call(self, *command: Any) -> Any:
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._executed):
            raise Died
        answer = await self._redis.call(*command)
        if self._left == 0:
            raise Died
        return answer


async def _each_crash(pool: Pool, then: Callable[[Operation], Awaitable[None]]) -> int:
    """Let a submission die at each of its commands, before and behind it; return how often."""
    new: NewRequest = request_of()
    deaths = 0
    for executed in (False, True):
        for at in range(1, 20):
            operation = operation_of(f"0000000{at:x}-0000-4000-8000-00000000000{executed:x}")
            dying = Log(Dying(pool.log.redis, at, executed=executed), pool.log.keys, test=True)
            try:
                await submit(
                    dying, pool.limits, TARIFF, pool.client, new._replace(operation=operation)
                )
            except Died:
                deaths += 1
            else:
                break
            await then(operation)
    return deaths


@spec("Operation key", 1)
async def test_a_crash_at_any_step_is_healed_by_the_next_try(pool: Pool) -> None:
    async def try_again(operation: Operation) -> None:
        receipt = await pool.submitted(request_of(), operation=operation)
        assert await _again(pool, operation) == receipt._replace(repeated=True)

    deaths = await _each_crash(pool, try_again)

    assert deaths >= 4
    submitted = await _count(pool, types.Submitted)
    assert submitted == await _count(pool, types.Admitted) == deaths + 2
    assert await pool.waiting() == submitted


async def test_a_crash_whose_client_comes_too_late_leaves_a_key_that_can_be_used(
    pool: Pool,
) -> None:
    """Past the admission's deadline the first try is told to come again, the second is served."""

    async def come_late(operation: Operation) -> None:
        await pool.pass_time(61)
        for _ in range(2):
            try:
                await pool.submitted(request_of(), operation=operation)
            except errors.AdmissionLost:
                await pool.settle()
            else:
                return
        raise AssertionError("not served")

    deaths = await _each_crash(pool, come_late)
    await pool.pass_time(61)
    await pool.sweep()
    await pool.settle()

    submitted = await _count(pool, types.Submitted)
    assert submitted == deaths + 2
    assert await _count(pool, types.Admitted) == submitted + await _count(pool, types.Abandoned)


async def test_the_janitor_frees_the_key_of_a_request_that_never_came(pool: Pool) -> None:
    await admit(
        pool.log, pool.limits, pool.client, pool.log.keys.new_request_id(), 2,
        operation=operation_of(),
    )  # fmt: skip
    await pool.pass_time(61)

    assert (await pool.sweep()).abandoned == 1
    await pool.settle()

    assert await _claim(pool) is None
    assert await pool.waiting() == 0
    other = await pool.submitted(request_of(), operation=operation_of(fingerprint=OTHER))
    assert not other.repeated


async def test_a_dead_claim_stands_in_nobody_s_way_for_long(pool: Pool) -> None:
    """Another operation meets a key whose request never came: it is no conflict."""
    await admit(
        pool.log, pool.limits, pool.client, pool.log.keys.new_request_id(), 1,
        operation=operation_of(),
    )  # fmt: skip
    other = operation_of(fingerprint=OTHER)
    with pytest.raises(errors.OperationKeyConflict):
        await pool.submitted(request_of(), operation=other)
    await pool.pass_time(61)

    with pytest.raises(errors.AdmissionLost):
        await pool.submitted(request_of(), operation=other)
    await pool.settle()

    assert not (await pool.submitted(request_of(), operation=other)).repeated


async def test_a_key_whose_request_is_gone_is_free_once_that_is_settled(pool: Pool) -> None:
    first = await pool.submitted(request_of(), operation=operation_of())
    await pool.pass_time(1300)
    await pool.sweep()

    assert await _again(pool, operation_of()) is None
    with pytest.raises(errors.AdmissionLost):
        await pool.submitted(request_of(), operation=operation_of())
    await pool.settle()

    anew = await pool.submitted(request_of(), operation=operation_of())
    assert not anew.repeated
    assert anew.request_id != first.request_id
    assert await pool.waiting() == 1


async def test_a_repeat_never_revives_a_request_that_ended_early(pool: Pool) -> None:
    """Its content was lost and it is gone, all before its admission's deadline."""
    first = await pool.submitted(request_of(), operation=operation_of())
    await pool.log.read("DEL", pool.log.keys.content(first.request_id))
    assert await expire(pool.log, pool.limits, first.request_id)

    with pytest.raises(errors.AdmissionLost):
        await pool.submitted(request_of(), operation=operation_of())
    await pool.settle()
    anew = await pool.submitted(request_of(), operation=operation_of())

    assert anew.request_id != first.request_id
    assert await _count(pool, types.Submitted) == 2
    await pool.pass_time(61)
    await pool.sweep()
    assert await pool.request(first.request_id) == {}
    assert await _again(pool, operation_of()) == anew._replace(repeated=True)


async def test_the_log_holds_no_fingerprint_as_it_was_made(pool: Pool) -> None:
    fingerprint = "0123456789abcdef" * 4
    await pool.submitted(request_of(), operation=operation_of(fingerprint=fingerprint))

    stored = str([entry.fields for entry in await pool.events()]) + str(await pool.snapshot())

    assert fingerprint not in stored
    assert Operation.of(SECRET, KEY, fingerprint).fingerprint in stored


def test_a_key_has_one_spelling() -> None:
    assert Operation.of(SECRET, KEY.upper(), OTHER) == operation_of(fingerprint=OTHER)
