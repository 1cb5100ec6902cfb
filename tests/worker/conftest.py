"""A small HTTP server that answers what a test scripts: answers get lost, servers restart."""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hordechat.datadir import free_port

DROP = object()
"""In place of an answer: the connection is closed after the request was read."""
HANG = object()
"""In place of an answer: none comes."""

Answer = Any
"""(status, body), (status, body, headers), DROP, HANG, or a function of the body to one of them."""


@dataclass
class Stub:
    """Answers each route from its script; an empty script repeats the route's standing answer."""

    scripts: dict[str, deque[Answer]] = field(default_factory=lambda: defaultdict(deque))
    standing: dict[str, Answer] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    port: int = 0
    closed_by_peer: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the port of the last time, which no outgoing connection was given since."""
        self.port = self.port or free_port()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await self._server.wait_closed()

    def bodies(self, route: str) -> list[dict[str, Any]]:
        """The bodies that a route got, in order."""
        return [body for path, body, _ in self.seen if path.endswith(route)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the requests seen fulfil a condition."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(condition)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request, *lines = head.decode().strip().split("\r\n")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                path = request.split()[1]
                if not await self._answer(path, json.loads(raw or b"{}"), headers, reader, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(
        self,
        path: str,
        body: dict[str, Any],
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        route = path.rsplit("/", 1)[-1]
        script = self.scripts[route]
        answer = script.popleft() if script else self.standing.get(route, HANG)
        if callable(answer):
            answer = answer(body)
        async with self._changed:
            self.seen.append((path, body, headers))
            self._changed.notify_all()
        if answer is DROP:
            return False
        if answer is HANG:
            await reader.read(1)
            self.closed_by_peer.set()
            return False
        status, content, *more = answer
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        extra = "".join(f"{k}: {v}\r\n" for k, v in (more[0] if more else {}).items())
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(payload)}\r\n{extra}\r\n".encode()
            + payload
        )
        await writer.drain()
        return True


@pytest.fixture
async def pool() -> AsyncIterator[Stub]:
    """A pool without jobs: a pop hangs, posts and submits are accepted."""
    stub = Stub()
    stub.standing = {
        "pop": HANG,
        "progress": lambda body: (200, {"accepted_seq": body["seq"], "cancelled": False}),
        "submit": (200, {"reward": 0.0}),
    }
    await stub.start()
    yield stub
    await stub.stop()


@pytest.fixture
async def backend_server() -> AsyncIterator[Stub]:
    """An OpenAI-compatible server whose model is `m`; completions are scripted."""
    stub = Stub()
    stub.standing = {"models": (200, {"data": [{"id": "m", "max_model_len": 4096}]})}
    await stub.start()
    yield stub
    await stub.stop()


def a_job(id_: str = "g1", *, stream: bool = False, text: str = "hello", **payload: Any) -> Answer:
    """A pop's answer with a chat job in it."""
    return (
        200,
        {
            "id": id_,
            "ids": [id_],
            "model": "m",
            "ttl": 150,
            "chat": True,
            "skipped": {},
            "payload": {
                "messages": [{"role": "user", "content": text}],
                "max_length": 512,
                "max_context_length": 2048,
                "n": 1,
                **({"stream_progress": True} if stream else {}),
                **payload,
            },
        },
    )


def a_text_job(id_: str, prompt: str, **payload: Any) -> Answer:
    """A pop's answer with a text job in it."""
    limits = {"max_length": 80, "max_context_length": 2048, "n": 1}
    job = {"prompt": prompt, **limits, **payload}
    return (200, {"id": id_, "ids": [id_], "model": "m", "ttl": 150, "payload": job})
