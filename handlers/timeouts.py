"""Addresses in timeout: who may neither generate nor pop for a while (text_path_reference.md 2.7).

An address is not history: none enters the log or Postgres. All of them stand in one hash in Redis,
of which each process keeps a copy of at most a second ago.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import NamedTuple

from handlers.addresses import Network, Ranges, network_of, spelled
from handlers.errors import BadRequest, TimeoutIP
from handlers.log import Log

MOST = 10_000
"""Addresses and networks in timeout at once."""
LONGEST_MINUTES = 366 * 24 * 60
KEPT_SECONDS = 1.0
TOLD_SECONDS = 4 * 86_400
"""Who is in timeout for longer is not told for how long."""


class Timeout(NamedTuple):
    """One entry."""

    network: Network
    left: int  # seconds, rounded up


class Timeouts:
    """Sets, lists and clears timeouts, and checks who calls."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._read_at = float("-inf")
        self._ahead_ms = 0.0  # of the event loop's clock
        self._raw: list[bytes] = []
        self._ends: dict[Network, int] = {}
        self._ranges = Ranges({})
        self._reading: asyncio.Task[None] | None = None

    async def check(self, address: str) -> None:
        """Raise TimeoutIP where an address, or a network that holds it, is in timeout.

        Of several timeouts the longest counts. Raise RedisUnavailable where the copy is old and
        cannot be read again.
        """
        await self._refresh()
        ends = self._ranges.numbers(address)
        left = self._left(max(ends)) if ends else 0
        if left > 0:
            told = f" for {left} more seconds" if left <= TOLD_SECONDS else ""
            raise TimeoutIP(f"This address is in timeout{told}.")

    async def set(self, text: str, minutes: float) -> Timeout:
        """Put an address or a network into timeout from now on; a new one takes an old one's place.

        Raise BadRequest for what is neither, for a length beyond LONGEST_MINUTES, and where MOST
        are in timeout already.
        """
        network = _network(text)
        if not 0 < minutes <= LONGEST_MINUTES:
            raise BadRequest(f"A timeout lasts at most {LONGEST_MINUTES} minutes.")
        if not await self._run(spelled(network), round(minutes * 60_000)):
            raise BadRequest(f"There are {MOST} timeouts already. Clear some first.")
        return Timeout(network, round(minutes * 60))

    async def clear(self, text: str) -> bool:
        """End the timeout of exactly this address or network; whether there was one.

        Raise BadRequest for what is neither.
        """
        name = spelled(_network(text))
        cleared = await self._log.read("HDEL", self._log.keys.ip_timeouts(), name)
        self._read_at = float("-inf")
        return bool(cleared)

    async def list(self) -> list[Timeout]:
        """Every timeout, the one that ends first in front."""
        await self._run("", 0)
        await self._refresh()
        entries = [Timeout(network, self._left(end)) for network, end in self._ends.items()]
        return sorted((each for each in entries if each.left > 0), key=lambda each: each.left)

    async def _run(self, name: str, ms: int) -> bytes:
        keys = self._log.keys
        (until,) = await self._log.run(
            "time_out",
            0,
            {"timeouts": keys.ip_timeouts()},
            {"network": name, "ms": ms, "most": MOST},
        )
        self._read_at = float("-inf")
        return until

    def _left(self, end_ms: int) -> int:
        now_ms = asyncio.get_running_loop().time() * 1000 + self._ahead_ms
        return -int((now_ms - end_ms) // 1000)

    async def _refresh(self) -> None:
        """Read the copy anew where it is old; callers at once share one read.

        Under the test setting it is read each time: tests set timeouts and move the clock.
        """
        loop = asyncio.get_running_loop()
        if loop.time() - self._read_at < KEPT_SECONDS and not self._log.test:
            return
        if self._reading is None:
            self._reading = loop.create_task(self._read())
            self._reading.add_done_callback(self._done)
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        raw, now_ms = await asyncio.gather(
            self._log.read("HGETALL", self._log.keys.ip_timeouts()), self._log.now_ms(0)
        )
        self._ahead_ms = now_ms - loop.time() * 1000
        if raw != self._raw:  # they change rarely, and taking them apart takes long
            self._raw = raw
            pairs = zip(raw[::2], raw[1::2], strict=True)
            self._ends = {_stored(name): int(end) for name, end in pairs}
            self._ranges = Ranges(self._ends)
        self._read_at = started

    def _done(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # whoever waits for it gets it


def _network(text: str) -> Network:
    try:
        return network_of(text)
    except ValueError as error:
        raise BadRequest(f"{error}.", errors={"ipaddr": str(error)}) from None


@lru_cache(MOST)
def _stored(name: bytes) -> Network:
    return network_of(name.decode())
