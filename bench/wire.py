"""A light HTTP/1.1 client for load: keep-alive, one request at a time on each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, cast


class Answer(NamedTuple):
    """A whole response."""

    status: int
    body: bytes


class Closed(Exception):
    """The server closed the connection instead of answering."""


class Connection(asyncio.Protocol):
    """One connection. Understands bodies with a Content-Length, which is all that we serve."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._missing = 0  # bytes of the body; 0 while the head is not whole
        self._status = 0
        self._answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail who waits."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Closed(str(exc)))

    def data_received(self, data: bytes) -> None:
        """Complete the answer once it is whole. Large ones are put together once."""
        if self._missing:
            self._parts.append(data)
            self._missing -= len(data)
        else:
            head, found, body = b"".join([*self._parts, data]).partition(b"\r\n\r\n")
            at = head.lower().find(b"content-length:") if found else -1
            if at < 0:
                self._parts.append(data)
                return
            self._status = int(head[9:12])
            self._parts = [body]
            self._missing = int(head[at + 15 :].split(b"\r\n", 1)[0]) - len(body)
        if self._missing <= 0:
            whole, self._parts, self._missing = b"".join(self._parts), [], 0
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(Answer(self._status, whole))

    async def send(self, request: bytes) -> Answer:
        """Send one request and wait for its answer; raise Closed."""
        if self._transport is None or self._transport.is_closing():
            raise Closed
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()


async def open_connection(host: str, port: int) -> Connection:
    """Connect."""
    _, protocol = await asyncio.get_running_loop().create_connection(Connection, host, port)
    return protocol


def request(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A request as it goes over the wire."""
    lines = [f"{method} {path} HTTP/1.1", "Host: bench"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body
