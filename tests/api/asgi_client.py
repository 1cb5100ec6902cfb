"""A client that speaks ASGI, so that it can dribble a body, and leave."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Transport:
    """A connection that may be closing before anyone is told."""

    def __init__(self) -> None:
        self.closing = False
        self.aborted = False

    def is_closing(self) -> bool:
        """Whether it is."""
        return self.closing

    def abort(self) -> None:
        """Close it now, whatever is still to be sent."""
        self.aborted = self.closing = True


class Call:
    """One request under way."""

    def __init__(
        self, app: Any, method: str, path: str, headers: dict[str, str] | None = None
    ) -> None:
        self._app = app
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent: list[dict[str, Any]] = []
        self._left = False
        self.received = 0
        """How many messages the app took."""
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [
                (name.lower().encode(), value.encode()) for name, value in (headers or {}).items()
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.task: asyncio.Task[None] | None = None
        self.transport = Transport()
        """As uvicorn's exchange has one: it knows first that the client is gone."""

    def start(self, body: bytes | None = b"") -> Call:
        """Send the head, and the whole body unless it is None."""
        if body is not None:
            self.send(body)
        self.task = asyncio.create_task(self._run())
        return self

    def send(self, chunk: bytes, *, more: bool = False) -> None:
        """Send a piece of the body."""
        self._events.put_nowait({"type": "http.request", "body": chunk, "more_body": more})

    def leave(self) -> None:
        """Close the connection."""
        self._left = True
        self._events.put_nowait({"type": "http.disconnect"})

    async def ended(self) -> None:
        """The handler has ended."""
        assert self.task is not None
        await self.task

    @property
    def answered(self) -> bool:
        """Whether there is an answer."""
        return bool(self._sent)

    @property
    def status(self) -> int:
        """The answer's status."""
        return int(self._sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        """The answer's headers."""
        return {name.decode(): value.decode() for name, value in self._sent[0]["headers"]}

    @property
    def json(self) -> Any:
        """The answer's body."""
        return json.loads(b"".join(event.get("body", b"") for event in self._sent[1:]))

    async def _run(self) -> None:
        await self._app(self.scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        event = await self._events.get()
        self.received += 1
        return event

    async def _send(self, event: dict[str, Any]) -> None:
        if not self._left:
            self._sent.append(event)
