"""Answers that get lost after their command was executed: nothing happens twice, nothing leaks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from events import types
from events.keys import Keys
from handlers import account_changes, errors, passkeys, pop, shared_keys, users
from handlers.account_changes import Change
from handlers.accounts import Accounts
from handlers.limits import Limits
from handlers.log import Log
from handlers.shared_keys import Terms
from handlers.store import Place, Store
from lua.link import Link
from tests.handlers.conftest import PATIENCE
from tests.handlers.driver import Driver
from tests.handlers.invariants import check_objects, check_settled
from tests.handlers.pool import DECLARATION, MODEL, SECRET, Pool, operation_of, request_of
from tests.proxy import Proxy


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    """A way to Redis that loses answers."""
    async with Proxy.before(redis_url) as opened:
        yield opened


@pytest.fixture
async def pool(proxy: Proxy) -> AsyncIterator[Pool]:
    """A pool behind the proxy."""
    log = Log(Link(proxy.url, timeout=PATIENCE), Keys(1), test=True)
    yield await Pool.opened(log, Limits())
    await log.close()


@pytest.fixture
async def hasty(proxy: Proxy) -> AsyncIterator[Log]:
    """Another process's log, which gives a Redis up that hangs. It is asked nothing else: the
    machine might hang, too."""
    log = Log(Link(proxy.url), Keys(1), test=True)
    yield log
    await log.close()


async def _events(pool: Pool, kind: type) -> list:
    return [
        entry.recorded.event
        for entry in await pool.events()
        if isinstance(entry.recorded.event, kind)
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_commands_whose_answers_get_lost_take_effect_once(
    pool: Pool, proxy: Proxy, place: Place, seed: int
) -> None:
    pool.store = Store(place)
    driver = Driver(pool, seed)
    proxy.drop_at_random(9, seed)
    await driver.run(500)
    proxy.drop_at_random(0, seed)
    await _background(pool.log)

    assert proxy.dropped > 50
    for kind, id_ in (
        (types.Submitted, "request_id"),
        (types.Assigned, "generation_id"),
        (types.SubmittedReply, "generation_id"),
        (types.Faulted, "generation_id"),
        (types.Admitted, "request_id"),
        (types.Cancelled, "request_id"),
    ):
        counted = Counter(getattr(event, id_) for event in await _events(pool, kind))
        assert set(counted.values()) <= {1}, kind
    # The mark that an abandoned admission leaves expires as a request does.
    expired = Counter(event.request_id for event in await _events(pool, types.Expired))
    marks = Counter(event.request_id for event in await _events(pool, types.Abandoned))
    assert all(count <= 1 + marks[id_] for id_, count in expired.items())

    held = {job.generation_id for job in driver.jobs}
    freed = {event.generation_id for event in await _events(pool, types.Returned)}
    ended = {each for event in await _events(pool, types.Expired) for each in event.generations}
    for event in await _events(pool, types.Assigned):
        assert event.generation_id in held | freed | ended, "assigned to nobody"

    await check_objects(pool, pool.store)
    await pool.settle()
    await check_settled(pool)
    for paid in (types.Charged, types.Rewarded):
        times = Counter(each for event in await _events(pool, paid) for each in event.generations)
        assert times
        assert set(times.values()) == {1}, paid
    told = set(driver.requests)
    undone = {event.request_id for event in await _events(pool, types.Cancelled | types.Expired)}
    for event in await _events(pool, types.Submitted):
        assert event.request_id in told | undone, "queued for nobody"
    for _ in range(3):
        await pool.pass_time(1300)
        await pool.sweep()
        await pool.settle()
    assert await pool.store.keys() == []
    pool.store.close()


async def test_changes_of_accounts_whose_answers_get_lost_take_effect_once(
    pool: Pool, proxy: Proxy
) -> None:
    log, id_ = pool.log, pool.client.id
    await account_changes.change_account(log, id_, Change(roles={"service": True}))
    proxy.drop_at_random(3, 1)
    shared = [await shared_keys.open_shared_key(log, pool.client, Terms()) for _ in range(3)]
    passkey = [await passkeys.set_passkey(log, SECRET, id_, wanted=True) for _ in range(5)][-1]
    api_key = [await account_changes.rekey_account(log, SECRET, id_) for _ in range(5)][-1]
    proxy.drop_at_random(0, 1)

    assert proxy.dropped > 5
    assert await users.shared_keys_of(log, id_) == sorted(shared)
    known = passkeys.Passkeys(log, SECRET)
    await known.refresh()
    assert known.known(passkey)
    assert (await Accounts(log, SECRET).find(api_key)).id == id_
    for kind, many in (
        (types.SharedKeyOpened, 3),
        (types.PasskeyChanged, 5),
        (types.AccountRekeyed, 5),
    ):
        assert len(await _events(pool, kind)) == many

    proxy.drop_at_random(2, 2)
    await account_changes.delete_account(log, id_)
    proxy.drop_at_random(0, 2)
    assert len(await _events(pool, types.AccountDeleted)) == 1


async def test_a_job_whose_assignment_got_no_answer_waits_again(
    pool: Pool, hasty: Log, proxy: Proxy
) -> None:
    """Redis hangs: the caller is told so within a second, and the job is not lost to it."""
    request_id = await pool.submit()
    worker = await pool.worker()
    proxy.stall()
    started = asyncio.get_running_loop().time()

    with pytest.raises(errors.RedisUnavailable):
        await pop.assign(hasty, pool.limits, worker, DECLARATION, request_id, MODEL)

    assert asyncio.get_running_loop().time() - started < 20
    proxy.flow()
    await _background(hasty)
    request = await pool.request(request_id)
    assert (request["waiting"], request["processing"]) == ("1", "0")
    assert await pool.assign(request_id) is not None


async def test_a_repeated_assignment_tells_how_its_images_travel(
    pool: Pool, proxy: Proxy, place: Place
) -> None:
    """As it was recorded."""
    pool.store = Store(place)
    first, second = [(await pool.submitted(request_of(images=1))).request_id for _ in range(2)]
    assert await pool.assign(first, transports=("url",))  # the script is loaded from now on
    proxy.drop_answers(1)

    job = await pool.assign(second, transports=("base64",))

    assert job is not None
    assert job.transport == "base64"
    told = [each.image_transport for each in await _events(pool, types.Assigned)]
    assert (told, proxy.dropped) == (["url", "base64"], 1)
    pool.store.close()


async def test_a_submit_whose_fate_is_unknown_is_undone(
    pool: Pool, hasty: Log, proxy: Proxy
) -> None:
    await pool.submit()
    admitted = len(await _events(pool, types.Admitted))
    proxy.stall()

    with pytest.raises(errors.RedisUnavailable):
        await replace(pool, log=hasty).submit()

    proxy.flow()
    await _background(hasty)
    await pool.pass_time(61)
    await pool.sweep()
    await pool.settle()
    assert len(await _events(pool, types.Admitted)) <= admitted + 1
    account = await pool.hash(pool.log.keys.account(pool.client.id))
    assert account["waiting"] == "1"


async def test_a_submit_with_an_operation_key_is_left_for_its_client_to_find(
    pool: Pool, hasty: Log, proxy: Proxy
) -> None:
    """It will come again with the key, and must not be told of a cancelled request."""
    await pool.submit()
    proxy.stall()
    with pytest.raises(errors.RedisUnavailable):
        await replace(pool, log=hasty).submit(operation=operation_of())
    proxy.flow()

    receipt = await pool.submitted(request_of(), operation=operation_of())

    await _background(hasty)
    assert await _events(pool, types.Cancelled) == []
    assert (await pool.request(receipt.request_id))["waiting"] == "1"
    assert len(await _events(pool, types.Submitted)) == 2


async def _background(log: Log) -> None:
    """Wait for what handlers carry on with behind their callers' backs."""
    while log._background:
        await asyncio.wait(log._background)
