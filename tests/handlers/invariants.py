"""What holds of accounts and claims whenever everything is settled."""

from __future__ import annotations

from collections import Counter

from handlers.replay import keys_of
from tests.handlers.pool import Pool


async def check_settled(pool: Pool) -> None:
    """Waiting jobs are counted as the requests have them, and no claim names nothing."""
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
            jobs, _, _, named = value.split(":")
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


async def _state(pool: Pool, kind: str) -> list[str]:
    return [
        key
        for partition in pool.log.keys.all()
        for key in await keys_of(pool.log, partition, "state")
        if kind in key
    ]
