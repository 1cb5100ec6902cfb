"""A link to a cluster of three nodes: a node that goes, hangs or changes places."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from events import codec
from events.base import Position
from events.keys import Keys
from events.types import Settled
from hordechat.datadir import free_port
from lua.link import ClusterLink, Tail, Unavailable, Waits, connect
from lua.topology import Slots, slot_of
from projections.log import Log
from projections.node import Nodes
from projections.node import Waits as NodeWaits
from tests.cluster import Cluster, Node

KEYS = Keys(4)
KEY = KEYS.events(3)
"""In the slots of the primary that has a replica."""
EVENT = codec.encode(Settled(source=0, source_position="0-0"))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three primaries, one with a replica, for which no write waits. A node that the machine holds
    up for a moment keeps its place."""
    folder = tmp_path_factory.mktemp("nodes") / "cluster"
    made = Cluster(folder, replicas=(1, 0, 0), timeout_ms=3000)
    try:
        made.start()
        for node in made.nodes:
            _told(node, "CONFIG", "SET", "min-replicas-to-write", 0)
        yield made
    finally:
        made.stop()


PATIENT = 20.0
WAITS = Waits(ask=PATIENT, grace=PATIENT, laggards=PATIENT)
"""For a cluster of which every node is there, however much the machine has to do."""
BRIEF = 3.0
WAITS_BRIEFLY = Waits(ask=3, grace=2.5, laggards=2.5)
"""For one of which a node hangs: the others may be held up for a moment."""
CLIENT_WAITS = NodeWaits(ask=3, grace=2.5)


def _told(node: Node, *command: str | int) -> Any:
    """As `ask`, of a node that is there: however late it answers."""
    while (told := node.ask(*command)) is None:
        time.sleep(0.05)
    return told


def _agree(nodes: Cluster, owner: Node) -> bool:
    """Whether every node says that this one serves the key."""
    told = [Slots.parse(node.url, _told(node, "CLUSTER", "SLOTS")) for node in nodes.nodes]
    return all(slots.owner(slot_of(KEY)) == owner.url for slots in told)


@pytest.fixture
async def brief(nodes: Cluster, link: ClusterLink) -> AsyncIterator[ClusterLink]:
    """A link that gives a node up that hangs."""
    opened = ClusterLink(nodes.nodes[1].url, timeout=BRIEF, waits=WAITS_BRIEFLY)
    yield opened
    await opened.close()


@pytest.fixture
async def link(nodes: Cluster) -> AsyncIterator[ClusterLink]:
    """A link that knows one node by its URL. The replica has what its primary has, and all know
    which is which."""
    (replica,) = nodes.replicas_of(nodes.primary_of(KEY))
    while b"connected" not in (replica.ask("ROLE") or []):
        await asyncio.sleep(0.05)
    primary = nodes.primary_of(KEY)
    while not await asyncio.to_thread(_agree, nodes, primary):
        await asyncio.sleep(0.05)
    opened = ClusterLink(nodes.nodes[1].url, timeout=PATIENT, waits=WAITS)
    yield opened
    await opened.close()


def _hand_over(nodes: Cluster) -> tuple[Node, Node]:
    """The replica takes its primary's place while both live; the former and the new primary."""
    before = nodes.primary_of(KEY)
    (other,) = nodes.replicas_of(before)
    while other.ask("CLUSTER", "FAILOVER", "TAKEOVER") != b"OK" or other.role() != "master":
        time.sleep(0.01)
    while before.role() != "slave" or not _agree(nodes, other):
        time.sleep(0.01)
    return before, other


async def test_commands_find_their_nodes(nodes: Cluster, link: ClusterLink) -> None:
    keys = [f"{{{n}}}k" for n in range(4)]

    assert await asyncio.gather(*(link.call("INCR", key) for key in keys)) == [1] * 4

    assert len({nodes.primary_of(key).port for key in keys}) == 3
    assert sorted([key async for key in link.scan("*")]) == keys
    assert [key async for key in link.scan("{2}*")] == ["{2}k"]
    assert len(await link.everywhere("PING")) == 3
    ports = [await link.call("CONFIG", "GET", "port", at=key) for key in keys]
    assert [int(port) for _, port in ports] == [nodes.primary_of(key).port for key in keys]
    for key in keys:
        await link.call("DEL", key)


async def test_what_moved_to_another_node_is_found_there_and_done_once(
    nodes: Cluster, link: ClusterLink
) -> None:
    await link.call("SET", "{3}n", 0)
    tail = Tail(nodes.nodes[1].url, link)
    last = (await link.call("XADD", KEY, "*", "a", "1")).decode()
    assert await tail.read(KEY, last, count=1, block_ms=1) == []
    known = Nodes(nodes.nodes[1].url, CLIENT_WAITS)
    with known.connect(KEY) as client:
        assert client.xlen(KEY) == 1

    _, new = await asyncio.to_thread(_hand_over, nodes)

    assert await link.call("INCR", "{3}n") == 1
    await link.call("XADD", KEY, "*", "a", "2")
    with known.connect(KEY) as client:
        assert client.xlen(KEY) == 2
        assert client.connection_pool.connection_kwargs["port"] == new.port
    for _ in range(20):  # one refusal of the former primary, and what it takes to ask around
        try:
            found = await tail.read(KEY, last, count=9, block_ms=100)
            break
        except Unavailable:
            await asyncio.sleep(0.05)
    assert [fields for _, fields in found] == [{b"a": b"2"}]
    await tail.close()
    await link.call("DEL", KEY, "{3}n")


async def test_a_node_that_hangs_is_left_when_another_took_its_place(
    nodes: Cluster, brief: ClusterLink
) -> None:
    """And those that serve other keys are not held up by it."""
    link = brief
    await link.call("SET", "{3}n", "x")
    hung = nodes.primary_of(KEY)
    loop = asyncio.get_running_loop()
    hung.pause()
    try:
        started = loop.time()
        hanging = asyncio.ensure_future(link.call("GET", "{3}n"))
        await asyncio.sleep(0)
        assert await link.call("GET", "{0}n") is None
        assert not hanging.done()
        with pytest.raises(Unavailable):
            await hanging
        assert len(await link.everywhere("PING")) == 2
        found = None
        while found is None:
            try:
                found = await link.call("GET", "{3}n")
            except Unavailable:
                assert loop.time() - started < 60
                await asyncio.sleep(0.05)
        assert found == b"x"
        took = loop.time() - started
    finally:
        hung.resume()
    print(f"another node answered after {took:.1f} s")
    while hung.role() != "slave":
        await asyncio.sleep(0.05)
    await link.call("DEL", "{3}n")


async def test_what_a_node_says_that_lost_its_place_is_neither_acknowledged_nor_read(
    nodes: Cluster, brief: ClusterLink
) -> None:
    """One that hung does, when it goes on, what came to it meanwhile, and only then hears that
    another has its place: all of that is lost."""
    link = brief
    assert await link.call("INCR", "{3}n") == 1
    last = (await link.call("XADD", KEY, "*", *EVENT)).decode()
    hung = nodes.primary_of(KEY)
    tail = Tail(nodes.nodes[1].url, link)
    with (
        Nodes(nodes.nodes[1].url, CLIENT_WAITS).connect(KEY, block_s=60) as client,
        redis.Redis(port=hung.port, single_connection_client=True) as late,
        ThreadPoolExecutor(1) as thread,
    ):
        late.ping()
        log = Log(client, KEYS, 3)
        assert log.head() == Position.parse(last)
        following = thread.submit(log.read, log.head(), count=9, block_ms=60_000)
        tailing = asyncio.ensure_future(tail.read(KEY, last, count=9, block_ms=60_000))
        while _told(hung, "INFO", "clients")["blocked_clients"] < 2:
            await asyncio.sleep(0.01)
        hung.pause()
        try:
            while not any(each.role() == "master" for each in nodes.replicas_of(hung)):
                await asyncio.sleep(0.05)
            raw: Any = late.connection
            raw.send_command("XADD", KEY, "*", *EVENT)
            counting = asyncio.ensure_future(link.call("INCR", "{3}n"))
            for _ in range(100):  # turns of the loop, in which it is sent
                await asyncio.sleep(0)
        finally:
            hung.resume()
        counted, tailed = await asyncio.gather(counting, tailing, return_exceptions=True)
        followed = await asyncio.to_thread(following.exception)

    assert isinstance(counted, Unavailable)
    assert counted.sent
    assert isinstance(tailed, Unavailable)
    assert isinstance(followed, redis.ConnectionError)
    while hung.role() != "slave":
        await asyncio.sleep(0.05)
    assert await link.call("GET", "{3}n") == b"1"
    found = await tail.read(KEY, "0", count=9, block_ms=1)
    assert [id_.decode() for id_, _ in found] == [last]
    await tail.close()
    await link.call("DEL", KEY, "{3}n")


async def test_a_node_that_was_silent_is_not_believed_where_no_other_can_be_asked(
    nodes: Cluster, link: ClusterLink
) -> None:
    # All others hang, so what is asked of them is waited for in vain each time.
    waits = WAITS_BRIEFLY._replace(ask=1)
    link = ClusterLink(nodes.nodes[1].url, timeout=1, waits=waits)
    primary = nodes.primary_of(KEY)
    others = [node for node in nodes.nodes if node.shard != primary.shard]
    assert len(await link.everywhere("PING")) == 3
    with Nodes(primary.url, CLIENT_WAITS._replace(ask=1)).connect(KEY, block_s=PATIENT) as client:
        for node in others:
            node.pause()
        try:
            with pytest.raises(Unavailable, match="was silent") as lost:
                await link.call("GET", "{3}n")
            with pytest.raises(redis.ConnectionError, match="was silent"):
                client.ping()
        finally:
            for node in others:
                node.resume()
        assert lost.value.sent
        while not nodes.serves():
            await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            while not await _answers(link) or not await asyncio.to_thread(_pings, client):
                await asyncio.sleep(0.05)
    await link.close()


async def _answers(link: ClusterLink) -> bool:
    try:
        return await link.call("GET", "{3}n") is None
    except Unavailable:
        return False


def _pings(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        return False


async def test_a_node_is_asked_about_another_once_and_not_while_that_one_is_busy(
    nodes: Cluster, link: ClusterLink
) -> None:
    def asked() -> int:
        stats = _told(nodes.primary_of("{0}"), "INFO", "commandstats")
        return int(stats.get("cmdstat_exists", {}).get("rejected_calls", 0))

    before = asked()
    # It is busy, though the machine may make it silent for longer than a busy one is.
    waits = WAITS._replace(silence=3600)
    link = ClusterLink(nodes.nodes[1].url, timeout=PATIENT, waits=waits)
    for _ in range(100):
        await link.call("INCR", "{3}n")
    await link.call("DEL", "{3}n")

    assert asked() == before + 1
    await link.close()


async def test_one_of_the_nodes_of_a_url_is_enough(nodes: Cluster) -> None:
    away, there = f"127.0.0.1:{free_port()}", f"127.0.0.1:{nodes.nodes[2].port}"
    for url in (f"redis://{away},{there}/0", f"redis://{there},{away}/0"):
        opened = await connect(url, timeout=PATIENT, waits=WAITS)
        assert isinstance(opened, ClusterLink)
        assert await opened.call("GET", "{3}n") is None
        await opened.close()
        with Nodes(url, CLIENT_WAITS).connect(KEY) as client:
            assert client.ping()
    with pytest.raises(Unavailable):
        await connect(f"redis://{away},{away}/0")


async def test_a_replica_tells_of_all_nodes(nodes: Cluster) -> None:
    (replica,) = nodes.replicas_of(nodes.primary_of(KEY))
    opened = ClusterLink(replica.url, timeout=PATIENT, waits=WAITS)

    assert await opened.call("EXISTS", KEY, "{3}n") == 0
    assert await opened.call("EXISTS", "{0}n") == 0

    await opened.close()
