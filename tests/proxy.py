"""A TCP proxy on loopback that can stall, and swallow answers after they were made."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit


class Proxy:
    """Forwards to one server until told otherwise."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target: str | tuple[str, int] = (parts.hostname or "127.0.0.1", parts.port or 6379)
        query = parse_qs(parts.query)
        if "host" in query:  # Postgres on a unix socket
            self._target = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
            parts = parts._replace(query="")
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._drops = 0
        self._one_in = 0
        self._random = random.Random(0)
        self.dropped = 0
        """Answers swallowed so far."""
        self._parts = parts
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def before(cls, url: str) -> AsyncIterator[Proxy]:
        """Listen in front of the server behind `url`; `.url` is the way through."""
        proxy = cls(url)
        server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        netloc = f"{proxy._parts.netloc.rpartition('@')[0]}@" if "@" in proxy._parts.netloc else ""
        proxy.url = proxy._parts._replace(netloc=f"{netloc}127.0.0.1:{port}").geturl()
        try:
            yield proxy
        finally:
            server.close()
            for task in proxy._tasks:
                task.cancel()
            await asyncio.gather(*proxy._tasks, return_exceptions=True)

    def stall(self) -> None:
        """Forward nothing in either direction, and accept connections in silence."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward again, what was held back first."""
        self._flowing.set()

    def drop_answers(self, count: int) -> None:
        """Swallow the next answers and cut their connections: the commands were executed."""
        self._drops = count

    def drop_at_random(self, one_in: int, seed: int) -> None:
        """Swallow one answer in so many from now on; 0 ends it."""
        self._one_in, self._random = one_in, random.Random(seed)

    def _swallows(self) -> bool:
        if self._drops > 0:
            self._drops -= 1
        elif not self._one_in or self._random.randrange(self._one_in):
            return False
        self.dropped += 1
        return True

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        upstream: asyncio.StreamWriter | None = None
        try:
            await self._flowing.wait()
            answers, upstream = await self._connect()
            pumps = [
                asyncio.ensure_future(self._pump(reader, upstream, answers=False)),
                asyncio.ensure_future(self._pump(answers, writer, answers=True)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the end of a test cuts what is under way
        finally:
            for each in (writer, upstream):
                if each is not None:
                    each.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await self._flowing.wait()
                if answers and self._swallows():
                    return
                sink.write(data)
                await sink.drain()
