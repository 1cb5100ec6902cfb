"""Whom a link and a projector's client believe after a silence, by what other primaries say."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import redis

from lua.link import ClusterLink, Unavailable, Waits
from lua.topology import SLOTS, slot_of, witnesses
from projections.node import Nodes
from projections.node import Waits as NodeWaits

KEY = "{0}k"
ELSEWHERE = 1
"""A port: of the node that those name who deny."""


class Witness:
    """A primary that answers as it is told to.

    says  `agrees`, `denies`, `denies late` (is slow to tell of all slots), or `hangs`
    """

    def __init__(self, says: str) -> None:
        self.says = says
        self.asked: Counter[str] = Counter()
        self.primaries: list[Witness] = []
        """All of its cluster, in the order of their slots."""
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for each in self._open:
            each.close()
        await self._server.wait_closed()
        while self._open:
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                words = [await self._word(reader) for _ in range(await self._number(reader))]
                self.asked[words[0]] += 1
                if self.says == "hangs":
                    continue
                if words[0] == "CLUSTER":
                    if self.says == "denies late":
                        await asyncio.sleep(0.6)
                    writer.write(self._slots())
                elif words[0] == "EXISTS":
                    writer.write(f"-MOVED {slot_of(KEY)} 127.0.0.1:{self._owner()}\r\n".encode())
                else:
                    writer.write(b":1\r\n")
                await writer.drain()
        writer.close()
        self._open.discard(writer)

    async def _number(self, reader: asyncio.StreamReader) -> int:
        return int((await reader.readuntil(b"\r\n"))[1:])

    async def _word(self, reader: asyncio.StreamReader) -> str:
        return (await reader.readexactly(await self._number(reader) + 2))[:-2].decode()

    def _owner(self) -> int:
        return ELSEWHERE if self.says.startswith("denies") else self._named().port

    def _named(self) -> Witness:
        """Whose key it was from the beginning."""
        return self.primaries[slot_of(KEY) * len(self.primaries) // SLOTS]

    def _slots(self) -> bytes:
        bounds = [SLOTS * n // len(self.primaries) for n in range(len(self.primaries) + 1)]
        told = f"*{len(self.primaries)}\r\n"
        for n, each in enumerate(self.primaries):
            port = self._owner() if each is self._named() else each.port
            told += f"*3\r\n:{bounds[n]}\r\n:{bounds[n + 1] - 1}\r\n"
            told += f"*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n"
        return told.encode()


@contextlib.asynccontextmanager
async def cluster(others: tuple[str, ...]) -> AsyncIterator[tuple[str, list[Witness]]]:
    """The URL of the node in question, and the other primaries."""
    primaries = [Witness(says) for says in others]
    for each in primaries:
        await each.start()
    accused = Witness("agrees")
    await accused.start()
    whole = list(primaries)
    whole.insert(slot_of(KEY) * (len(primaries) + 1) // SLOTS, accused)
    for each in whole:
        each.primaries = whole
    try:
        yield f"redis://127.0.0.1:{accused.port}/0", primaries
    finally:
        for each in whole:
            await each.stop()


PATIENT = Waits(ask=1.5, grace=0.1, laggards=1.5)
"""For a machine that holds a process up; who hangs is waited for no longer than `_SECONDS`."""
_SECONDS = 1.5

CASES = [
    ((), True),
    (("agrees", "agrees"), True),
    (("agrees", "hangs"), True),
    (("agrees", "denies"), False),
    (("denies late", "denies late"), False),
    (("hangs", "hangs"), False),
    (("agrees", "agrees", "hangs", "hangs"), True),
    (("agrees", "hangs", "hangs", "hangs"), False),
]


@pytest.mark.parametrize(("others", "believed"), CASES, ids=[" ".join(c[0]) for c in CASES])
async def test_an_answer_needs_as_many_witnesses_as_it_takes_and_no_denial(
    others: tuple[str, ...], believed: bool
) -> None:
    async with cluster(others) as (url, _):
        link = ClusterLink(url, timeout=_SECONDS, waits=PATIENT)

        def connected() -> object:
            known = Nodes(url, NodeWaits(ask=_SECONDS, grace=0.5))
            with known.connect(KEY, block_s=20) as client:
                try:
                    return client.incr(KEY)
                except redis.RedisError as error:
                    return error

        linked, followed = await asyncio.gather(
            link.call("INCR", KEY), asyncio.to_thread(connected), return_exceptions=True
        )
        await link.close()

    if believed:
        assert (linked, followed) == (1, 1)
    else:
        assert isinstance(linked, Unavailable)
        assert linked.sent
        assert isinstance(followed, redis.ConnectionError)


async def test_those_who_wait_ask_once_and_one_that_leaves_takes_the_answer_from_nobody() -> None:
    async with cluster(("agrees", "agrees")) as (url, others):
        # A silence that the machine makes would be one more to ask about.
        link = ClusterLink(url, timeout=20, waits=PATIENT._replace(laggards=20, silence=3600))
        calls = [asyncio.ensure_future(link.call("INCR", KEY)) for _ in range(100)]
        while not others[0].asked["EXISTS"]:
            await asyncio.sleep(0)
        calls.pop(0).cancel()
        assert await asyncio.gather(*calls) == [1] * 99
        await link.close()

    assert [each.asked["EXISTS"] for each in others] == [1, 1]


def test_any_majority_has_one_of_the_witnesses() -> None:
    for primaries in range(2, 30):
        others, votes = primaries - 1, primaries // 2 + 1
        assert witnesses(others) == max(1, others - votes + 1)
    assert witnesses(0) == 0
