"""Addresses in timeout: who may neither generate nor pop for a while (text_path_reference.md 2.7).

An address is not history: none enters the log or Postgres. All of them stand in one hash in Redis,
of which each process keeps a copy of at most a second ago.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from handlers.addresses import Network, Ranges, network_of, spelled
from handlers.copies import Copy
from handlers.errors import BadRequest, TimeoutIP
from handlers.log import Log

MOST = 10_000
"""Addresses and networks in timeout at once."""
LONGEST_MINUTES = 366 * 24 * 60
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
        self._copy = Copy(log, self._read)
        self._raw: list[bytes] = []
        self._ends: dict[Network, int] = {}
        self._ranges = Ranges({})

    async def check(self, address: str) -> None:
        """Raise TimeoutIP where an address, or a network that holds it, is in timeout.

        Of several timeouts the longest counts. Raise RedisUnavailable where the copy is old and
        cannot be read again.
        """
        await self._copy.refresh()
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
        self._copy.outdated()
        return bool(cleared)

    async def list(self) -> list[Timeout]:
        """Every timeout, the one that ends first in front."""
        await self._run("", 0)
        await self._copy.refresh()
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
        self._copy.outdated()
        return until

    def _left(self, end_ms: int) -> int:
        return -int((self._copy.now_ms() - end_ms) // 1000)

    async def _read(self) -> None:
        raw = await self._log.read("HGETALL", self._log.keys.ip_timeouts())
        if raw != self._raw:  # they change rarely, and taking them apart takes long
            self._raw = raw
            pairs = zip(raw[::2], raw[1::2], strict=True)
            self._ends = {_stored(name): int(end) for name, end in pairs}
            self._ranges = Ranges(self._ends)


def _network(text: str) -> Network:
    try:
        return network_of(text)
    except ValueError as error:
        raise BadRequest(f"{error}.", errors={"ipaddr": str(error)}) from None


@lru_cache(MOST)
def _stored(name: bytes) -> Network:
    return network_of(name.decode())
