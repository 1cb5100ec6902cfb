"""The connection to Redis: order, sharing, deadlines, and what happens to a lost answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import redis

from hordechat.datadir import free_port
from lua.link import Link, ResponseError, Tail, Unavailable, Waits, connect
from lua.scripts import Refusal, Scripts
from tests.proxy import Proxy

PATIENT = 20.0
"""Seconds. What is no test of a server that hangs waits for one that the machine holds up."""
ASKS = Waits(ask=PATIENT)


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    """A link with one connection."""
    opened = Link(redis_url, timeout=PATIENT, connections=1)
    yield opened
    await opened.close()


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    """A TCP proxy in front of Redis."""
    async with Proxy.before(redis_url) as opened:
        yield opened


async def test_commands_of_one_turn_share_a_round_trip_and_keep_their_order(link: Link) -> None:
    await link.call("PING")
    before = await _calls(link)

    answers = await asyncio.gather(*(link.call("INCR", "n") for _ in range(100)))

    assert answers == list(range(1, 101))
    assert await _calls(link) - before <= 3


async def _calls(link: Link) -> int:
    """Reads that the server made so far: one for each batch, while batches are small."""
    info = await link.call("INFO", "stats")
    line = next(line for line in info.decode().splitlines() if "total_reads_processed" in line)
    return int(line.split(":")[1])


async def test_an_error_reply_is_its_command_s_alone(link: Link) -> None:
    await link.call("SET", "text", "x")

    answers = await asyncio.gather(
        link.call("GET", "text"),
        link.call("INCR", "text"),
        link.call("GET", "text"),
        return_exceptions=True,
    )

    assert answers[0] == answers[2] == b"x"
    assert isinstance(answers[1], ResponseError)


@pytest.mark.parametrize("kind", ["redis_url", "cluster_url"])
async def test_a_server_that_cannot_serve_just_now_is_unavailable(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """As while it loads its data: it answers, but executes nothing."""
    url = request.getfixturevalue(kind)
    link = await connect(url, timeout=PATIENT, waits=ASKS)
    with redis.Redis.from_url(url) as operator:
        operator.config_set("min-replicas-to-write", 1)
        try:
            with pytest.raises(Unavailable) as refused:
                await link.call("SET", "k", "v")
        finally:
            operator.config_set("min-replicas-to-write", 0)

    assert not refused.value.sent
    await link.close()


@pytest.mark.parametrize("stale", ["yes", "no"])
async def test_a_replica_is_unavailable(link: Link, stale: str) -> None:
    """It answers READONLY, or MASTERDOWN."""
    await link.call("CONFIG", "SET", "replica-serve-stale-data", stale)
    await link.call("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(Unavailable) as refused:
            await link.call("SET", "k", "v")
    finally:
        await link.call("REPLICAOF", "NO", "ONE")
        await link.call("CONFIG", "SET", "replica-serve-stale-data", "yes")

    assert not refused.value.sent


async def test_a_large_answer_comes_whole(link: Link) -> None:
    await link.call("SET", "large", b"x" * 3_000_000)

    assert len(await link.call("GET", "large")) == 3_000_000


async def test_a_caller_that_goes_away_does_not_cut_the_others(link: Link) -> None:
    await link.call("PING")
    gone = asyncio.ensure_future(link.call("DEBUG", "SLEEP", "0"))
    stays = asyncio.ensure_future(link.call("SET", "k", "v"))
    await asyncio.sleep(0)
    gone.cancel()

    assert await stays == b"OK"
    assert await link.call("GET", "k") == b"v"


async def test_nothing_listens() -> None:
    link = Link(f"redis://127.0.0.1:{free_port()}", timeout=PATIENT)

    with pytest.raises(Unavailable) as lost:
        await link.call("PING")

    assert not lost.value.sent
    await link.close()


async def test_a_silent_server_fails_every_caller_within_a_deadline(proxy: Proxy) -> None:
    link = Link(proxy.url, timeout=3, connections=1)
    await link.call("PING")
    proxy.stall()
    loop = asyncio.get_running_loop()
    started = loop.time()

    while not link._idle:  # the answer was told before its batch ended
        await asyncio.sleep(0)
    first = asyncio.ensure_future(link.call("INCR", "n"))
    while link._idle:
        await asyncio.sleep(0)
    behind = asyncio.ensure_future(link.call("INCR", "n"))
    outcomes = await asyncio.gather(first, behind, return_exceptions=True)

    assert [type(each) for each in outcomes] == [Unavailable, Unavailable]
    assert [each.sent for each in outcomes] == [True, False]
    assert loop.time() - started < 30
    proxy.flow()
    assert await link.call("PING") == b"PONG"
    await link.close()


async def test_a_dropped_answer_is_reported_and_not_repeated(proxy: Proxy, link: Link) -> None:
    through = Link(proxy.url, timeout=PATIENT, connections=1)
    await through.call("PING")
    proxy.drop_answers(1)

    with pytest.raises(Unavailable) as lost:
        await through.call("INCR", "n")

    assert lost.value.sent
    assert await link.call("GET", "n") == b"1"
    assert await through.call("INCR", "n") == 2
    await through.close()


async def test_it_recovers_when_the_server_closed_its_idle_connections(link: Link) -> None:
    own = await link.call("CLIENT", "ID")
    other = await connect(link_url(link), timeout=PATIENT)
    await other.call("CLIENT", "KILL", "ID", own)

    assert await link.call("PING") in (b"PONG",)
    await other.close()


def link_url(link: Link) -> str:
    """The URL that a link was made with."""
    options = link._pool.connection_kwargs
    return f"redis://{options['host']}:{options['port']}/{options['db']}"


async def test_what_we_use_of_redis_py_s_private_parts_is_there(link: Link) -> None:
    await link.call("PING")
    connection = link._connections[0]

    for name in ("_reader", "_writer", "_parser"):
        assert getattr(connection, name) is not None
    assert callable(connection._parser._reader.gets)
    assert callable(connection._parser._reader.feed)


async def test_an_unknown_script_is_loaded_and_run(link: Link) -> None:
    scripts = Scripts(link, test=True)
    await link.call("SCRIPT", "FLUSH")
    await link.call("HSET", "horde:control", "last_ms", 0)
    keys = {
        "events": "horde:events",
        "control": "horde:control",
        "request": "horde:request:x",
        "due_request": "horde:due:request",
        "delete_retry": "horde:chat:image_delete_retry",
    }

    with pytest.raises(Refusal) as refused:
        await scripts.run(
            "abandon", keys, {"deadline_ms": 9e15, "most": 1, "event": ["type", "abandoned"]}
        )

    assert refused.value.word == "NOT_DUE"


async def test_a_call_that_names_other_keys_than_the_header_is_a_bug(link: Link) -> None:
    scripts = Scripts(link, test=True)

    with pytest.raises(TypeError, match="abandon takes"):
        await scripts.run("abandon", {"events": "e"}, {})


async def test_the_cluster_is_found_out(cluster_url: str, redis_url: str) -> None:
    for url, kind in ((cluster_url, "ClusterLink"), (redis_url, "Link")):
        opened = await connect(url, timeout=PATIENT, waits=ASKS)
        assert type(opened).__name__ == kind
        assert await opened.call("SET", "{0}k", "v") == b"OK"
        assert [key async for key in opened.scan("{0}*")] == ["{0}k"]
        await opened.close()


@pytest.mark.parametrize("kind", ["redis_url", "cluster_url"])
async def test_a_reader_of_a_busy_log_ends_when_it_is_cancelled(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """At any moment: a cancel that gets lost would leave it running for ever."""
    url = request.getfixturevalue(kind)
    link = await connect(url, timeout=PATIENT, waits=ASKS)
    for _ in range(20):
        await link.call("XADD", "s", "*", "a", "b")
    tail = Tail(url, link)

    async def read() -> None:
        while True:
            await tail.read("s", "0", count=10, block_ms=1000)

    dice = random.Random(1)
    lost = 0
    for _ in range(200):
        reading = asyncio.ensure_future(read())
        for _ in range(dice.randrange(2, 60)):
            await asyncio.sleep(0)
        reading.cancel()
        while not (await asyncio.wait((reading,), timeout=20))[0]:
            lost += 1
            reading.cancel()
    await tail.close()
    await link.close()

    assert lost == 0
