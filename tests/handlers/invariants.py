"""What holds of the ledger at any time, and of accounts and claims whenever all is settled."""

from __future__ import annotations

from collections import Counter

from handlers import objects
from handlers.objects import Kept
from handlers.replay import keys_of
from handlers.store import Store
from tests.handlers.pool import Pool


async def check_ledger(pool: Pool) -> None:
    """No balance is below its floor, what is held is what admissions hold, and in each partition
    all that accounts have and the other side of it come to nothing."""
    totals = {
        partition: sum(map(int, (await pool.hash(pool.log.keys.clearing(partition))).values()))
        for partition in pool.log.keys.all()
    }
    for key in await _state(pool, "horde:account:"):
        account = await pool.hash(key)
        assert int(account["kudos"]) >= int(account["floor"]), key
        assert int(account.get("escrow", 0)) >= 0, key
        held: Counter[str] = Counter()
        for field, value in account.items():
            if field.startswith("admission:"):
                _, _, _, _, amount, _, shared_key, *_ = value.split(":")
                held["held"] += int(amount)
                held[f"held:{shared_key}"] += int(amount) if shared_key else 0
        counted = {name: int(n) for name, n in account.items() if name.startswith("held")}
        assert Counter(counted) == held, key
        partition = pool.log.keys.of_account(int(key.rpartition(":")[2]))
        totals[partition] += int(account["kudos"]) + int(account.get("escrow", 0))
    assert not any(totals.values()), totals


async def check_settled(pool: Pool) -> None:
    """Waiting jobs are counted as the requests have them, no claim names nothing, and the ledger
    is in order."""
    await check_ledger(pool)
    admitted: set[str] = set()
    for key in await _state(pool, "horde:account:"):
        account = await pool.hash(key)
        waiting = 0
        scopes: Counter[str] = Counter()
        for field, value in account.items():
            if not field.startswith("admission:"):
                continue
            request_id = field.removeprefix("admission:")
            admitted.add(request_id)
            jobs, _, _, named, *_ = value.split(":")
            request = await pool.request(request_id)
            if request.get("state", "abandoned") != "abandoned":
                assert request["state"] == "open", f"{request_id} is done and holds its admission"
                assert request["waiting"] == jobs, request_id
            waiting += int(jobs)
            scopes.update({f"scope:{scope}": int(jobs) for scope in named.split(",") if scope})
        assert int(account["waiting"]) == waiting, key
        counted = {name: int(n) for name, n in account.items() if name.startswith("scope:")}
        assert counted == {name: n for name, n in scopes.items() if n}, key
    for key in await _state(pool, "horde:request:"):
        request = await pool.hash(key)
        if request["state"] == "open":
            assert key.rpartition(":")[2] in admitted, f"{key} is open without an admission"
    for key in await _state(pool, "horde:claim:"):
        request_id = (await pool.hash(key))["request"]
        assert request_id in admitted or await pool.request(request_id), f"{key} names nothing"


async def check_objects(pool: Pool, store: Store) -> None:
    """Every object is named by an open admission, a request, its tombstone or the set of what is to
    be deleted, and those of a request are there."""
    # The embedded store lists what is still being uploaded, under a name of its own.
    stored = {key for key in await store.keys() if objects.named(key)}
    named = await pool.doomed()
    for key in await _state(pool, "horde:account:"):
        for field, value in (await pool.hash(key)).items():
            if field.startswith("admission:"):
                *_, kept = value.split(":")[7:] or [""]
                named.update(Kept.parse(kept).keys(field.removeprefix("admission:")))
    for key in await _state(pool, "horde:request:"):
        request = await pool.hash(key)
        names = set(Kept.parse(request.get("objects", "")).keys(key.rpartition(":")[2]))
        named |= names
        assert request["state"] == "abandoned" or names <= stored, f"{key} misses {names - stored}"
    assert stored <= named, f"nothing names {stored - named}"


async def _state(pool: Pool, kind: str) -> list[str]:
    return [
        key
        for partition in pool.log.keys.all()
        for key in await keys_of(pool.log, partition, "state")
        if kind in key
    ]
