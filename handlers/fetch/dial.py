"""Connections to strangers' hosts: resolved once, every address checked, the checked one used.

The client of HTTP above it never resolves: what it connects to is chosen here (spec, Images).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from typing import Any, NamedTuple

import httpcore

from handlers.errors import SourceImageUrlRefused
from handlers.fetch.reachable import reachable
from handlers.fetch.targets import address_in

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, for a port; none where there is no such host; OSError where nobody can
tell."""


class Steps(NamedTuple):
    """Seconds that each step of a hop may take."""

    resolve: float = 2.0
    connect: float = 2.0  # to all addresses together; a TLS handshake has the same once more
    read: float = 2.0  # each; each write, too


STEPS = Steps()
ADDRESSES = 4
"""Of a host, that are tried to be connected to. All are checked."""
AT_ONCE_BYTES = 16 * 1024
"""Most that is read, and so parsed, before others have their turn."""


class Dialer(httpcore.AsyncNetworkBackend):
    """Makes the one connection of a hop.

    resolve  called once, unless the host is an address
    open_to  addresses and ports that are connected to though they are denied: for tests
    network  what makes connections to addresses
    steps    of which resolving and connecting are bounded here
    allowed  bytes that may be read from the connection, until that is set anew
    """

    def __init__(
        self,
        resolve: Resolve,
        *,
        allowed: int,
        open_to: Set[tuple[str, int]],
        network: httpcore.AsyncNetworkBackend,
        steps: Steps = STEPS,
    ) -> None:
        self.allowed = allowed
        self._resolve = resolve
        self._open_to = open_to
        self._network = network
        self._steps = steps
        self._stream: httpcore.AsyncNetworkStream | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the host; raise SourceImageUrlRefused where any address of it is denied."""
        addresses = self._checked(await self._resolved(host, port), port)[:ADDRESSES]
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._steps.connect
        for left in range(len(addresses), 0, -1):
            try:
                self._stream = await self._network.connect_tcp(
                    addresses[-left], port, timeout=max(0, ends - loop.time()) / left
                )
                break
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if left == 1:
                    raise
        assert self._stream is not None  # noqa: S101 -- there was an address, or it was refused
        return _Wire(self._stream, self)

    async def close(self) -> None:
        """Close the connection, whatever became of it."""
        if self._stream is not None:
            await self._stream.aclose()

    def take(self, size: int) -> None:
        """Count what was read."""
        self.allowed -= size
        if self.allowed < 0:
            raise httpcore.RemoteProtocolError("more bytes than an answer needs")

    async def _resolved(self, host: str, port: int) -> Sequence[str]:
        if address_in(host):
            return [host]
        try:
            async with asyncio.timeout(self._steps.resolve):
                return await self._resolve(host, port)
        except OSError as error:  # overdue, too
            raise httpcore.ConnectError("the name could not be resolved") from error

    def _checked(self, addresses: Sequence[str], port: int) -> list[str]:
        """The addresses in their one spelling, each once."""
        checked = {
            address if (address, port) in self._open_to else reachable(address): None
            for address in addresses
        }
        if not checked or None in checked:
            # One sentence for both, or this were a way to learn which names of ours there are.
            raise SourceImageUrlRefused(
                "images are fetched from hosts of the public internet only."
            )
        return [address for address in checked if address is not None]


class _Wire(httpcore.AsyncNetworkStream):
    """A connection that is read in small pieces, which are counted."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, dialer: Dialer) -> None:
        self._stream = stream
        self._dialer = dialer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        piece = await self._stream.read(min(max_bytes, AT_ONCE_BYTES), timeout)
        self._dialer.take(len(piece))
        return piece

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return _Wire(stream, self._dialer)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
