"""Verify tells where hot state is not the fold of the log."""

from __future__ import annotations

import pytest

from events.keys import STATE
from handlers.accounts import open_account
from handlers.grants import grant
from handlers.log import Log
from handlers.modes import set_modes
from handlers.passkeys import set_passkey
from handlers.replay import fold, keys_of, read_log
from handlers.shared_keys import Terms, open_shared_key
from handlers.snapshots import take
from handlers.verify import verify
from hordechat.process import Service
from tests.handlers.driver import Driver
from tests.handlers.pool import SECRET, Pool, operation_of
from tests.handlers.shelf import archive_in, put_away


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
    await open_shared_key(pool.log, pool.client, Terms())
    await grant(pool.log, pool.client.id, 1, grant_id="a")
    service, _ = await open_account(pool.log, SECRET, "service", roles=("service",))
    await set_passkey(pool.log, SECRET, service, wanted=True)
    await pool.settle()
    state = [
        key
        for partition in pool.log.keys.all()
        for key in await keys_of(pool.log, partition, "state")
    ]
    key = next(key for key in state if key.split("}")[-1].startswith(kind))
    match (await pool.log.read("TYPE", key)).decode():
        case "hash":
            field = sorted(await pool.hash(key))[0]
            await pool.log.read("HSET", key, field, "altered")
        case "zset":
            field = (await pool.log.read("ZRANGE", key, 0, 0))[0].decode()
            await pool.log.read("ZADD", key, 1, field)
        case "list":
            field = "[0]"
            await pool.log.read("LSET", key, 0, "altered")
        case "set":
            field = "altered"
            await pool.log.read("SADD", key, field)
        case _:
            field = "(value)"
            await pool.log.read("SET", key, "altered")

    found = await verify(pool.log, scratch, rounds=2)

    assert [(each.key, each.field) for each in found] == [(key, field)]


@pytest.mark.parametrize("log", ["one partition"], indirect=True)
async def test_verify_sees_what_was_altered_in_front_of_a_snapshot(
    pool: Pool, scratch: Log, s3_server: Service
) -> None:
    request_id = await pool.submit()
    await pool.settle()
    archive = archive_in(s3_server, 1)
    await put_away(archive, pool.log, 0)
    assert await take(archive, scratch, 0)
    await pool.submit()
    pool.log.archive = archive
    key = pool.log.keys.request(request_id)
    await pool.log.read("HSET", key, "max_length", "7")
    await scratch.read("FLUSHDB")

    found = await verify(pool.log, scratch, rounds=2)

    assert [(each.key, each.field) for each in found] == [(key, "max_length")]


@pytest.mark.parametrize("log", ["one partition"], indirect=True)
async def test_verify_sees_a_position_that_no_event_has(pool: Pool, scratch: Log) -> None:
    key = pool.log.keys.request(await pool.submit())
    await pool.log.read("HSET", key, "position", "1-1")

    found = await verify(pool.log, scratch, rounds=2)

    assert [(each.key, each.field) for each in found] == [(key, "position")]


async def test_verify_sees_a_missing_and_a_spare_key(pool: Pool, scratch: Log) -> None:
    request_id = await pool.submit()
    spare = pool.log.keys.request(pool.log.keys.new_request_id())
    await pool.log.read("HSET", spare, "state", "open")
    await pool.log.read("DEL", pool.log.keys.request(request_id))

    found = {each.key for each in await verify(pool.log, scratch, rounds=2)}

    assert found == {spare, pool.log.keys.request(request_id)}


@pytest.mark.parametrize("log", ["one partition"], indirect=True)
async def test_a_log_that_lost_a_stretch_is_folded_all_the_same(pool: Pool, scratch: Log) -> None:
    """Of a request or a job whose beginning is gone nothing is left."""
    await Driver(pool, seed=7).run(150)
    await pool.settle()
    entries = [entry async for page in read_log(pool.log, 0) for entry in page]
    words = {entry.fields[1] for entry in entries}
    assert words > {b"assigned", b"submitted-reply", b"returned", b"cancelled", b"faulted"}
    await scratch.scripts.preload("replay_event")
    for first in range(0, len(entries), 41):
        for length in (1, 40):
            await scratch.read("FLUSHDB")

            await fold(scratch, entries[:first] + entries[first + length :])

            for key in await keys_of(scratch, 0, "state"):
                if key.startswith(("horde:request:", "horde:generation:")):
                    assert await scratch.read("HEXISTS", key, "state")
