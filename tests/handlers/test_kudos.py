"""What jobs cost and earn, from the submit to the ledger (text_path_reference.md 7; spec, Pricing).

Numbers are those of the pages, in kudos; the ledger has them as integers of 10^-4.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import pytest

from events import types
from events.base import KUDOS, Recorded
from handlers import errors, pop, reply, shared_keys
from handlers.account_changes import Change, change_account, delete_account
from handlers.accounts import ANONYMOUS_KEY, Account, open_account
from handlers.admission import admit
from handlers.cancel import cancel
from handlers.chat.pricing import Tariff
from handlers.decoy import Decoys
from handlers.log import Log
from handlers.reference import Model, Reference
from handlers.replay import fold, keys_of, read_log
from handlers.settle import RUN, Settler
from handlers.verify import verify
from handlers.workers import Change as WorkerChange
from handlers.workers import change_worker, find
from tests.handlers.invariants import check_ledger
from tests.handlers.pool import DECLARATION, MODEL, REPLY, SECRET, Pool, operation_of, request_of
from tests.spec import spec

BIG = "test/big"
UNLISTED = "nobody/knows"
PRICES = Tariff(
    Reference({MODEL: Model(parameters=8_030_000_000), BIG: Model(parameters=70 * 10**9)}.copy)
)
DAY = 86_400


class Served(NamedTuple):
    """One job and its reply."""

    model: str
    prompt: int  # characters
    max_length: int
    characters: int
    validated: bool = True
    state: str = "ok"


A = Served(MODEL, 4000, 200, 1000)
B = Served(BIG, 30_000, 512, 2000)
C = Served(UNLISTED, 3000, 300, 1200)
SHORT, LONG = A._replace(prompt=400, characters=250), A._replace(prompt=400, characters=800)


async def opened(pool: Pool, name: str, kudos: float = 0, *, trusted: bool = False) -> Account:
    _, key = await open_account(pool.log, SECRET, name, kudos=round(kudos * KUDOS), trusted=trusted)
    return await pool.accounts.find(key)


async def has(pool: Pool, account: Account) -> tuple[float, float]:
    """What the account may spend, and what waits until it is trusted, in kudos."""
    fields = await pool.hash(pool.log.keys.account(account.id))
    return int(fields["kudos"]) / KUDOS, int(fields.get("escrow", 0)) / KUDOS


async def clearing(pool: Pool) -> dict[str, float]:
    """The other side of all that accounts have, over all partitions."""
    total: dict[str, int] = {}
    for partition in pool.log.keys.all():
        for cause, amount in (await pool.hash(pool.log.keys.clearing(partition))).items():
            total[cause] = total.get(cause, 0) + int(amount)
    return {cause: amount / KUDOS for cause, amount in total.items() if amount}


async def taken(
    pool: Pool, owner: Account, job: Served, payer: Account | None = None, *, stream: bool = False
) -> pop.Assignment:
    """A worker of the owner has the job."""
    new = request_of(
        stream=stream, max_length=job.max_length, models=(job.model,), prompt_characters=job.prompt
    )
    request_id = (await pool.submitted(new, account=payer)).request_id
    worker = await pool.workers.check_in(owner, f"of {owner.id}", DECLARATION)
    assigned = await pop.assign(
        pool.log, pool.limits, worker, DECLARATION, request_id, job.model, validated=job.validated
    )
    assert assigned is not None
    return assigned


async def replied(
    pool: Pool,
    owner: Account,
    job: Served,
    payer: Account | None = None,
    *,
    believable: int = 0,
) -> reply.Stored:
    """A worker of the owner served the job; nothing is settled yet."""
    assigned = await taken(pool, owner, job, payer)
    held = await reply.held(pool.log, assigned.generation_id)
    given = REPLY._replace(characters=job.characters, state=job.state)
    return await reply.submit_reply(
        pool.log, pool.limits, PRICES, held, given, believable=believable
    )


# the worked examples


@spec("Kudos", 1)
@pytest.mark.parametrize(
    ("job", "trusted", "charged", "earned", "waits"),
    [
        pytest.param(A, True, 19.42, 17.42, 0, id="A"),
        pytest.param(SHORT, True, 7.14, 5.14, 0, id="A2 short"),
        pytest.param(LONG, True, 18.33, 16.33, 0, id="A2 long"),
        pytest.param(
            LONG._replace(validated=False), True, 6.90, 4.90, 0, id="A2, backend not validated"
        ),
        pytest.param(B, True, 650.74, 648.74, 0, id="B"),
        pytest.param(
            B._replace(validated=False), True, 196.62, 194.62, 0, id="B, backend not validated"
        ),
        pytest.param(B, False, 650.74, 324.37, 324.37, id="B, owner not trusted"),
        pytest.param(C, False, 3.4475, 0.7275, 0.72, id="C, owner not trusted"),
        pytest.param(C, True, 13.7244, 11.7244, 0, id="C, owner trusted"),
        pytest.param(A._replace(state="censored"), True, 2, 17.42, 0, id="E"),
        pytest.param(A._replace(state="csam"), True, 2, 17.42, 0, id="E, child abuse"),
    ],
)
async def test_the_worked_examples_end_to_end(
    pool: Pool, job: Served, trusted: bool, charged: float, earned: float, waits: float
) -> None:
    """text_path_reference.md 7.10: charged is 1 for the request, 1 for its job, and the price."""
    payer = await opened(pool, "payer", 10_000)
    owner = await opened(pool, "earner", 100, trusted=trusted)

    stored = await replied(pool, owner, job, payer)
    await pool.settle()

    assert stored.reward == round((earned + waits) * KUDOS)
    assert await has(pool, payer) == (10_000 - charged, 0)
    assert await has(pool, owner) == (100 + earned, waits)
    await check_ledger(pool)


@spec("Kudos", 3)
async def test_tax_and_burn_are_nobody_s_and_the_price_only_passes_through(pool: Pool) -> None:
    before = await clearing(pool)

    await replied(pool, pool.owner, A)
    assert await has(pool, pool.client) == (99, 0)
    await pool.settle()

    assert await clearing(pool) == {**before, "tax": 1, "burn": 1}


@spec("Kudos", 6)
async def test_a_job_of_a_request_for_certain_workers_earns_next_to_nothing_where_that_is_set(
    pool: Pool,
) -> None:
    guarded = Tariff(
        Reference({MODEL: Model(parameters=8_030_000_000)}.copy), matched_targeting=True
    )
    worker = await pool.worker()
    new = request_of(max_length=200)
    demand = msgspec.structs.replace(new.demand, only=(worker.id,))
    request_id = (await pool.submitted(new._replace(demand=demand))).request_id
    job = await pool.assign(request_id)
    assert job is not None

    held = await reply.held(pool.log, job.generation_id)
    stored = await reply.submit_reply(
        pool.log, pool.limits, guarded, held, REPLY._replace(characters=800)
    )

    assert stored.reward == 0.1 * KUDOS


@spec("Kudos", 3)
async def test_two_jobs_cost_one_tax_and_two_burns(pool: Pool) -> None:
    """7.3: 1 + Σ(price + 1)."""
    new = request_of(jobs=2, max_length=200, prompt_characters=400)
    request_id = (await pool.submitted(new)).request_id
    for name in ("a", "b"):
        job = await pop.assign(
            pool.log, pool.limits, await pool.worker(name), DECLARATION, request_id, MODEL,
            validated=True,
        )  # fmt: skip
        assert job is not None
        held = await reply.held(pool.log, job.generation_id)
        await reply.submit_reply(
            pool.log, pool.limits, PRICES, held, REPLY._replace(characters=800)
        )
    await pool.settle()

    assert await has(pool, pool.client) == (round(100 - 1 - 2 * 17.33, 4), 0)


# cancels


@spec("Pricing", 6)
@pytest.mark.parametrize(
    ("posts", "price"),
    [
        ([], 1.63),  # as many as the least of a reply: 20 tokens
        ([("x" * 800, "")], 16.33),
        ([("ß" * 400, "thought " * 50), ("ß" * 400, "")], 16.33),  # characters, and no reasoning
    ],
)
async def test_a_cancelled_stream_is_settled_on_what_was_posted(
    pool: Pool, posts: list[tuple[str, str]], price: float
) -> None:
    job = await taken(pool, pool.owner, LONG, stream=True)
    for seq, (content, reasoning) in enumerate(posts, 1):
        await pool.post(job.generation_id, seq, content, reasoning)

    await cancel(pool.log, pool.limits, PRICES, job.request_id)
    await cancel(pool.log, pool.limits, PRICES, job.request_id)
    await pool.settle()

    assert await has(pool, pool.client) == (round(100 - 1 - price - 1, 4), 0)
    assert (await has(pool, pool.owner))[0] == 25 + price
    await check_ledger(pool)


@spec("Pricing", 7)
async def test_a_lease_that_lost_its_characters_is_settled_on_its_bytes(pool: Pool) -> None:
    job = await taken(pool, pool.owner, LONG, stream=True)
    await pool.post(job.generation_id, 1, "ß" * 150, "x" * 60)  # 360 bytes: 90 tokens
    await pool.log.read("HDEL", pool.log.keys.lease(job.generation_id), "characters")

    await cancel(pool.log, pool.limits, PRICES, job.request_id)
    await pool.settle()

    assert (await has(pool, pool.owner))[0] == 25 + 7.35


async def test_a_cancelled_stream_pays_for_a_model_outside_the_reference_by_its_owner_s_trust(
    pool: Pool,
) -> None:
    owner = await opened(pool, "trusted", 100, trusted=True)
    newcomer = await opened(pool, "newcomer", 100)
    for each in (owner, newcomer):
        job = await taken(pool, each, C, stream=True)
        await cancel(pool.log, pool.limits, PRICES, job.request_id)
    await pool.settle()

    assert await has(pool, owner) == (100.7816, 0)  # 20 tokens * 1.4475 * 2.7 / 100
    assert await has(pool, newcomer) == (100.7275, 0.72)  # 1.4475, whatever it posted


async def test_a_cancelled_stream_pays_an_owner_who_is_not_trusted_by_half(pool: Pool) -> None:
    owner = await opened(pool, "newcomer", 100)
    job = await taken(pool, owner, LONG, stream=True)

    await cancel(pool.log, pool.limits, PRICES, job.request_id)
    await pool.settle()

    assert await has(pool, owner) == (100.82, 0.81)  # round(1.63 / 2, 2)


async def test_a_faulted_job_costs_its_tax_alone(pool: Pool) -> None:
    job = await taken(pool, pool.owner, LONG)
    await pool.fault(job.generation_id)
    await cancel(pool.log, pool.limits, PRICES, job.request_id)
    await pool.settle()

    assert await has(pool, pool.client) == (99, 0)
    assert await has(pool, pool.owner) == (25, 0)


async def test_a_decoy_is_told_a_reward_as_any_job_and_nobody_gets_it(pool: Pool) -> None:
    request_id = (
        await pool.submitted(request_of(max_length=200, prompt_characters=400))
    ).request_id
    worker = await pool.worker()
    decoy = await Decoys(pool.log, pool.limits).give(
        worker, DECLARATION, request_id, MODEL, validated=True
    )
    assert decoy is not None
    before = await pool.snapshot()

    held = await reply.held(pool.log, decoy.generation_id)
    told = await reply.submit_reply(
        pool.log, pool.limits, PRICES, held, REPLY._replace(characters=800)
    )
    await pool.settle()

    assert told.reward == 163_300
    after = await pool.snapshot()
    ledger = [key for key in before if "account:" in key or "clearing" in key]
    assert {key: before[key] for key in ledger} == {key: after[key] for key in ledger}


# uptime


async def _online(pool: Pool, seconds: Iterable[int], owner: Account | None = None) -> None:
    """A worker shows itself after each of these."""
    for each in seconds:
        await pool.pass_time(each)
        await pool.workers.check_in(owner or pool.owner, "w", DECLARATION, reward=50 * KUDOS)
    await pool.settle()


@spec("Kudos", 17)
async def test_more_than_ten_minutes_of_uptime_are_rewarded_and_begin_anew(pool: Pool) -> None:
    for paid in (75, 125):
        await _online(pool, [0, *[100] * 5, 60])
        assert (await has(pool, pool.owner))[0] == paid - 50
        await _online(pool, [41])
        assert (await has(pool, pool.owner))[0] == paid
    assert (await clearing(pool))["uptime"] == -100
    await check_ledger(pool)


@spec("Kudos", 17)
async def test_maintenance_and_pauses_are_no_uptime(pool: Pool) -> None:
    await _online(pool, [0, *[100] * 5])
    known = await find(pool.log, (await pool.worker()).id)
    moderator = pool.owner._replace(moderator=True)
    for change, back in (
        (WorkerChange(maintenance=True), WorkerChange(maintenance=False)),
        (WorkerChange(paused=True), WorkerChange(paused=False)),
    ):
        await change_worker(pool.log, moderator, known, change)
        await _online(pool, [200] * 3)
        await change_worker(pool.log, moderator, known, back)
    assert (await has(pool, pool.owner))[0] == 25

    await _online(pool, [101])

    assert (await has(pool, pool.owner))[0] == 75


@spec("Kudos", 17)
async def test_a_worker_that_was_away_begins_its_stretch_anew(pool: Pool) -> None:
    await _online(pool, [0, *[100] * 5])

    await _online(pool, [pool.limits.online_window + 1, *[100] * 5])
    assert (await has(pool, pool.owner))[0] == 25

    await _online(pool, [101])
    assert (await has(pool, pool.owner))[0] == 75


@spec("Kudos", 10)
async def test_uptime_of_an_owner_who_is_not_trusted_waits_as_a_whole(pool: Pool) -> None:
    owner = await opened(pool, "newcomer")

    await _online(pool, [0, *[101] * 6], owner)

    assert await has(pool, owner) == (25, 50)


# trust


def _trusting(pool: Pool, kudos: float) -> None:
    threshold = round(kudos * KUDOS)
    pool.limits = msgspec.structs.replace(pool.limits, trust_threshold=threshold)


async def _role(pool: Pool, account: Account) -> str:
    return (await pool.hash(pool.log.keys.account(account.id))).get("trusted", "")


@spec("Kudos", 11)
async def test_an_owner_is_trusted_after_a_week_with_more_than_the_threshold(pool: Pool) -> None:
    """7.7: what waits has to be more than the threshold, on an account of seven days."""
    _trusting(pool, 2 * 324.37)
    owner = await opened(pool, "newcomer")
    payer = await opened(pool, "payer", 10_000)

    await replied(pool, owner, B, payer)
    await replied(pool, owner, B, payer)
    await pool.pass_time(8 * DAY)
    await pool.settle()
    assert await _role(pool, owner) == "0"  # as much as the threshold is not more
    assert await has(pool, owner) == (round(25 + 648.74, 4), 648.74)

    await replied(pool, owner, A, payer)
    await pool.settle()
    assert await _role(pool, owner) == "1"
    assert await has(pool, owner) == (round(25 + 4 * 324.37 + 17.42, 4), 0)
    assert (await clearing(pool)).get("floor") == -25 - 25  # of the owner's, and the newcomer's
    await replied(pool, owner, A, payer)
    await pool.settle()
    assert await has(pool, owner) == (round(25 + 4 * 324.37 + 2 * 17.42, 4), 0)
    await check_ledger(pool)


@spec("Kudos", 11)
async def test_a_week_is_a_week(pool: Pool) -> None:
    _trusting(pool, 1)
    owner = await opened(pool, "newcomer")
    payer = await opened(pool, "payer", 10_000)

    await pool.pass_time(7 * DAY - 60)
    await replied(pool, owner, B, payer)
    await pool.settle()
    assert await _role(pool, owner) == "0"

    await pool.pass_time(61)
    await replied(pool, owner, SHORT, payer)
    await pool.settle()
    assert await _role(pool, owner) == "1"


@spec("Kudos", 11)
async def test_nobody_is_trusted_without_a_threshold(pool: Pool) -> None:
    owner = await opened(pool, "newcomer")
    await pool.pass_time(8 * DAY)

    await replied(pool, owner, B)
    await pool.settle()

    assert await _role(pool, owner) == "0"


@spec("Kudos", 11, 12)
async def test_replies_too_fast_to_be_believed_keep_an_owner_from_trust(pool: Pool) -> None:
    _trusting(pool, 1)
    owner = await opened(pool, "newcomer")
    payer = await opened(pool, "payer", 10_000)
    for _ in range(pool.limits.suspect):
        await replied(pool, owner, SHORT, payer, believable=1)
    await pool.settle()
    await pool.pass_time(8 * DAY)

    await replied(pool, owner, B, payer)
    await pool.settle()
    assert await _role(pool, owner) == "0"

    await change_account(pool.log, owner.id, Change(reset_suspicion=True))
    await replied(pool, owner, B, payer)
    await pool.settle()
    assert await _role(pool, owner) == "1"


@pytest.mark.parametrize(("seconds", "believed"), [(20, False), (40, True)])
async def test_output_that_was_posted_too_fast_to_be_believed_is_suspicious_with_its_cancel_too(
    pool: Pool, seconds: int, believed: bool
) -> None:
    """Or whoever serves itself would cancel in place of replying, and nobody would ever notice:
    5120 tokens need 34 seconds at 150 a second."""
    owner = await opened(pool, "newcomer", 1000)
    job = await taken(pool, owner, A._replace(max_length=5120), stream=True)
    await pool.posts.progress(owner.progress_key, job.generation_id, 1, "x" * 40_000, "")
    await pool.pass_time(seconds)

    await cancel(pool.log, pool.limits, PRICES, job.request_id)
    await pool.settle()

    fields = await pool.hash(pool.log.keys.account(owner.id))
    assert fields.get("suspicious", "0") == ("0" if believed else "1")


async def test_a_reply_too_fast_to_be_believed_takes_no_trust_that_was_earned_before_it(
    pool: Pool,
) -> None:
    """However many of them are carried together."""
    _trusting(pool, 1)
    pool.limits = msgspec.structs.replace(pool.limits, suspect=1)
    owner = await opened(pool, "newcomer")
    payer = await opened(pool, "payer", 10_000)
    await pool.pass_time(8 * DAY)

    await replied(pool, owner, B, payer)
    if pool.log.keys.partitions > 1:  # which of two logs is settled first nobody knows
        await pool.settle()
    await replied(pool, owner, B, payer, believable=1)
    await pool.settle()

    assert await _role(pool, owner) == "1"


@spec("Kudos", 11)
async def test_what_waits_for_trust_is_the_owner_s_with_it_whoever_gives_it(
    pool: Pool, scratch: Log
) -> None:
    """Nobody earns the trust that it has: what waited would wait for ever."""
    owner = await opened(pool, "newcomer")
    payer = await opened(pool, "payer", 10_000)
    await replied(pool, owner, B, payer)
    await pool.settle()
    await change_account(pool.log, owner.id, Change(name="still a newcomer"))
    assert await has(pool, owner) == (round(25 + 324.37, 4), 324.37)

    for _ in range(2):
        await change_account(pool.log, owner.id, Change(roles={"trusted": True}))

    assert await has(pool, owner) == (round(25 + 2 * 324.37, 4), 0)
    await check_ledger(pool)
    assert await verify(pool.log, scratch) == []


async def test_a_deleted_account_is_still_paid_and_charged_and_never_trusted(pool: Pool) -> None:
    _trusting(pool, 1)
    owner = await opened(pool, "newcomer")
    payer = await opened(pool, "payer", 10_000)
    await pool.pass_time(8 * DAY)
    await replied(pool, owner, B, payer)

    await delete_account(pool.log, owner.id)
    await delete_account(pool.log, payer.id)
    await pool.settle()

    assert await has(pool, owner) == (round(25 + 324.37, 4), 324.37)
    assert await has(pool, payer) == (10_000 - 650.74, 0)
    assert await _role(pool, owner) == ""
    await check_ledger(pool)


# floors


@spec("Kudos", 7)
async def test_a_charge_never_leaves_less_than_the_floor(pool: Pool) -> None:
    payer = await opened(pool, "poor", 30)

    await replied(pool, pool.owner, B, payer)
    await pool.settle()

    assert await has(pool, payer) == (25, 0)
    lifted = [
        each.recorded.event.amount / KUDOS
        for each in await pool.events()
        if isinstance(each.recorded.event, types.Floored)
        and each.recorded.event.user_id == payer.id
    ]
    assert lifted == [round(25 - (29 - 649.74), 4)]
    assert (await has(pool, pool.owner))[0] == round(25 + 648.74, 4)
    await check_ledger(pool)


@spec("Kudos", 7)
async def test_the_anonymous_account_rides_its_floor(pool: Pool) -> None:
    anonymous = await pool.accounts.find(ANONYMOUS_KEY)
    for _ in range(2):
        await replied(pool, pool.owner, B, anonymous)
        await pool.settle()

    assert await has(pool, anonymous) == (-50, 0)
    await check_ledger(pool)


# shared keys


async def _key(pool: Pool, kudos: int) -> Account:
    """The client, called with a key of such a budget."""
    id_ = await shared_keys.open_shared_key(pool.log, pool.client, shared_keys.Terms(kudos=kudos))
    return await pool.accounts.payer(id_)


async def _left(pool: Pool, account: Account) -> tuple[float, float]:
    """Of the key: what may be spent, and what was."""
    assert account.shared_key is not None
    known = await shared_keys.find(pool.log, account.shared_key.id)
    return known.kudos / KUDOS, known.utilized / KUDOS


@spec("Shared keys", 8)
async def test_every_charge_counts_against_the_shared_key_down_to_nothing(pool: Pool) -> None:
    """2.2: the budget never goes below 0, and at 0 nothing is recorded any more."""
    key = await _key(pool, 12)
    jobs = [await taken(pool, pool.owner, SHORT, key) for _ in range(3)]
    left = [(3 - 0.14, 9.14), (0, 15.28), (0, 15.28)]  # each pays 6.14 beside its tax

    for job, (budget, utilized) in zip(jobs, left, strict=True):
        held = await reply.held(pool.log, job.generation_id)
        given = REPLY._replace(characters=SHORT.characters)
        await reply.submit_reply(pool.log, pool.limits, PRICES, held, given)
        await pool.settle()
        assert await _left(pool, key) == (round(budget, 4), utilized)
    assert await has(pool, pool.client) == (round(100 - 3 * 7.14, 4), 0)


async def test_with_an_empty_shared_key_nothing_is_charged_to_its_owner(pool: Pool) -> None:
    """However it stood when it was looked up, and whether anything has to be held or not."""
    key = await _key(pool, 1)
    await pool.submitted(request_of(), account=key)

    for hold in (0, KUDOS):
        with pytest.raises(errors.SharedKeyEmpty):
            await pool.submitted(request_of(hold=hold), account=key)

    assert await has(pool, pool.client) == (99, 0)


@spec("Shared keys", 8)
async def test_charges_that_are_carried_together_count_one_by_one_against_the_shared_key(
    pool: Pool,
) -> None:
    key = await _key(pool, 3)
    new = request_of(jobs=3, stream=True, max_length=200, prompt_characters=400)
    request_id = (await pool.submitted(new, account=key)).request_id
    for name in ("a", "b", "c"):
        assert await pool.assign(request_id, name) is not None

    await cancel(pool.log, pool.limits, PRICES, request_id)
    await pool.settle()

    # 2 after the tax; 1.49 each, as nothing was posted and no backend is validated. The second one
    # empties it, the third is not recorded.
    assert await _left(pool, key) == (0, 1 + 2 * 1.49)


async def test_a_shared_key_without_end_counts_and_stays_without_end(pool: Pool) -> None:
    key = await _key(pool, -1)

    await replied(pool, pool.owner, SHORT, key)
    await pool.settle()

    assert await _left(pool, key) == (-1 / KUDOS, 7.14)


async def test_what_a_shared_key_that_is_gone_was_used_for_is_its_owner_s_to_pay(
    pool: Pool,
) -> None:
    key = await _key(pool, 50)
    await replied(pool, pool.owner, SHORT, key)
    assert key.shared_key is not None

    known = await shared_keys.find(pool.log, key.shared_key.id)
    await shared_keys.delete_shared_key(pool.log, pool.client, known)
    await pool.settle()

    assert await has(pool, pool.client) == (100 - 7.14, 0)


# holds


@spec("Kudos", 9)
async def test_a_hold_is_used_up_by_charges_and_the_rest_is_free_in_the_end(pool: Pool) -> None:
    async def held() -> float:
        fields = await pool.hash(pool.log.keys.account(pool.client.id))
        return int(fields.get("held", 0)) / KUDOS

    new = request_of(jobs=2, max_length=200, hold=30 * KUDOS, prompt_characters=400)
    request_id = (await pool.submitted(new)).request_id
    assert await held() == 30
    for left in (30 - 6.14, 0):
        job = await pop.assign(
            pool.log, pool.limits, await pool.worker(), DECLARATION, request_id, MODEL,
            validated=True,
        )  # fmt: skip
        assert job is not None
        job_held = await reply.held(pool.log, job.generation_id)
        given = REPLY._replace(characters=250)
        await reply.submit_reply(pool.log, pool.limits, PRICES, job_held, given)
        await pool.settle()
        assert await held() == round(left, 4)
        await check_ledger(pool)


async def test_what_an_admission_cost_that_was_abandoned_is_given_back(pool: Pool) -> None:
    key = await _key(pool, 20)
    request_id = pool.log.keys.new_request_id()
    await admit(pool.log, pool.limits, key, request_id, 1, hold=5 * KUDOS, tax=6 * KUDOS)
    assert await has(pool, pool.client) == (94, 0)
    assert await _left(pool, key) == (14, 6)

    await pool.pass_time(61)
    await pool.sweep()
    await pool.settle()

    assert await has(pool, pool.client) == (100, 0)
    assert await _left(pool, key) == (20, 0)
    await check_ledger(pool)


async def test_of_a_tax_that_the_floor_lifted_again_nothing_is_given_back(pool: Pool) -> None:
    """It would be kudos out of nothing, which can be given away: a client that hangs up right after
    its request was admitted would make a kudo each time, and five more for each image."""
    poor, nearly = await opened(pool, "poor"), await opened(pool, "nearly", 27)
    for payer in (poor, nearly):
        request_id = pool.log.keys.new_request_id()
        await admit(pool.log, pool.limits, payer, request_id, 1, tax=6 * KUDOS)
        assert await has(pool, payer) == (25, 0)

    await pool.pass_time(61)
    await pool.sweep()
    await pool.settle()

    assert await has(pool, poor) == (25, 0)
    assert await has(pool, nearly) == (27, 0)
    await check_ledger(pool)


@pytest.mark.parametrize(("changed", "left"), [(0, (0, 1)), (7, (8, 0))])
async def test_a_shared_key_that_was_switched_off_stays_so_when_a_tax_is_given_back(
    pool: Pool, changed: int, left: tuple[float, float]
) -> None:
    key = await _key(pool, 20)
    request_id = pool.log.keys.new_request_id()
    await admit(pool.log, pool.limits, key, request_id, 1, tax=KUDOS)
    assert key.shared_key is not None
    known = await shared_keys.find(pool.log, key.shared_key.id)
    await shared_keys.change_shared_key(
        pool.log, pool.client, known, shared_keys.Terms(kudos=changed)
    )

    await pool.pass_time(61)
    await pool.sweep()
    await pool.settle()

    assert await has(pool, pool.client) == (100, 0)
    assert await _left(pool, key) == left


async def test_no_more_is_given_back_to_a_shared_key_than_was_spent_with_it(pool: Pool) -> None:
    """As in a log of before admissions with an empty key were refused: nothing was recorded there,
    and nothing is given back."""
    key = await _key(pool, 5)
    request_id = pool.log.keys.new_request_id()
    await admit(pool.log, pool.limits, key, request_id, 1, tax=KUDOS)
    assert key.shared_key is not None
    stored = pool.log.keys.shared_key(key.shared_key.id)
    await pool.log.read("HSET", stored, "kudos", 5 * KUDOS, "utilized", 0)

    await pool.pass_time(61)
    await pool.sweep()
    await pool.settle()

    assert await _left(pool, key) == (5, 0)


async def test_an_admission_without_tax_is_abandoned_as_any_other(pool: Pool) -> None:
    """-0 is no integer to Redis: it was appended, then refused, and stopped the settler."""
    key = await _key(pool, 20)
    request_id = pool.log.keys.new_request_id()
    await admit(pool.log, pool.limits, key, request_id, 1, hold=5 * KUDOS)

    await pool.pass_time(61)
    await pool.sweep()
    await pool.settle()

    assert await has(pool, pool.client) == (100, 0)
    assert await _left(pool, key) == (20, 0)
    await check_ledger(pool)


async def test_a_tax_is_given_back_to_the_key_that_it_was_spent_with_whoever_gives_it_up(
    pool: Pool,
) -> None:
    """An operation is begun with a shared key, and repeated without it when it is too late."""
    key, operation = await _key(pool, 20), operation_of()
    request_id = pool.log.keys.new_request_id()
    await admit(pool.log, pool.limits, key, request_id, 1, operation=operation, tax=KUDOS)
    await pool.pass_time(61)

    with pytest.raises(errors.AdmissionLost):
        await pool.submit(operation=operation)
    await pool.settle()

    assert await has(pool, pool.client) == (100, 0)
    assert await _left(pool, key) == (20, 0)


# settlers


async def _busy(pool: Pool, seed: int) -> list[Account]:
    """Much to settle, in which the order of things counts: balances near their floors, shared keys
    near their ends, an owner near trust. Nothing of it is settled."""
    choose = random.Random(seed)
    poor, payer = await opened(pool, "poor", 33), await opened(pool, "payer", 400)
    owner = await opened(pool, "newcomer")
    keys = [await _key(pool, kudos) for kudos in (9, 30)]
    payers = [poor, poor, payer, owner, pool.client, *keys]
    for number in range(30):
        job = choose.choice((SHORT, SHORT, LONG, C, A._replace(state="censored")))
        earner = choose.choice((owner, owner, pool.owner))
        believable = 1 if number > 20 else 0
        await replied(pool, earner, job, choose.choice(payers), believable=believable)
        if choose.random() < 0.3:
            streamed = await taken(pool, owner, job, choose.choice(payers), stream=True)
            await pool.posts.progress(owner.progress_key, streamed.generation_id, 1, "x" * 500, "")
            await cancel(pool.log, pool.limits, PRICES, streamed.request_id)
    return [poor, payer, owner, *keys]


async def _ledger(log: Log) -> dict[str, dict[str, str]]:
    """Accounts, clearing and shared keys, less the positions and times at which they were
    written."""
    ledger = {}
    for partition in log.keys.all():
        for key in await keys_of(log, partition, "state"):
            if any(part in key for part in ("account:", "clearing", "shared_key:")):
                flat = await log.read("HGETALL", key)
                fields = dict(zip(map(bytes.decode, flat[::2]), flat[1::2], strict=True))
                fields.pop("position", None)
                fields.pop("trusted_ms", None)
                ledger[key] = {name: value.decode() for name, value in fields.items()}
    return ledger


async def _run_of(log: Log, partition: int) -> list[Recorded]:
    return [entry.recorded async for page in read_log(log, partition) for entry in page]


@pytest.mark.parametrize("seed", range(3))
async def test_carried_together_or_one_by_one_effects_come_to_the_same(
    pool: Pool, scratch: Log, seed: int
) -> None:
    """One settler carries each event alone, in a copy that was folded from the log; the other one
    as much as goes into a call."""
    limits = msgspec.structs.replace(
        pool.limits, trust_threshold=40 * KUDOS, trust_probation=0, concurrency=1000
    )
    pool.limits = limits
    await scratch.begin()
    await _busy(pool, seed)
    for partition in pool.log.keys.all():
        entries = [e async for page in read_log(pool.log, partition) for e in page]
        await fold(scratch, entries)
    assert await _ledger(scratch) == await _ledger(pool.log)
    runs = {partition: await _run_of(pool.log, partition) for partition in pool.log.keys.all()}

    for partition, run in runs.items():
        together = Settler(pool.log, limits, partition)
        alone = Settler(scratch, limits, partition)
        await together.start()
        await alone.start()
        await together.settle(run)
        for recorded in run:
            await alone.settle([recorded])

    assert await _ledger(pool.log) == await _ledger(scratch)
    assert max(len(run) for run in runs.values()) < RUN * 2
    await check_ledger(pool)


@spec("Kudos", 24)
async def test_a_settler_that_comes_back_after_a_day_pays_nothing_twice(
    pool: Pool, scratch: Log
) -> None:
    await _busy(pool, 1)
    stale = {}
    for partition in pool.log.keys.all():
        stale[partition] = Settler(pool.log, pool.limits, partition)
        await stale[partition].start()
    await pool.settle()
    settled = await _ledger(pool.log)

    await pool.pass_time(DAY)
    for partition, settler in stale.items():
        await settler.settle(await _run_of(pool.log, partition))

    assert await _ledger(pool.log) == settled
    assert await verify(pool.log, scratch) == []


@spec("Kudos", 24)
async def test_two_settlers_at_once_pay_each_generation_once(pool: Pool) -> None:
    await _busy(pool, 2)

    async def settle(partition: int, size: int) -> None:
        settler = Settler(pool.log, pool.limits, partition)
        start = await settler.start()
        run = [each for each in await _run_of(pool.log, partition) if each.position > start]
        for first in range(0, len(run), size):
            await settler.settle(run[first : first + size])

    await asyncio.gather(
        *(settle(partition, size) for partition in pool.log.keys.all() for size in (7, 11))
    )

    for kind in (types.Charged, types.Rewarded):
        generations = [
            generation
            for entry in await pool.events()
            if isinstance(entry.recorded.event, kind)
            for generation in entry.recorded.event.generations
        ]
        assert len(generations) == len(set(generations)) >= 30
    await check_ledger(pool)
