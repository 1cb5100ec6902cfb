"""Monthly kudos: given at once, then each thirty days, once however many janitors come by."""

from __future__ import annotations

import asyncio

import pytest

from events.base import KUDOS
from handlers.account_changes import Change, change_account, delete_account
from handlers.grants import give_monthly, grant
from handlers.janitor import Janitor
from tests.handlers.pool import Pool
from tests.spec import spec

MONTH = 30 * 86_400


async def _kudos(pool: Pool) -> int:
    return int((await pool.hash(pool.log.keys.account(pool.client.id)))["kudos"]) // KUDOS


async def _monthly(pool: Pool, amount: int) -> None:
    await change_account(pool.log, pool.client.id, Change(monthly_kudos=amount * KUDOS))


@spec("Kudos", 23)
async def test_monthly_kudos_come_at_once_and_then_each_month(pool: Pool) -> None:
    before = await _kudos(pool)
    await _monthly(pool, 12)

    assert (await pool.sweep()).given == 1
    assert (await pool.sweep()).given == 0
    await pool.pass_time(MONTH - 60)
    assert (await pool.sweep()).given == 0
    await pool.pass_time(120)
    assert (await pool.sweep()).given == 1

    assert await _kudos(pool) == before + 24


async def test_changing_them_does_not_bring_them_sooner(pool: Pool) -> None:
    before = await _kudos(pool)
    await _monthly(pool, 12)
    await pool.sweep()
    for amount in (0, 30):
        await _monthly(pool, amount)
        assert (await pool.sweep()).given == 0
    await pool.pass_time(MONTH + 60)
    await pool.sweep()

    assert await _kudos(pool) == before + 42


@pytest.mark.parametrize("end", ["none", "deleted"])
async def test_they_end_with_their_amount_or_their_account(pool: Pool, end: str) -> None:
    await _monthly(pool, 12)
    await pool.sweep()
    if end == "none":
        await _monthly(pool, 0)
    else:
        await delete_account(pool.log, pool.client.id)
    before = await _kudos(pool)
    await pool.pass_time(3 * MONTH)

    assert (await pool.sweep()).given == 0
    assert await _kudos(pool) == before


async def test_two_janitors_at_once_give_them_once(pool: Pool) -> None:
    before = await _kudos(pool)
    await _monthly(pool, 12)
    partition = pool.log.keys.of_account(pool.client.id)

    swept = await asyncio.gather(
        *(Janitor(pool.log, pool.limits, partition).sweep() for _ in range(3))
    )

    assert sum(each.given for each in swept) == 1
    assert await _kudos(pool) == before + 12


async def test_a_janitor_that_comes_late_changes_nothing(pool: Pool) -> None:
    await _monthly(pool, 12)
    due = pool.log.keys.due(pool.log.keys.of_account(pool.client.id), "recurring")
    (_, score) = await pool.log.read("ZRANGE", due, 0, -1, "WITHSCORES")
    await pool.sweep()
    before = await pool.snapshot()

    assert not await give_monthly(pool.log, pool.client.id, int(score))
    assert await pool.snapshot() == before


async def test_an_account_that_has_as_much_as_one_may_have_keeps_nobody_waiting(pool: Pool) -> None:
    """The one behind it is given its kudos, and the rest of the janitor's pass is done."""
    await grant(pool.log, pool.client.id, 2**53 - 2 * 10**6, grant_id="g")
    most = await _kudos(pool)
    await _monthly(pool, 1000)
    await change_account(pool.log, pool.owner.id, Change(monthly_kudos=12 * KUDOS))

    assert (await pool.sweep()).given == 1

    assert await _kudos(pool) == most
