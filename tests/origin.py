"""An HTTP server on loopback that answers as a test says, hostile answers included, and a network
that leads to it from addresses of the public internet."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpcore

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
"""All that is sent, or what sends it. The connection is closed after it."""

PUBLIC = "93.184.216.34"


def ok(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer that tells its length, unless a header does."""
    told = any(header.lower().startswith("content-length:") for header in headers)
    lines = [*headers, *([] if told else [f"Content-Length: {len(body)}"])]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


def redirect(location: str | None, status: int = 302) -> bytes:
    """An answer that leads elsewhere, or does not say where."""
    headers = [] if location is None else [f"Location: {location}"]
    return ok(b"", *headers, status=f"{status} Elsewhere")


class Origin:
    """A running server. `answers`: by path, with the query."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.heads: list[str] = []
        """Of each connection, what was asked; empty where nothing was."""
        self.names: list[str | None] = []
        """Server names of each TLS handshake."""
        self.port = 0
        self.open = 0
        """Connections of now."""

    @property
    def connections(self) -> int:
        """All there were."""
        return len(self.heads)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        at = len(self.heads)
        self.heads.append("")
        self.open += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads[at] = head
                answer = self.answers.get(head.split(" ")[1], ok(b"", status="404 Nothing"))
                answering = asyncio.ensure_future(_send(answer, writer))
                gone = asyncio.ensure_future(reader.read())
                try:
                    await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    answering.cancel()
                    gone.cancel()
                    await asyncio.gather(answering, gone, return_exceptions=True)
        finally:
            self.open -= 1
            writer.close()


async def _send(answer: Answer, writer: asyncio.StreamWriter) -> None:
    if isinstance(answer, bytes):
        writer.write(answer)
        await writer.drain()
    else:
        await answer(writer)


@asynccontextmanager
async def origin(
    answers: Mapping[str, Answer], context: ssl.SSLContext | None = None
) -> AsyncIterator[Origin]:
    """Serve until the end of the block."""
    served = Origin(answers)
    if context is not None:
        context.sni_callback = lambda _socket, name, _context: served.names.append(name)
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.CancelledError):
            await served.serve(reader, writer)
        tasks.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tuple(tasks), return_exceptions=True)
        await server.wait_closed()


class Internet(httpcore.AsyncNetworkBackend):
    """Leads from public addresses to servers on loopback, and keeps what was connected to.

    routes  port on loopback, by address and port; whatever is not there refuses the connection
    """

    def __init__(self, routes: Mapping[tuple[str, int], int]) -> None:
        self.routes = dict(routes)
        self.connected: list[tuple[str, int]] = []
        self.patience: list[tuple[str, float | None]] = []
        """Seconds that were given to each step."""
        self.largest_read = 0
        """Most bytes that were asked for at once."""
        self._sockets = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.connected.append((host, port))
        self.patience.append(("connect", timeout))
        if (host, port) not in self.routes:
            raise httpcore.ConnectError("nobody there")
        stream = await self._sockets.connect_tcp("127.0.0.1", self.routes[host, port], timeout)
        return _Watched(stream, self)


class _Watched(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, internet: Internet) -> None:
        self._stream = stream
        self._internet = internet

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._internet.patience.append(("read", timeout))
        self._internet.largest_read = max(self._internet.largest_read, max_bytes)
        return await self._stream.read(max_bytes, timeout)

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
        self._internet.patience.append(("handshake", timeout))
        stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return _Watched(stream, self._internet)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class Hosts:
    """A name server: for each name what it answers the first time, the second, and so on; the last
    answer is given from then on."""

    def __init__(self, names: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self.names = dict(names)
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The addresses; none of a name that is not there."""
        answers = self.names.get(host, [[]])
        times = self.asked.count(host)
        self.asked.append(host)
        return answers[min(times, len(answers) - 1)]
