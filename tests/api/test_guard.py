"""How Redis stands, on one node and on a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from api import guard
from api.guard import MemoryGuard, memory
from events.keys import Keys
from handlers import stream
from handlers.errors import OutOfMemory
from handlers.log import Log
from lua.link import connect
from tests.logged import logged


@pytest.fixture(params=["redis_url", "cluster_url"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    opened = Log(await connect(request.getfixturevalue(request.param), timeout=20), Keys(4))
    yield opened
    await opened.close()


@pytest.fixture
async def little(log: Log) -> AsyncIterator[int]:
    """A server whose own limit is a bit more than it uses: so much."""
    most = (await memory(log)).used * 105 // 100
    await log.everywhere("CONFIG", "SET", "maxmemory", most)
    yield most
    await log.everywhere("CONFIG", "SET", "maxmemory", 0)


async def test_memory_and_policy_are_read(log: Log) -> None:
    found = await memory(log)

    assert found.used > 100_000
    assert found.filled == 0
    assert found.policies == {"noeviction"}


async def test_nine_tenths_of_what_the_server_has_are_the_limit_where_none_is_set(
    log: Log, little: int
) -> None:
    assert (await memory(log)).filled == pytest.approx(0.95, abs=0.04)
    unset, wide = MemoryGuard(log, 0), MemoryGuard(log, little * 2)

    await unset.sample()
    await wide.sample()

    with pytest.raises(OutOfMemory):
        unset.check()
    wide.check()
    await log.everywhere("CONFIG", "SET", "maxmemory", little * 2)
    await unset.sample()
    unset.check()


async def test_the_logs_have_a_limit_of_their_own_and_passing_it_is_said_once(log: Log) -> None:
    watch = MemoryGuard(log, 0, 50_000)
    with logged(guard.logger) as lines:
        await watch.sample()
        watch.check()
        for partition in log.keys.all():
            await log.read("XADD", log.keys.events(partition), "*", "type", "x" * 20_000)
        for _ in range(2):
            await watch.sample()
            with pytest.raises(OutOfMemory):
                watch.check()
        await log.read("DEL", log.keys.events(0))
        await log.read("DEL", log.keys.events(1))
        await log.read("DEL", log.keys.events(2))
        await watch.sample()

    watch.check()
    assert [(each["event"], each["full"]) for each in lines] == [
        ("log_memory", True),
        ("log_memory", False),
    ]


async def test_a_limit_is_left_behind_before_more_is_taken(log: Log) -> None:
    """Or what stands at it would be refused and taken in turn."""
    for partition, size in enumerate((60_000, 60_000, 500)):
        await log.read("XADD", log.keys.events(partition), "*", "type", "x" * size)
    watch = MemoryGuard(log, 0, await stream.memory(log) - 1)
    await watch.sample()
    await log.read("DEL", log.keys.events(2))
    await watch.sample()
    assert watch.full

    await log.read("DEL", log.keys.events(1))
    await watch.sample()

    assert not watch.full
