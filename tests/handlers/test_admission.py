"""How many jobs an account may have waiting: exact, by model for the anonymous, and only on settled
state. Where its requests stand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from events import types
from events.base import KUDOS, Position
from handlers import errors
from handlers.accounts import Account, SharedKey
from handlers.admission import (
    MOST_SCOPES,
    check_concurrency,
    never_settled,
    priority_of,
    scopes_of,
)
from handlers.pop import give_back
from handlers.submit import submit
from tests.handlers.pool import MODEL, TARIFF, Pool, request_of
from tests.spec import spec


@pytest.fixture
async def pool(pool: Pool) -> Pool:
    """Three jobs of an account may wait, and four anonymous ones for a model."""
    pool.limits = msgspec.structs.replace(pool.limits, concurrency=3, anonymous_concurrency=4)
    return pool


@pytest.fixture
async def anonymous(pool: Pool) -> Account:
    return await pool.accounts.find("0000000000")


async def _check(pool: Pool, account: Account, jobs: int = 1, *models: str) -> None:
    await check_concurrency(pool.log, pool.limits, account, jobs, models, pool.settled)


@spec("Order of a submission", 5)
@spec("Text requests", 19)
async def test_one_job_too_many_is_refused_with_both_numbers_and_changes_nothing(
    pool: Pool,
) -> None:
    await pool.submit(jobs=2)
    await _check(pool, pool.client)
    await pool.submit()
    before = await pool.snapshot()

    with pytest.raises(errors.TooManyPrompts, match=r"wait: 3,.*at most 3 may\.$"):
        await pool.submit()
    with pytest.raises(errors.TooManyPrompts, match=r"wait: 3,.*2 more; at most 3 may\.$"):
        await _check(pool, pool.client, 2)

    assert await pool.snapshot() == before
    await pool.submit(account=pool.owner)


@spec("Text requests", 19)
async def test_a_request_that_asks_for_more_than_may_wait_is_refused(pool: Pool) -> None:
    with pytest.raises(errors.TooManyPrompts, match=r"wait: 0, and this request asks for 4 more"):
        await pool.submit(jobs=4)

    assert await pool.words() == []


@spec("Text requests", 19)
async def test_only_jobs_that_wait_count(pool: Pool) -> None:
    """Handed out, they do not; faulted or given back, they do again."""
    request_id = await pool.submit(jobs=3)
    jobs = [await pool.assign(request_id, name) for name in ("a", "b", "c")]
    await pool.settle()
    assert await pool.waiting() == 0

    assert jobs[0] is not None
    assert jobs[1] is not None
    await pool.fault(jobs[0].generation_id)
    await give_back(pool.log, request_id, jobs[1].generation_id)
    await pool.settle()
    assert await pool.waiting() == 2

    await pool.cancel(request_id)
    await pool.settle()
    assert await pool.waiting() == 0


@spec("Text requests", 19)
async def test_parallel_submits_stop_exactly_at_the_limit(pool: Pool) -> None:
    outcomes = await asyncio.gather(*(pool.submit() for _ in range(12)), return_exceptions=True)

    refused = [each for each in outcomes if isinstance(each, errors.TooManyPrompts)]
    assert len(refused) == 9
    assert await pool.waiting() == 3
    counted = sum(
        isinstance(entry.recorded.event, types.Submitted) for entry in await pool.events()
    )
    assert counted == 3


async def test_what_was_handed_out_meanwhile_makes_room_at_once(pool: Pool) -> None:
    """The settler is behind when the request arrives: it is waited for, not taken at its word."""
    request_ids = [await pool.submit() for _ in range(3)]
    for request_id in request_ids:
        assert await pool.assign(request_id) is not None
    assert await pool.waiting() == 3

    await _check(pool, pool.client, 3)
    await pool.submit(jobs=3)

    assert await pool.waiting() == 3


async def test_too_many_is_never_said_of_unsettled_state(pool: Pool) -> None:
    await pool.submit(jobs=3)
    before = await pool.snapshot()

    with pytest.raises(errors.SettlerBehind):
        await submit(pool.log, pool.limits, TARIFF, pool.client, request_of())
    with pytest.raises(errors.SettlerBehind):
        await check_concurrency(pool.log, pool.limits, pool.client, 1, (MODEL,), never_settled)

    assert await pool.snapshot() == before


async def test_the_settler_is_asked_for_the_heads_of_every_partition(pool: Pool) -> None:
    await pool.submit(jobs=3)
    asked: list[Sequence[Position]] = []

    async def settled(heads: Sequence[Position]) -> bool:
        asked.append(heads)
        return True

    with pytest.raises(errors.TooManyPrompts):
        await submit(pool.log, pool.limits, TARIFF, pool.client, request_of(), settled)

    assert asked == [[await pool.log.head(partition) for partition in pool.log.keys.all()]]


@spec("Text requests", 19)
async def test_anonymous_jobs_count_for_each_model(pool: Pool, anonymous: Account) -> None:
    async def ask(*models: str, jobs: int = 1) -> None:
        await pool.submitted(request_of(models=models, jobs=jobs), account=anonymous)

    await ask("a", "b", jobs=2)
    await ask("b", jobs=2)
    before = await pool.snapshot()

    with pytest.raises(
        errors.TooManyPrompts, match=r"wait: 4,.*at most 4 may.*Register an account"
    ):
        await ask("c", "b")
    with pytest.raises(errors.TooManyPrompts):
        await _check(pool, anonymous, 1, "c", "b")
    assert await pool.snapshot() == before

    await ask("a", "c", jobs=2)  # two of them name a: one that names two is not counted twice
    with pytest.raises(errors.TooManyPrompts):
        await ask("a")
    with pytest.raises(errors.TooManyPrompts, match="wait: 6"):
        await ask()  # any model will do: all of them are before it


async def test_the_counters_of_models_end_with_their_jobs(pool: Pool, anonymous: Account) -> None:
    async def scopes() -> list[str]:
        account = await pool.hash(pool.log.keys.account(anonymous.id))
        return [name for name in account if name.startswith("scope:")]

    new = request_of(models=(MODEL, "other"), jobs=2)
    request_id = (await pool.submitted(new, account=anonymous)).request_id
    assert len(await scopes()) == 2
    job = await pool.assign(request_id)
    assert job is not None
    await pool.settle()
    assert len(await scopes()) == 2

    await pool.reply(job.generation_id)
    await pool.cancel(request_id)
    await pool.settle()

    assert await scopes() == []
    assert await pool.waiting(anonymous) == 0


def test_a_request_that_names_very_many_models_is_counted_for_some(pool: Pool) -> None:
    named = [f"model {number}" for number in range(1000)]
    anonymous = pool.client._replace(id=0)

    scopes = scopes_of(anonymous, named)

    assert len(scopes) == MOST_SCOPES
    assert scopes_of(anonymous, reversed(named)) == scopes
    assert scopes_of(pool.client, named) == ()


@spec("Kudos", 18)
@pytest.mark.parametrize(
    ("balance", "flagged", "priority"),
    [
        (12_600.25, False, 12_600.25),
        (-50, False, -50),
        (12_600.25, True, 13),
        (12_500, True, 12),  # halves are rounded to even
        (10.0001, True, 0),
        (10, True, -100),
        (-50, True, -100),
    ],
)
def test_a_request_stands_where_its_account_s_balance_does_or_behind_where_it_is_flagged(
    balance: float, flagged: bool, priority: float
) -> None:
    """text_path_reference.md 3.5."""
    account = Account(1, "client", False, False, "", flagged)

    assert priority_of(account, round(balance * KUDOS)) == round(priority * KUDOS)


@spec("Kudos", 18)
def test_a_request_with_an_empty_shared_key_stands_at_fifty_less_than_nothing() -> None:
    anonymous = Account(0, "", False, False, "", shared_key=SharedKey("", 0, 0, -1))

    assert priority_of(anonymous, 70 * KUDOS) == -50 * KUDOS


@spec("Kudos", 18)
async def test_its_balance_is_that_of_before_its_tax(pool: Pool) -> None:
    for _ in range(2):
        await pool.submitted(request_of())

    assert {
        entry.recorded.event.priority / KUDOS
        for entry in await pool.events()
        if isinstance(entry.recorded.event, types.Submitted)
    } == {100, 99}
