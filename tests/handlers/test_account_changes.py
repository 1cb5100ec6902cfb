"""Accounts that change, get other keys and go; their shared keys, passkeys and profiles."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from events.roles import ROLES
from handlers import users
from handlers.account_changes import Change, change_account, delete_account, rekey_account
from handlers.accounts import ANONYMOUS_ID, Accounts, open_account
from handlers.errors import (
    AnonForbiddenUserMod,
    BadRequest,
    InvalidAPIKey,
    Refused,
    SharedKeyExpired,
    TooManyPrompts,
    UserNotFound,
)
from handlers.log import Log
from handlers.passkeys import Passkeys, set_passkey
from handlers.profiles import Profile, read_profile, set_profile
from handlers.rebuild import rebuild_state
from handlers.shared_keys import (
    Terms,
    change_shared_key,
    check_expiry,
    check_tokens,
    delete_shared_key,
    find,
    open_shared_key,
)
from handlers.verify import verify
from tests.handlers.pool import SECRET, Pool
from tests.spec import spec


@spec("Accounts", 1, 11)
async def test_a_new_key_ends_the_former_one(pool: Pool) -> None:
    _, former = await open_account(pool.log, SECRET, "eve")
    account = await pool.accounts.find(former)

    key = await rekey_account(pool.log, SECRET, account.id)

    accounts = Accounts(pool.log, SECRET)
    assert (await accounts.find(key)).id == account.id
    with pytest.raises(InvalidAPIKey):
        await accounts.find(former)
    assert key not in str(await pool.snapshot())


class Held:
    """A log that answers what is in an account, as of when it was asked, when it is let go."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.keys = log.keys
        self.holds = asyncio.Event()
        self.let_go = asyncio.Event()

    async def read(self, *command: Any) -> Any:
        answer = await self._log.read(*command)
        if command[0] == "HMGET":
            self.holds.set()
            await self.let_go.wait()
        return answer


async def test_what_was_looked_up_while_the_account_changed_is_not_remembered(pool: Pool) -> None:
    account, key = await open_account(pool.log, SECRET, "eve")
    held = Held(pool.log)
    accounts = Accounts(held, SECRET)
    looking = asyncio.create_task(accounts.find(key))
    await asyncio.wait_for(held.holds.wait(), 20)
    await change_account(pool.log, account, Change(roles={"flagged": True}))
    accounts.forget(account)

    held.let_go.set()

    assert not (await looking).flagged
    assert (await accounts.find(key)).flagged


@spec("Accounts", 10)
async def test_a_deleted_account_leaves_its_number_and_what_it_owns(pool: Pool) -> None:
    log, client = pool.log, pool.client
    request_id = await pool.submit()
    await open_shared_key(log, client, Terms())
    await set_profile(log, client.id, Profile("me@example.org", "a comment"))
    balance = (await users.find(log, client.id)).kudos

    await delete_account(log, client.id)
    await delete_account_again(pool)

    left = await pool.hash(log.keys.account(client.id))
    assert not {"name", "key", "concurrency", "passkey", *ROLES} & left.keys()
    assert int(left["kudos"]) == balance
    assert await read_profile(log, client.id) == Profile("", "")
    assert await users.shared_keys_of(log, client.id) == []
    # What is under way goes on, and is settled.
    job = await pool.assign(request_id)
    assert job is not None
    assert await pool.reply(job.generation_id)
    await pool.settle()
    left = await pool.hash(log.keys.account(client.id))
    assert (left["waiting"], left.get("held", "0")) == ("0", "0")
    with pytest.raises(InvalidAPIKey):
        await pool.submit()


async def delete_account_again(pool: Pool) -> None:
    events = len(await pool.events())
    with pytest.raises(UserNotFound):
        await delete_account(pool.log, pool.client.id)
    assert len(await pool.events()) == events


@spec("Accounts", 6)
async def test_nothing_of_the_anonymous_account_is_changed(pool: Pool) -> None:
    log, before = pool.log, await pool.snapshot()

    for attempt in (
        change_account(log, ANONYMOUS_ID, Change(name="Somebody")),
        rekey_account(log, SECRET, ANONYMOUS_ID),
        set_passkey(log, SECRET, ANONYMOUS_ID, wanted=True),
        set_profile(log, ANONYMOUS_ID, Profile(contact="x@example.org")),
        delete_account(log, ANONYMOUS_ID),
    ):
        with pytest.raises(AnonForbiddenUserMod):
            await attempt

    assert await pool.snapshot() == before


@spec("Accounts", 7)
async def test_trust_that_is_granted_ends_the_pause_of_a_worker(pool: Pool) -> None:
    _, key = await open_account(pool.log, SECRET, "newcomer")
    pool.owner = await pool.accounts.find(key)
    worker = await pool.worker()
    keys = pool.log.keys
    await pool.log.read("HSET", keys.worker(worker.id), "paused", "1", "paused_ms", "1")
    assert (await pool.worker()).paused

    await change_account(pool.log, pool.owner.id, Change(roles={"moderator": True}))

    pool.owner = await Accounts(pool.log, SECRET).find(key)
    assert pool.owner.roles == {"moderator", "trusted"}
    assert not (await pool.worker()).paused


@spec("Accounts", 8)
async def test_a_concurrency_is_of_the_settings_a_number_or_none(pool: Pool) -> None:
    limits, id_ = pool.limits, pool.client.id
    assert limits.concurrency_of(pool.client) == limits.concurrency
    _, key = await open_account(pool.log, SECRET, "busy", concurrency=2)
    busy = await pool.accounts.find(key)
    assert limits.concurrency_of(busy) == 2

    for concurrency in (500, 0):
        await change_account(pool.log, busy.id, Change(concurrency=concurrency))
        busy = await Accounts(pool.log, SECRET).find(key)
        assert limits.concurrency_of(busy) == concurrency
    with pytest.raises(TooManyPrompts):
        await pool.submit(account=busy)
    assert id_ != busy.id


@spec("Shared keys", 5)
async def test_a_shared_key_spends_its_owner_s_kudos_until_it_ends(pool: Pool) -> None:
    log, now_ms = pool.log, await pool.log.now_ms(0)
    id_ = await open_shared_key(log, pool.client, Terms(kudos=9, days=1, max_text_tokens=300))
    assert log.keys.of(id_) == log.keys.of_account(pool.client.id)

    payer = await pool.accounts.payer(id_)

    assert payer._replace(shared_key=None) == pool.client
    assert payer.shared_key is not None
    assert (payer.shared_key.id, payer.shared_key.kudos) == (id_, 90_000)
    check_tokens(payer, 300)
    check_tokens(pool.client, 301)
    with pytest.raises(BadRequest, match="300"):
        check_tokens(payer, 301)
    check_expiry(payer, now_ms)
    check_expiry(pool.client, now_ms)
    with pytest.raises(SharedKeyExpired):
        check_expiry(payer, now_ms + 86_410_000)
    with pytest.raises(InvalidAPIKey):  # where the key of an account is needed
        await pool.accounts.find(id_)
    known = await find(log, id_)
    await change_shared_key(log, pool.client, known, Terms(days=-1, max_text_tokens=-1))
    payer = await pool.accounts.payer(id_)
    check_tokens(payer, 10**6)
    check_expiry(payer, now_ms * 2)
    await delete_shared_key(log, pool.client, known)
    with pytest.raises(InvalidAPIKey):
        await pool.accounts.payer(id_)


@spec("Accounts", 9)
async def test_passkeys_of_the_settings_and_of_services_are_known(pool: Pool) -> None:
    service, _ = await open_account(pool.log, SECRET, "service", roles=("service",))
    passkeys = Passkeys(pool.log, SECRET, ["one"])
    passkey = await set_passkey(pool.log, SECRET, service, wanted=True)
    assert not passkeys.known(passkey)

    await passkeys.refresh()

    assert passkeys.known(passkey)
    assert passkeys.known("one")
    assert not any(map(passkeys.known, ("", "On", passkey[:-1], "\xe9", "two")))
    await delete_account(pool.log, service)
    await passkeys.refresh()
    assert not passkeys.known(passkey)


class Changing:
    """Random changes of a few accounts; what is refused is part of the game."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool = pool
        self.random = random.Random(seed)
        self.names: list[int] = [0, pool.client.id, pool.owner.id]
        self.keys: list[str] = []
        self.api_keys: list[str] = []

    async def step(self) -> None:
        log, random_ = self.pool.log, self.random
        id_ = random_.choice(self.names)
        match random_.randrange(9):
            case 0:
                roles = random_.sample(ROLES[3:], 2)
                new, key = await open_account(log, SECRET, "n", roles=roles, concurrency=3)
                self.names.append(new)
                self.api_keys.append(key)
            case 1 | 2:
                change = Change(
                    name=random_.choice((None, "a, b", "Élodie")),
                    roles={role: random_.random() < 0.5 for role in random_.sample(ROLES, 3)},
                    concurrency=random_.choice((None, 0, 7)),
                    public_workers=random_.choice((None, True, False)),
                    usage_multiplier=random_.choice((None, 500)),
                    reset_suspicion=random_.random() < 0.5,
                )
                await change_account(log, id_, change, by=random_.choice((-1, 1)))
            case 3:
                self.api_keys.append(await rekey_account(log, SECRET, id_))
            case 4:
                await set_passkey(log, SECRET, id_, wanted=random_.random() < 0.8)
            case 5 | 6:
                account = await self._account()
                terms = Terms(name="Club", kudos=random_.choice((-1, 0, 5)), days=1)
                self.keys.append(await open_shared_key(log, account, terms))
            case 7 if self.keys:
                known = await find(log, random_.choice(self.keys))
                account = await self._account()
                if random_.random() < 0.5:
                    await change_shared_key(log, account, known, Terms(kudos=8))
                else:
                    await delete_shared_key(log, account, known)
            case _:
                if random_.random() < 0.2:
                    await delete_account(log, id_)

    async def _account(self) -> object:
        if not self.api_keys:
            return self.pool.client
        return await Accounts(self.pool.log, SECRET).find(self.random.choice(self.api_keys))


@pytest.mark.parametrize("steps", [60, pytest.param(3000, marks=pytest.mark.soak)])
async def test_whatever_is_changed_hot_state_is_the_fold_of_the_log(
    pool: Pool, scratch: Log, steps: int, request: pytest.FixtureRequest
) -> None:
    changing = Changing(pool, int(request.config.getoption("randomly_seed", 1) or 1))

    for _ in range(steps):
        try:
            await changing.step()
        except Refused:
            continue

    assert await verify(pool.log, scratch) == []
    before = await pool.snapshot()
    await rebuild_state(pool.log)
    assert await pool.snapshot() == before
