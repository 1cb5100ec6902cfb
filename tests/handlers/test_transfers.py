"""Kudos that accounts give to each other, and that operators give: once, never more than there is,
and none from nowhere."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest

from events import types
from events.base import KUDOS
from events.keys import Keys
from handlers import errors
from handlers.accounts import Account, open_account
from handlers.admission import never_settled
from handlers.amounts import MOST, amount_of, shown
from handlers.grants import grant
from handlers.limits import Limits
from handlers.log import Log
from handlers.shared_keys import Terms, open_shared_key
from handlers.transfers import PAUSE_SECONDS, Target, idempotency_of, transfer
from handlers.verify import verify
from lua.link import Link
from tests.handlers.pool import SECRET, Pool, request_of
from tests.proxy import Proxy
from tests.spec import spec

FLOOR = 25 * KUDOS
HAS = 100 * KUDOS  # what the pool's client begins with


async def opened(pool: Pool, name: str = "other", **more: Any) -> Account:
    _, key = await open_account(pool.log, SECRET, name, **more)
    return await pool.accounts.find(key)


async def elsewhere(pool: Pool, account: Account) -> Account:
    """An account in another partition, where there is one."""
    of = pool.log.keys.of_account
    while True:
        other = await opened(pool)
        if pool.log.keys.partitions == 1 or of(other.id) != of(account.id):
            return other


async def give(
    pool: Pool,
    giver: Account,
    target: Account | Target,
    kudos: float,
    *,
    key: str | None = None,
    settles: bool = True,
) -> bool:
    return await transfer(
        pool.log,
        pool.limits,
        giver,
        target if isinstance(target, Target) else Target(target.id),
        amount_of(kudos),
        idempotency=idempotency_of(SECRET, key),
        settled=pool.settled if settles else never_settled,
    )


async def kudos_of(pool: Pool, account: Account) -> int:
    return int(await pool.log.read("HGET", pool.log.keys.account(account.id), "kudos"))


async def shared_key(pool: Pool, owner: Account, kudos: int, days: int | None = None) -> str:
    return await open_shared_key(pool.log, owner, Terms(kudos=kudos, days=days))


async def check_sum(pool: Pool) -> None:
    """In each partition accounts and clearing are zero together."""
    totals: Counter[int] = Counter()
    for entry in await pool.events():
        event = entry.recorded.event
        if isinstance(event, types.AccountOpened):
            partition = entry.recorded.partition
            totals[partition] += int(
                await pool.log.read("HGET", pool.log.keys.account(event.user_id), "kudos")
            )
    for partition in pool.log.keys.all():
        clearing = await pool.hash(pool.log.keys.clearing(partition))
        assert totals[partition] + sum(map(int, clearing.values())) == 0, partition


async def test_a_transfer_is_taken_at_once_and_brought_by_the_settler(
    pool: Pool, scratch: Log
) -> None:
    other = await elsewhere(pool, pool.client)

    assert await give(pool, pool.client, other, 12.3456)

    assert await kudos_of(pool, pool.client) == HAS - 123_456
    assert await kudos_of(pool, other) == FLOOR
    await check_sum(pool)
    await pool.settle()
    assert await kudos_of(pool, other) == FLOOR + 123_456
    await check_sum(pool)
    await pool.settle()
    assert Counter(await pool.words())["received"] == 1
    assert await verify(pool.log, scratch) == []


async def test_what_is_given_to_a_shared_key_is_its_owner_s_and_may_be_spent_with_it(
    pool: Pool, scratch: Log
) -> None:
    other = await elsewhere(pool, pool.client)
    ids = [await shared_key(pool, other, budget) for budget in (0, 7, -1)]

    for id_ in ids:
        assert await give(pool, pool.client, Target(None, id_), 2)
    await pool.settle()

    assert await kudos_of(pool, other) == FLOOR + 3 * 2 * KUDOS
    budgets = [await pool.log.read("HGET", pool.log.keys.shared_key(id_), "kudos") for id_ in ids]
    assert list(map(int, budgets)) == [2 * KUDOS, 9 * KUDOS, -1]
    assert await verify(pool.log, scratch) == []


@spec("Kudos", 8, 19)
async def test_the_floor_and_what_is_held_stay(pool: Pool) -> None:
    """Of 100 kudos 25 are the floor, 1 is the tax of a request, and 40 are held for it."""
    other = await opened(pool)
    receipt = await pool.submitted(request_of(hold=40 * KUDOS))
    before = await pool.snapshot()

    with pytest.raises(errors.KudosTransferNotEnough, match=r"34\.0001 kudos.*has 34 to give"):
        await give(pool, pool.client, other, 34.0001)
    assert await pool.snapshot() == before

    await pool.cancel(receipt.request_id)  # what it held is free as soon as that is settled
    with pytest.raises(errors.SettlerBehind):
        await give(pool, pool.client, other, 34.0001, settles=False)
    assert await give(pool, pool.client, other, 74)
    assert await kudos_of(pool, pool.client) == FLOOR
    with pytest.raises(errors.KudosTransferNotEnough, match="has 0 to give"):
        await give(pool, pool.client, other, 0.0001)


async def test_what_is_on_its_way_may_be_given_on(pool: Pool) -> None:
    other = await elsewhere(pool, pool.client)
    await give(pool, pool.client, other, 50)

    assert await give(pool, other, pool.owner, 50)

    await pool.settle()
    assert await kudos_of(pool, pool.owner) == FLOOR + 50 * KUDOS
    await check_sum(pool)


@spec("Kudos", 19)
async def test_refusals_change_nothing(pool: Pool) -> None:
    anonymous = await pool.accounts.find("0000000000")
    rich: dict[str, Any] = {"kudos": HAS}
    flagged = await opened(pool, flagged=True, **rich)
    pupil = await opened(pool, roles=("education",), **rich)
    doubted, believed = await opened(pool, **rich), await opened(pool, trusted=True, **rich)
    for account in (doubted, believed):
        key = pool.log.keys.account(account.id)
        await pool.log.read("HSET", key, "suspicious", pool.limits.suspect)
    own = await shared_key(pool, pool.client, 5)
    expired = await shared_key(pool, pool.owner, 5, days=1)
    await pool.pass_time(86_400)
    table: list[tuple[Account, Account | Target, float, type[errors.Refused]]] = [
        (anonymous, pool.client, 1, errors.KudosTransferFromAnon),
        (pool.client, anonymous, 1, errors.KudosTransferToAnon),
        (pool.client, pool.client, 1, errors.KudosTransferToSelf),
        (pool.client, Target(None, own), 1, errors.KudosTransferToSelf),
        (pool.client, Target(None, expired), 1, errors.SharedKeyExpired),
        (pool.client, Target(None, str(uuid.uuid4())), 1, errors.InvalidTargetUsername),
        (pool.client, Target(10**17), 1, errors.InvalidTargetUsername),
        (pool.client, pool.owner, 0, errors.NegativeKudosTransfer),
        (pool.client, pool.owner, -1, errors.NegativeKudosTransfer),
        (pool.client, pool.owner, 75.0001, errors.KudosTransferNotEnough),
        (pool.client, pool.owner, MOST, errors.KudosTransferNotEnough),
        (pool.client, flagged, 1, errors.TargetAccountFlagged),
        (pool.client, doubted, 1, errors.FaultWhenKudosReceiving),
        (flagged, pool.client, 1, errors.SourceAccountFlagged),
        (doubted, pool.client, 1, errors.FaultWhenKudosSending),
        (pupil, pool.client, 1, errors.EducationCannotSendKudos),
    ]
    before = await pool.snapshot()

    for giver, target, kudos, refusal in table:
        with pytest.raises(refusal):
            await give(pool, giver, target, kudos, key="k")

    assert await pool.snapshot() == before
    assert await give(pool, believed, pool.client, 1)
    assert await give(pool, pool.client, believed, 1, settles=False)


@pytest.mark.parametrize(
    "kudos", [0.00001, 1.23456, 2.0**53, float("nan"), float("inf"), Decimal("1E-5"), -(10**30)]
)
def test_an_amount_that_the_ledger_cannot_hold_is_refused(kudos: float | Decimal) -> None:
    with pytest.raises(errors.BadRequest) as refused:
        amount_of(kudos)
    assert set(refused.value.extra["errors"]) == {"amount"}


@pytest.mark.parametrize(
    ("kudos", "amount", "text"),
    [
        (0.1, 1000, "0.1"),
        (12, 120_000, "12"),
        (1e3, 10_000_000, "1000"),
        (-0.0001, -1, "-0.0001"),
        (123_456_789.0123, 1_234_567_890_123, "123456789.0123"),
        (Decimal("-25.50"), -255_000, "-25.5"),
    ],
)
def test_an_amount_is_taken_and_shown_exactly(
    kudos: float | Decimal, amount: int, text: str
) -> None:
    assert amount_of(kudos) == amount
    assert shown(amount) == text


@spec("Kudos", 20)
async def test_nothing_goes_back_for_a_minute(pool: Pool) -> None:
    other = await elsewhere(pool, pool.client)
    await give(pool, pool.client, other, 10)
    await pool.settle()

    with pytest.raises(errors.TooFastKudosTransfers):
        await give(pool, other, pool.client, 1)
    assert await give(pool, other, pool.owner, 1)
    assert await give(pool, pool.client, other, 1)  # the same way it may go on
    await pool.settle()
    await pool.pass_time(PAUSE_SECONDS - 20)
    with pytest.raises(errors.TooFastKudosTransfers):
        await give(pool, other, pool.client, 1)
    await pool.pass_time(20)
    assert await give(pool, other, pool.client, 1)


@spec("Kudos", 21)
async def test_twenty_posts_with_one_key_are_one_transfer(pool: Pool) -> None:
    other = await elsewhere(pool, pool.client)

    done = await asyncio.gather(*(give(pool, pool.client, other, 10, key="k") for _ in range(20)))

    assert Counter(done) == {True: 1, False: 19}
    await pool.settle()
    assert await kudos_of(pool, pool.client) == HAS - 10 * KUDOS
    assert await kudos_of(pool, other) == FLOOR + 10 * KUDOS


@spec("Kudos", 21)
async def test_a_key_that_names_another_transfer_is_refused(pool: Pool) -> None:
    other = await opened(pool)
    budget = await shared_key(pool, other, 5)
    await give(pool, pool.client, other, 10, key="k")
    before = await pool.snapshot()

    for target, kudos in ((other, 11), (pool.owner, 10), (Target(None, budget), 10)):
        with pytest.raises(errors.IdempotencyKeyConflict):
            await give(pool, pool.client, target, kudos, key="k")

    assert await pool.snapshot() == before
    assert await give(pool, pool.client, other, 11, key="K")
    await pool.settle()
    assert await give(pool, other, pool.owner, 1, key="k")  # another account's own


async def test_a_repeat_is_told_what_was_done_whatever_became_of_the_two(pool: Pool) -> None:
    other = await opened(pool)
    await give(pool, pool.client, other, 75, key="k")
    for account in (pool.client, other):
        await pool.log.read("HSET", pool.log.keys.account(account.id), "flagged", 1)
    before = await pool.snapshot()

    assert not await give(pool, pool.client, other, 75, key="k")

    await pool.log.read("HDEL", pool.log.keys.account(other.id), "name")
    assert not await give(pool, pool.client, other, 75, key="k")
    await pool.log.read("HSET", pool.log.keys.account(other.id), "name", "other")
    assert await pool.snapshot() == before


async def test_what_others_give_does_not_make_an_account_forget_its_own_transfers(
    pool: Pool, scratch: Log
) -> None:
    other = await opened(pool)
    await give(pool, pool.client, other, 1, key="k")
    for batch in range(21):
        await asyncio.gather(
            *(grant(pool.log, pool.client.id, 1, grant_id=f"{batch}.{i}") for i in range(10))
        )

    assert not await give(pool, pool.client, other, 1, key="k")

    key = pool.log.keys.transfers(pool.client.id)
    lines = [line.decode() for line in await pool.log.read("LRANGE", key, 0, -1)]
    assert Counter(line.split("|")[0] for line in lines) == {"out": 1, "grant": 200}
    assert not any(line.startswith("grant|0.") for line in lines)
    assert await verify(pool.log, scratch) == []


async def test_parallel_transfers_never_give_more_than_there_is(pool: Pool) -> None:
    others = [await opened(pool, f"other{i}") for i in range(5)]

    done = await asyncio.gather(
        *(give(pool, pool.client, other, 20) for other in others for _ in range(2)),
        return_exceptions=True,
    )

    assert Counter(type(each) for each in done) == {bool: 3, errors.KudosTransferNotEnough: 7}
    await pool.settle()
    assert await kudos_of(pool, pool.client) == HAS - 3 * 20 * KUDOS
    assert sum([await kudos_of(pool, each) for each in others]) == 5 * FLOOR + 60 * KUDOS
    await check_sum(pool)


@spec("Kudos", 8)
async def test_a_transfer_and_a_hold_never_share_kudos(pool: Pool) -> None:
    """Of 75 that may be spent, either the transfer takes 60 or the request holds 60."""
    other = await opened(pool)

    done = await asyncio.gather(
        give(pool, pool.client, other, 60),
        pool.submitted(request_of(hold=60 * KUDOS)),
        return_exceptions=True,
    )

    refused = [type(each) for each in done if isinstance(each, BaseException)]
    assert refused in ([errors.KudosTransferNotEnough], [errors.KudosUpfront])


@pytest.mark.parametrize("length", [0, 256])
def test_an_idempotency_key_has_a_length(length: int) -> None:
    with pytest.raises(errors.BadRequest):
        idempotency_of(SECRET, "k" * length)


def test_of_an_idempotency_key_an_hmac_is_kept() -> None:
    with pytest.raises(errors.BadRequest):
        idempotency_of(SECRET, "a\x7f")
    kept = idempotency_of(SECRET, "k" * 255)

    assert len(kept) == 64
    assert kept != idempotency_of("another secret", "k" * 255)
    assert idempotency_of(SECRET, None) == ""


def _at(pool: Pool) -> int:
    return pool.log.keys.of_account(pool.client.id)


@spec("Kudos", 23)
async def test_a_grant_is_made_once(pool: Pool, scratch: Log) -> None:
    grants = await asyncio.gather(
        *(grant(pool.log, pool.client.id, 5 * KUDOS, grant_id="g", by=7) for _ in range(5))
    )

    assert Counter(grants) == {(HAS + 5 * KUDOS, False): 1, (HAS + 5 * KUDOS, True): 4}
    (entry,) = [
        each for each in await pool.events() if isinstance(each.recorded.event, types.Granted)
    ]
    assert entry.recorded.event == types.Granted(
        user_id=pool.client.id, amount=5 * KUDOS, grant_id="g", cause="admin", by=7
    )
    await check_sum(pool)
    assert await verify(pool.log, scratch) == []


@spec("Kudos", 7, 23)
async def test_a_grant_that_takes_ends_at_the_floor(pool: Pool) -> None:
    made = await grant(pool.log, pool.client.id, -80 * KUDOS, grant_id="g")

    assert made.kudos == FLOOR == await kudos_of(pool, pool.client)
    floored = [
        each.recorded.event
        for each in await pool.events()
        if isinstance(each.recorded.event, types.Floored)
        and each.recorded.event.user_id == pool.client.id
    ]
    assert floored == [types.Floored(user_id=pool.client.id, amount=5 * KUDOS)]
    await check_sum(pool)


@pytest.mark.parametrize("before", [{}, {"granted": -(2**62)}, {"floor": -(2**62)}])
async def test_no_grant_goes_beyond_what_can_be_counted(pool: Pool, before: dict[str, int]) -> None:
    """Redis refused the sum behind the append: no fold of that log ever came past it."""
    most, clearing = 2**53 // KUDOS * KUDOS, pool.log.keys.clearing(_at(pool))
    for cause, amount in before.items():
        await pool.log.read("HSET", clearing, cause, amount)
    stood = await pool.snapshot()

    with pytest.raises(errors.BadRequest, match="at most 900719925474"):
        await grant(pool.log, pool.client.id, -most if "floor" in before else most, grant_id="g")

    assert await pool.snapshot() == stood


async def test_an_account_may_be_granted_as_much_as_one_may_have(pool: Pool) -> None:
    most = 2**53 // KUDOS * KUDOS
    assert (await grant(pool.log, pool.client.id, most - HAS, grant_id="g")).kudos == most
    with pytest.raises(errors.BadRequest):
        await grant(pool.log, pool.client.id, 1, grant_id="h")


async def test_nobody_is_granted_nothing(pool: Pool) -> None:
    before = await pool.snapshot()

    with pytest.raises(errors.UserNotFound):
        await grant(pool.log, 10**6, 1, grant_id="g")

    assert await pool.snapshot() == before


@pytest.fixture
async def flaky(redis_url: str) -> AsyncIterator[tuple[Pool, Proxy]]:
    """A pool on one partition, behind a proxy that may lose answers."""
    async with Proxy.before(redis_url) as proxy:
        log = Log(Link(proxy.url, timeout=20), Keys(1), test=True)
        yield await Pool.opened(log, Limits()), proxy
        await log.close()


async def test_transfers_and_grants_whose_answers_get_lost_happen_once(
    flaky: tuple[Pool, Proxy],
) -> None:
    pool, proxy = flaky
    other = await opened(pool)
    proxy.drop_at_random(3, 1)
    for i in range(9):
        await give(pool, pool.client, other, 1)
        await grant(pool.log, pool.client.id, KUDOS, grant_id=f"g{i}")
    proxy.drop_at_random(0, 1)

    assert proxy.dropped > 2
    assert await kudos_of(pool, pool.client) == HAS
    await pool.settle()
    assert await kudos_of(pool, other) == FLOOR + 9 * KUDOS
