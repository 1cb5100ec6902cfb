"""One keep-alive connection to the service, with a deadline for every call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: dict[str, Any]
    seconds: float

    @property
    def rc(self) -> str | None:
        """The return code of a refusal."""
        return self.body.get("rc")


class NoAnswer(Exception):
    """The connection ended, could not be opened, or stayed silent: whether it took effect is
    unknown.
    """


_open: set[Http] = set()


async def hang_up() -> None:
    """Close whatever a test left open."""
    for http in tuple(_open):
        http.close()
    await asyncio.sleep(0)  # in which the transports let go of their sockets


class Http:
    """Sends one request at a time; connects again by itself."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._key = key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.slowest = 0.0
        """Seconds that an answer took beyond those that it was to wait."""

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        wait: int = 0,
        seconds: float = 10.0,
        headers: Mapping[str, str] = {},
    ) -> Answer:
        """Send, and read the whole answer; `wait` goes into Prefer and is added to the deadline.

        A body of bytes is sent as it is. Raise NoAnswer.
        """
        if isinstance(body, bytes):
            content = body
        else:
            content = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", "host: test", f"content-length: {len(content)}"]
        if self._key:
            head.append(f"apikey: {self._key}")
        if wait:
            head.append(f"prefer: wait={wait}")
        head += [f"{name}: {value}" for name, value in headers.items()]
        loop = asyncio.get_running_loop()
        started = loop.time()
        whole = False
        try:
            async with asyncio.timeout(seconds + wait):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(*self._address)
                    _open.add(self)
                reader, writer = self._streams
                writer.write("\r\n".join([*head, "", ""]).encode() + content)
                await writer.drain()
                status, headers, raw = await _read(reader)
            whole = headers.get("connection") != "close"
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            raise NoAnswer(f"{method} {path}: {error!r}") from error
        finally:
            if not whole:
                self.close()
        took = loop.time() - started
        self.slowest = max(self.slowest, took - wait)
        return Answer(status, headers, json.loads(raw) if raw else {}, took)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.sleep(0)  # in which the transport lets go of its socket

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
            _open.discard(self)


async def _read(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(first.split()[1]), headers, raw
