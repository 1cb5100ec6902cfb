"""Hot state is the fold of the log, and nothing else: after any sequence of commands."""

from __future__ import annotations

import pytest

from events.keys import EPHEMERAL, STATE
from handlers.accounts import ANONYMOUS_KEY
from handlers.log import Log
from handlers.modes import set_modes
from handlers.replay import keys_of, rebuild_state
from handlers.verify import verify
from lua.link import Link
from tests.handlers.driver import Driver
from tests.handlers.invariants import check_settled
from tests.handlers.pool import Pool, operation_of


async def _state(pool: Pool) -> dict[str, object]:
    return {
        key: value
        for key, value in (await pool.snapshot()).items()
        if not any(part in key for part in EPHEMERAL)
    }


@pytest.fixture
async def scratch(log: Log, valkey_server):
    """Another database of the plain server: a scratch copy of any number of partitions."""
    link = Link(valkey_server.url.rstrip("/") + "/1", connections=1, timeout=30)
    await link.call("FLUSHDB")
    opened = Log(link, log.keys, test=True)
    yield opened
    await opened.close()


@pytest.mark.parametrize("commands", [1500, pytest.param(20_000, marks=pytest.mark.soak)])
async def test_any_sequence_of_commands_folds_to_the_live_state(
    pool: Pool, scratch: Log, commands: int, request: pytest.FixtureRequest
) -> None:
    seed = 20_000 if commands > 1500 else request.config.getoption("randomly_seed", 1) or 1
    driver = Driver(pool, int(seed))

    await driver.run(commands)

    assert await verify(pool.log, scratch) == []
    before = await _state(pool)
    assert sum(rebuilt := (await rebuild_state(pool.log)).values()) == len(await pool.events()), (
        rebuilt
    )
    assert await _state(pool) == before
    for partition in pool.log.keys.all():
        assert await keys_of(pool.log, partition, "unknown") == []
        for key in await keys_of(pool.log, partition, "ephemeral"):
            assert await pool.log.read("TTL", key) > 0, key
        for key in await keys_of(pool.log, partition, "state", "durable"):
            assert await pool.log.read("TTL", key) == -1, key
    assert set(driver.replied.values()) <= {1}
    await pool.settle()
    await check_settled(pool)


async def test_time_ends_every_request_and_frees_every_admission(pool: Pool) -> None:
    await Driver(pool, 7).run(400)

    for _ in range(3):
        await pool.settle()
        await pool.pass_time(1300)
        await pool.sweep()
    await pool.settle()

    left = [
        key
        for partition in pool.log.keys.all()
        for key in await keys_of(pool.log, partition, "state")
    ]
    for ended in ("horde:request:", "horde:generation:", "horde:claim:", "horde:due:"):
        assert not [key for key in left if ended in key]
    for account in (pool.client, await pool.accounts.find(ANONYMOUS_KEY)):
        fields = await pool.hash(pool.log.keys.account(account.id))
        assert fields["waiting"] == "0"
        assert not [name for name in fields if name.startswith(("admission:", "scope:"))]


@pytest.mark.parametrize("kind", STATE)
async def test_verify_names_the_key_and_field_that_was_altered_by_hand(
    pool: Pool, scratch: Log, kind: str
) -> None:
    streamed = await pool.submit(stream=True)
    job = await pool.assign(streamed)
    assert job is not None
    await pool.fault((await pool.assign(await pool.submit(), "v")).generation_id)
    await pool.submit(operation=operation_of())
    await set_modes(pool.log, pool.limits, maintenance=True)
    await pool.settle()
    state = [
        key
        for partition in pool.log.keys.all()
        for key in await keys_of(pool.log, partition, "state")
    ]
    key = next(key for key in state if kind in key)
    match (await pool.log.read("TYPE", key)).decode():
        case "hash":
            field = sorted(await pool.hash(key))[0]
            await pool.log.read("HSET", key, field, "altered")
        case "zset":
            field = (await pool.log.read("ZRANGE", key, 0, 0))[0].decode()
            await pool.log.read("ZADD", key, 1, field)
        case _:
            field = "(value)"
            await pool.log.read("SET", key, "altered")

    found = await verify(pool.log, scratch, rounds=2)

    assert [(each.key, each.field) for each in found] == [(key, field)]


async def test_verify_sees_a_missing_and_a_spare_key(pool: Pool, scratch: Log) -> None:
    request_id = await pool.submit()
    spare = pool.log.keys.request(pool.log.keys.new_request_id())
    await pool.log.read("HSET", spare, "state", "open")
    await pool.log.read("DEL", pool.log.keys.request(request_id))

    found = {each.key for each in await verify(pool.log, scratch, rounds=2)}

    assert found == {spare, pool.log.keys.request(request_id)}
