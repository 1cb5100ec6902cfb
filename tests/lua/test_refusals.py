"""Every refusal that a script's header lists can happen, and changes nothing when it does."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from events import codec, types
from events.base import KUDOS
from events.keys import Keys
from handlers import account_changes, passkeys, profiles, shared_keys, workers
from handlers.accounts import open_account
from handlers.admission import admit
from handlers.cancel import expire
from handlers.decoy import Decoys, end_decoy
from handlers.errors import ChatSubmitInvalid, Refused
from handlers.grants import grant
from handlers.limits import Limits
from handlers.log import Log
from handlers.pop import give_back
from handlers.reply import fault, lapse, refuse, submit_reply
from handlers.settle import Settler
from handlers.submit import abandon
from handlers.transfers import Target, transfer
from lua.link import Link
from lua.scripts import HERE, Refusal, Scripts, load
from tests.handlers.driver import idle
from tests.handlers.pool import (
    DECLARATION,
    REPLY,
    SECRET,
    TARIFF,
    Pool,
    minting,
    operation_of,
    request_of,
)

SCRIPTS = {path.stem: load(path, test=True) for path in sorted(HERE.glob("*.lua"))}
REFUSALS = sorted(
    (name, word)
    for name, script in SCRIPTS.items()
    for word in script.header.refuses
    if word != "REBUILDING"
)


class Watching:
    """Runs scripts, and compares the whole database around each refusal."""

    def __init__(self, pool: Pool, inner: Scripts) -> None:
        self._pool = pool
        self._inner = inner
        self.seen: set[tuple[str, str]] = set()

    async def run(self, name: str, keys: Any, args: Any) -> list[bytes]:
        before = await self._pool.snapshot()
        try:
            return await self._inner.run(name, keys, args)
        except Refusal as refusal:
            self.seen.add((name, refusal.word))
            assert await self._pool.snapshot() == before
            raise


@pytest.fixture
async def pool(redis_url: str) -> AsyncIterator[Pool]:
    """A pool on one partition."""
    log = Log(Link(redis_url), Keys(1), test=True)
    yield await Pool.opened(log, Limits())
    await log.close()


async def _job(pool: Pool, *, stream: bool = False, name: str = "w") -> Any:
    job = await pool.assign(await pool.submit(stream=stream), name)
    assert job is not None
    return job


async def _finished(pool: Pool) -> Any:
    job = await _job(pool)
    held = await pool.held(job.generation_id)
    await pool.reply(job.generation_id)
    return job, held


async def _gone(pool: Pool) -> Any:
    """A job whose request expired: what its worker knew of it, and nothing else."""
    job = await _job(pool)
    held = await pool.held(job.generation_id)
    await pool.pass_time(1300)
    await pool.sweep()
    return job, held


async def _expired(pool: Pool, *, with_reply: bool) -> None:
    _, held = await _gone(pool)
    if with_reply:
        await submit_reply(pool.log, pool.limits, TARIFF, held, REPLY)
    else:
        await fault(pool.log, pool.limits, held)


async def _admission(pool: Pool) -> tuple[str, int]:
    request_id = pool.log.keys.new_request_id()
    admission = await admit(pool.log, pool.limits, pool.client, request_id, 1)
    return request_id, admission.deadline_ms


async def _submit_late(pool: Pool, *, abandoned: bool) -> None:
    minted = pool.log.keys.new_request_id()
    pool.log.keys.new_request_id = lambda: minted
    _, deadline_ms = await _admission(pool)
    await pool.pass_time(61)
    if abandoned:
        await abandon(pool.log, pool.limits, pool.client.id, minted, deadline_ms)
    await pool.submit()


async def _other_name(pool: Pool) -> None:
    """Two processes meet a new name at once: the second is told the first one's id."""
    worker = await pool.worker("w")
    flipped = "0" if worker.id[0] != "0" else "1"
    known = pool.workers._known["w"]
    pool.workers._known["w"] = known._replace(id=flipped + worker.id[1:])
    assert (await pool.worker("w")).id == worker.id


async def _gone_worker(pool: Pool, *, delete: bool) -> None:
    """Another call deletes it between the look-up and the script."""
    known = await workers.find(pool.log, (await pool.worker()).id)
    await workers.delete_worker(pool.log, pool.owner, known, idle)
    if delete:
        await workers.delete_worker(pool.log, pool.owner, known, idle)
    else:
        await workers.change_worker(pool.log, pool.owner, known, workers.Change(maintenance=True))


async def _taken_name(pool: Pool) -> None:
    await pool.worker("w")
    other = await workers.find(pool.log, (await pool.worker("v")).id)
    await workers.claim_name(pool.log, pool.owner, other, "w")


async def _renamed(pool: Pool) -> None:
    """It goes on under the old name until that is free."""
    known = await workers.find(pool.log, (await pool.worker("w")).id)
    await workers.claim_name(pool.log, pool.owner, known, "v")
    assert (await pool.worker("v")).name == "w"


async def _deleted(pool: Pool) -> None:
    known = await workers.find(pool.log, (await pool.worker("w")).id)
    await workers.delete_worker(pool.log, pool.owner, known, idle)
    await pool.worker("w")


async def _wrong_owner(pool: Pool) -> None:
    await pool.worker("w")
    pool.owner = pool.client
    await pool.worker("w")


async def _meanwhile(
    pool: Pool, act: Callable[[], Awaitable[object]], change: Callable[[], Awaitable[object]]
) -> None:
    """Another call comes between what a handler reads first and its script."""
    read, first = pool.log.read, True

    async def slow(*command: Any) -> Any:
        nonlocal first
        answer, now = await read(*command), first
        first = False
        if now:
            await change()
        return answer

    pool.log.read = slow
    await act()


async def _stale(pool: Pool, act: Callable[[], Awaitable[object]], request_id: str) -> None:
    """The request gets another generation between the read and the script."""
    await _meanwhile(
        pool,
        act,
        lambda: give_back(pool.log, request_id, pool.log.keys.new_id_beside(request_id)),
    )


async def _stale_cancel(pool: Pool) -> None:
    request_id = await pool.submit()
    await _stale(pool, lambda: pool.cancel(request_id), request_id)


async def _stale_expire(pool: Pool) -> None:
    request_id = await pool.submit()
    await pool.pass_time(1300)
    await _stale(pool, lambda: expire(pool.log, pool.limits, request_id), request_id)


async def _early_expire(pool: Pool) -> None:
    await expire(pool.log, pool.limits, await pool.submit())


async def _expire_nothing(pool: Pool) -> None:
    keys, request_id = pool.log.keys, pool.log.keys.new_request_id()
    await pool.log.run(
        "expire",
        0,
        {
            "request": keys.request(request_id),
            "content": keys.content(request_id),
            "due_lease": keys.due(0, "lease"),
            "due_request": keys.due(0, "request"),
            "delete_retry": keys.delete_retry(0),
            "generations": [],
        },
        {
            "generations": "",
            "most": 1,
            "reason_ttl": 60,
            "most_deletes": 1,
            "request_id": request_id,
            "event": codec.encode(types.Expired(request_id=request_id, generations=())),
        },
    )


async def _cancel_nothing(pool: Pool) -> None:
    request_id = await pool.submit()
    redis, key = pool.log.redis, pool.log.keys.request(request_id)
    await _meanwhile(pool, lambda: pool.cancel(request_id), lambda: redis.call("DEL", key))


async def _spent(pool: Pool) -> None:
    request_id = await pool.submit()
    late = pool.log.keys.new_id_beside(request_id)
    await give_back(pool.log, request_id, late)
    log = minting(pool.log, late)
    log.scripts = pool.log.scripts  # which are watched
    await replace(pool, log=log).assign(request_id)


async def _lost(pool: Pool) -> None:
    request_id = await pool.submit()
    await pool.log.read("DEL", pool.log.keys.content(request_id))
    await pool.assign(request_id)


async def _held_off(pool: Pool) -> None:
    job = await _job(pool)
    await pool.fault(job.generation_id)
    await pool.assign(job.request_id)


async def _assigned_twice(pool: Pool) -> None:
    job = await _job(pool, name="a")
    await pool.assign(job.request_id, "b")


async def _faulted_twice(pool: Pool, then: Callable[[str], Awaitable[object]]) -> None:
    job = await _job(pool)
    await pool.fault(job.generation_id)
    await then(job.generation_id)


async def _behind_a_fence(pool: Pool) -> None:
    job = await _job(pool)
    await pool.reply(job.generation_id)
    late = Settler(pool.log, pool.limits, 0)
    await late.start()
    await pool.settle()
    await late.settle([entry.recorded for entry in await pool.events()])


async def _stale_number(pool: Pool) -> None:
    await _meanwhile(
        pool,
        lambda: open_account(pool.log, SECRET, "slow"),
        lambda: open_account(pool.log, SECRET, "quick"),
    )


async def _no_account(pool: Pool) -> None:
    await pool.log.read("DEL", pool.log.keys.account(pool.client.id))
    await pool.submit()


async def _too_many(pool: Pool) -> None:
    pool.limits = msgspec.structs.replace(pool.limits, concurrency=1)
    await pool.submit()
    await pool.submit()


async def _with_key(pool: Pool, *, kudos: int = 5, days: int = -1, gone: bool = False) -> None:
    """What is held upfront is more than the shared key may spend; or its time is up, or it went."""
    terms = shared_keys.Terms(kudos=kudos, days=days)
    id_ = await shared_keys.open_shared_key(pool.log, pool.client, terms)
    account = await pool.accounts.payer(id_)
    if gone:
        known = await shared_keys.find(pool.log, id_)
        await shared_keys.delete_shared_key(pool.log, pool.client, known)
    await pool.pass_time(days * 86_400 if days > 0 else 0)
    await pool.submitted(request_of(hold=6 * KUDOS), account=account)


async def _claimed(pool: Pool) -> None:
    await pool.submit(operation=operation_of())
    await pool.submit(operation=operation_of())


async def _post(pool: Pool, *posts: tuple[int, str], stranger: bool = False) -> None:
    job = await pool.assign(await pool.submit(stream=True, max_length=16), "w")
    assert job is not None
    if stranger:
        pool.owner = pool.client
    for seq, content in posts:
        await pool.post(job.generation_id, seq, content)


async def _post_too_late(pool: Pool) -> None:
    """The lease goes between its look-up and the script."""
    job = await _job(pool, stream=True)
    redis, key = pool.log.redis, pool.log.keys.lease(job.generation_id)
    await _meanwhile(
        pool, lambda: pool.post(job.generation_id, 1, "x"), lambda: redis.call("DEL", key)
    )


async def _give_back_expired(pool: Pool) -> None:
    job, _ = await _gone(pool)
    await give_back(pool.log, job.request_id, job.generation_id)


async def _give_back_finished(pool: Pool) -> None:
    job, _ = await _finished(pool)
    await give_back(pool.log, job.request_id, job.generation_id)


async def _refuse_finished(pool: Pool) -> None:
    _, held = await _finished(pool)
    await refuse(pool.log, pool.limits, held, ChatSubmitInvalid("No reply."))


async def _lapse(pool: Pool, *, ended: bool) -> None:
    job = (await _finished(pool))[0] if ended else await _job(pool)
    await lapse(pool.log, pool.limits, job.request_id, job.generation_id)


async def _again(pool: Pool, *, with_reply: bool) -> None:
    job, _ = await _finished(pool)
    await (pool.reply if with_reply else pool.fault)(job.generation_id)


async def _abandon(pool: Pool, *, came: bool) -> None:
    request_id, deadline_ms = await _admission(pool)
    if came:
        request_id = await pool.submit()
        await pool.pass_time(61)
    await abandon(pool.log, pool.limits, pool.client.id, request_id, deadline_ms)


NOBODY = "00000000-0000-4000-8000-000000000000"


async def _decoy(pool: Pool, request_id: str) -> str:
    worker = await pool.worker()
    job = await Decoys(pool.log, pool.limits).give(worker, DECLARATION, request_id, "m")
    return "" if job is None else job.generation_id


async def _decoy_of_none(pool: Pool) -> None:
    await _decoy(pool, (await _job(pool)).request_id)


async def _decoy_again(pool: Pool) -> None:
    request_id = await pool.submit()
    await _decoy(pool, request_id)
    await _decoy(pool, request_id)


async def _with_image(pool: Pool, give: Callable[[str], Awaitable[object]]) -> None:
    """A request with an image, for a worker that gets none."""
    request_id = await pool.submit()
    await pool.log.read("HSET", pool.log.keys.request(request_id), "objects", "1")
    await give(request_id)


async def _ended_decoy(pool: Pool, state: str) -> None:
    generation_id = await _decoy(pool, await pool.submit())
    await end_decoy(pool.log, generation_id, state)
    await end_decoy(pool.log, generation_id, "finished")


async def _gives(pool: Pool, kudos: int = 1, key: str = "", **marked: str) -> None:
    """The client gives the owner something, with these fields on its account."""
    account = pool.log.keys.account(pool.client.id)
    for field, value in marked.items():
        await pool.log.read("HSET", account, field, value)
    to = Target(pool.owner.id)
    await transfer(pool.log, pool.limits, pool.client, to, kudos, idempotency=key)


async def _gone_giver(pool: Pool) -> None:
    await pool.log.read("HDEL", pool.log.keys.account(pool.client.id), "name")
    await _gives(pool)


async def _gives_twice(pool: Pool) -> None:
    await _gives(pool, 1, "k")
    await _gives(pool, 2, "k")


async def _gives_back(pool: Pool) -> None:
    await _gives(pool)
    await pool.settle()
    await transfer(pool.log, pool.limits, pool.owner, Target(pool.client.id), 1)


async def _client_gone(pool: Pool, act: Callable[[], Awaitable[object]]) -> None:
    log = pool.log
    await _meanwhile(pool, act, lambda: log.redis.call("DEL", log.keys.account(pool.client.id)))


def _rekey(pool: Pool) -> Awaitable[object]:
    return account_changes.rekey_account(pool.log, SECRET, pool.client.id)


def _draw(pool: Pool) -> Awaitable[object]:
    return passkeys.set_passkey(pool.log, SECRET, pool.client.id, wanted=True)


def _delete(pool: Pool) -> Awaitable[object]:
    return account_changes.delete_account(pool.log, pool.client.id)


def _share(pool: Pool) -> Awaitable[str]:
    return shared_keys.open_shared_key(pool.log, pool.client, shared_keys.Terms())


async def _serve(pool: Pool) -> None:
    change = account_changes.Change(roles={"service": True})
    await account_changes.change_account(pool.log, pool.client.id, change)


async def _stale_passkey(pool: Pool) -> None:
    await _serve(pool)
    await _meanwhile(pool, lambda: _draw(pool), lambda: _draw(pool))


async def _share_too_many(pool: Pool) -> None:
    for _ in range(shared_keys.MOST + 1):
        await _share(pool)


async def _shared_key_gone(pool: Pool, *, delete: bool) -> None:
    """Another call deletes it between the look-up and the script."""
    known = await shared_keys.find(pool.log, await _share(pool))
    await shared_keys.delete_shared_key(pool.log, pool.client, known)
    if delete:
        await shared_keys.delete_shared_key(pool.log, pool.client, known)
    else:
        terms = shared_keys.Terms(kudos=1)
        await shared_keys.change_shared_key(pool.log, pool.client, known, terms)


async def _change_deleted(pool: Pool) -> None:
    await _delete(pool)
    await _serve(pool)


async def _describe_deleted(pool: Pool) -> None:
    await _delete(pool)
    await profiles.set_profile(pool.log, pool.client.id, profiles.Profile(contact="me@there"))


async def _share_deleted(pool: Pool) -> None:
    await _delete(pool)
    await _share(pool)


SCENARIOS: dict[tuple[str, str], Callable[[Pool], Awaitable[object]]] = {
    ("abandon", "EXISTS"): lambda pool: _abandon(pool, came=True),
    ("abandon", "NOT_DUE"): lambda pool: _abandon(pool, came=False),
    ("admit", "NO_ACCOUNT"): _no_account,
    ("admit", "CLAIMED"): _claimed,
    ("admit", "KEY_EXPIRED"): lambda pool: _with_key(pool, kudos=9, days=1),
    ("admit", "KEY_SHORT"): _with_key,
    ("admit", "NO_KEY"): lambda pool: _with_key(pool, gone=True),
    ("admit", "SHORT"): lambda pool: pool.submitted(request_of(hold=75 * KUDOS + 1)),
    ("admit", "TOO_MANY"): _too_many,
    ("assign", "GONE"): lambda pool: pool.assign(pool.log.keys.new_request_id()),
    ("assign", "HELD_OFF"): _held_off,
    ("assign", "LOST"): _lost,
    ("assign", "NOT_WAITING"): _assigned_twice,
    ("assign", "NO_IMAGES"): lambda pool: _with_image(pool, pool.assign),
    ("assign", "SPENT"): _spent,
    ("cancel", "NOT_FOUND"): _cancel_nothing,
    ("cancel", "STALE"): _stale_cancel,
    ("check_in", "OTHER_ID"): _other_name,
    ("check_in", "WRONG_OWNER"): _wrong_owner,
    ("change_account", "NO_ACCOUNT"): _change_deleted,
    ("change_shared_key", "NO_KEY"): lambda pool: _shared_key_gone(pool, delete=False),
    ("delete_account", "NO_ACCOUNT"): lambda pool: _client_gone(pool, lambda: _delete(pool)),
    ("delete_account", "STALE"): lambda pool: _meanwhile(
        pool, lambda: _delete(pool), lambda: _rekey(pool)
    ),
    ("delete_shared_key", "NO_KEY"): lambda pool: _shared_key_gone(pool, delete=True),
    ("open_shared_key", "NO_ACCOUNT"): _share_deleted,
    ("open_shared_key", "TOO_MANY"): _share_too_many,
    ("rekey_account", "NO_ACCOUNT"): lambda pool: _client_gone(pool, lambda: _rekey(pool)),
    ("rekey_account", "STALE"): lambda pool: _meanwhile(
        pool, lambda: _rekey(pool), lambda: _rekey(pool)
    ),
    ("set_passkey", "NO_ACCOUNT"): lambda pool: _client_gone(pool, lambda: _draw(pool)),
    ("set_passkey", "NO_SERVICE"): _draw,
    ("set_passkey", "STALE"): _stale_passkey,
    ("set_profile", "NO_ACCOUNT"): _describe_deleted,
    ("change_worker", "NOT_FOUND"): lambda pool: _gone_worker(pool, delete=False),
    ("claim_name", "TAKEN"): _taken_name,
    ("check_in", "RENAMED"): _renamed,
    ("check_in", "GONE"): _deleted,
    ("delete_worker", "NOT_FOUND"): lambda pool: _gone_worker(pool, delete=True),
    ("decoy", "GONE"): lambda pool: _decoy(pool, pool.log.keys.new_request_id()),
    ("decoy", "NOT_WAITING"): _decoy_of_none,
    ("decoy", "NO_IMAGES"): lambda pool: _with_image(pool, partial(_decoy, pool)),
    ("decoy", "TRICKED"): _decoy_again,
    ("end_decoy", "ABORTED"): lambda pool: _ended_decoy(pool, "faulted"),
    ("end_decoy", "ALREADY_SUBMITTED"): lambda pool: _ended_decoy(pool, "finished"),
    ("end_decoy", "NOT_FOUND"): lambda pool: end_decoy(pool.log, NOBODY, "finished"),
    ("expire", "NOT_DUE"): _early_expire,
    ("expire", "NOT_FOUND"): _expire_nothing,
    ("expire", "STALE"): _stale_expire,
    ("fault", "ABORTED"): lambda pool: _faulted_twice(pool, pool.fault),
    ("fault", "ALREADY_SUBMITTED"): lambda pool: _again(pool, with_reply=False),
    ("fault", "NOT_FOUND"): lambda pool: _expired(pool, with_reply=False),
    ("give_back", "ENDED"): _give_back_finished,
    ("give_back", "GONE"): _give_back_expired,
    ("grant", "NO_ACCOUNT"): lambda pool: grant(pool.log, 10**6, 1, grant_id="g"),
    ("grant", "TOO_MUCH"): lambda pool: grant(pool.log, pool.client.id, 2**53, grant_id="g"),
    ("lapse", "ENDED"): lambda pool: _lapse(pool, ended=True),
    ("lapse", "NOT_DUE"): lambda pool: _lapse(pool, ended=False),
    ("open_account", "STALE"): _stale_number,
    ("progress", "CAP_REACHED"): lambda pool: _post(pool, (1, "x" * 257)),
    ("progress", "NO_LEASE"): _post_too_late,
    ("progress", "OUT_OF_SEQUENCE"): lambda pool: _post(pool, (2, "x")),
    ("progress", "WRONG_CREDENTIALS"): lambda pool: _post(pool, (1, "x"), stranger=True),
    ("refuse", "ENDED"): _refuse_finished,
    ("settle", "FENCE"): _behind_a_fence,
    ("submit", "ABANDONED"): lambda pool: _submit_late(pool, abandoned=True),
    ("submit", "TOO_LATE"): lambda pool: _submit_late(pool, abandoned=False),
    ("submit_reply", "ABORTED"): lambda pool: _faulted_twice(pool, pool.reply),
    ("submit_reply", "ALREADY_SUBMITTED"): lambda pool: _again(pool, with_reply=True),
    ("submit_reply", "NOT_FOUND"): lambda pool: _expired(pool, with_reply=True),
    ("transfer", "EDUCATION"): lambda pool: _gives(pool, education="1"),
    ("transfer", "FLAGGED"): lambda pool: _gives(pool, flagged="1"),
    ("transfer", "KEY_CONFLICT"): _gives_twice,
    ("transfer", "NO_ACCOUNT"): _gone_giver,
    ("transfer", "NO_RECIPIENT"): lambda pool: transfer(
        pool.log, pool.limits, pool.client, Target(10**6), 1
    ),
    ("transfer", "SHORT"): lambda pool: _gives(pool, 10**9),
    ("transfer", "SUSPICIOUS"): lambda pool: _gives(pool, suspicious="5"),
    ("transfer", "TOO_FAST"): _gives_back,
}


@pytest.mark.parametrize(("script", "word"), REFUSALS)
async def test_a_refusal_changes_nothing(pool: Pool, script: str, word: str) -> None:
    watching = Watching(pool, pool.log.scripts)
    pool.log.scripts = watching

    with contextlib.suppress(Refused, Refusal):
        await SCENARIOS[script, word](pool)

    assert (script, word) in watching.seen


@pytest.mark.parametrize("name", [name for name, each in SCRIPTS.items() if each.header.events])
async def test_every_command_that_appends_is_refused_while_state_is_rebuilt(
    pool: Pool, name: str
) -> None:
    header = SCRIPTS[name].header
    keys: dict[str, Any] = {key: f"horde:{key}" for key in header.keys}
    args: dict[str, Any] = dict.fromkeys(header.args, "1")
    if header.more_keys:
        keys[header.keys[-1]] = []
    if header.more_args:
        args[header.args[-1]] = []
    await pool.log.read("HSET", keys["control"], "gate", "rebuild")
    before = await pool.snapshot()

    with pytest.raises(Refusal, match="REBUILDING"):
        await pool.log.scripts.run(name, keys, args)

    assert await pool.snapshot() == before
