"""Long polls: what `Prefer: wait=N` asks for, and waiting that ends when the process drains."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import falcon.asgi

_WAIT = re.compile(r"(?:^|,)\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?=$|[,;])", re.IGNORECASE)


def preferred(req: falcon.asgi.Request, most: int) -> int:
    """Seconds that the client is willing to wait, at most `most`; 0 without a valid preference.

    RFC 7240: a preference that is not understood is ignored.
    """
    header = req.get_header("prefer")
    found = _WAIT.search(header) if header else None
    return min(int(found[1]), most) if found else 0


def applied(resp: falcon.asgi.Response, seconds: int) -> None:
    """Tell the client that its preference was honoured."""
    resp.set_header("preference-applied", f"wait={seconds}")


class Drain:
    """Set once, when the process is to end: nobody waits any longer, everybody answers."""

    def __init__(self) -> None:
        self.on = False
        self._waiting: set[asyncio.Future[Any]] = set()

    def start(self) -> None:
        """End every wait, now and from now on."""
        self.on = True
        for waiting in tuple(self._waiting):
            wake(waiting)

    @contextlib.contextmanager
    def ends(self, waiting: asyncio.Future[Any]) -> Iterator[None]:
        """Within this, `waiting` ends with None when the drain starts."""
        if self.on:
            wake(waiting)
        self._waiting.add(waiting)
        try:
            yield
        finally:
            self._waiting.discard(waiting)


class Watches:
    """Who waits for news of which request."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def changed(self, request_ids: Iterable[str]) -> None:
        """Wake whoever waits for one of these."""
        for request_id in request_ids:
            for waiting in self._waiting.get(request_id, ()):
                wake(waiting)

    @contextlib.contextmanager
    def watch(self, request_id: str) -> Iterator[Watch]:
        """Hear of all news from here on: watch first, then read, then wait."""
        watch = Watch(self, request_id, self._drain)
        try:
            yield watch
        finally:
            watch.close()

    def add(self, request_id: str, waiting: asyncio.Future[None]) -> None:
        """Let `waiting` be woken by a change of the request."""
        self._waiting.setdefault(request_id, set()).add(waiting)

    def discard(self, request_id: str, waiting: asyncio.Future[None]) -> None:
        """Forget it."""
        others = self._waiting.get(request_id)
        if others is not None:
            others.discard(waiting)
            if not others:
                del self._waiting[request_id]


class Watch:
    """One reader's wait for news of one request."""

    def __init__(self, watches: Watches, request_id: str, drain: Drain) -> None:
        self._watches = watches
        self._id = request_id
        self._drain = drain
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watches.add(request_id, self._news)

    async def next(self, seconds: float) -> bool:
        """Wait for a change since the last call (or the start); False when the time is over."""
        with self._drain.ends(self._news):
            woken = await until(self._news, seconds)
        if woken:
            self._watches.discard(self._id, self._news)
            self._news = asyncio.get_running_loop().create_future()
            self._watches.add(self._id, self._news)
        return woken

    def close(self) -> None:
        """Hear no more."""
        self._watches.discard(self._id, self._news)
        self._news.cancel()


def wake(waiting: asyncio.Future[Any]) -> None:
    """End a wait that may have ended by itself."""
    if not waiting.done():
        waiting.set_result(None)


async def until(waiting: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a future without cancelling it; False when the time is over."""
    done, _ = await asyncio.wait((waiting,), timeout=max(0.0, seconds))
    return bool(done)
