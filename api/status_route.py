"""Showing and cancelling a request, alike in both families. The id is the capability: no key."""

from __future__ import annotations

import asyncio

import falcon.asgi
import msgspec

from api import disconnect, wait
from api.errors import JSON
from api.ids import canonical
from api.status import Reading, Status, StatusReader
from handlers.cancel import cancel
from handlers.chat.pricing import Tariff
from handlers.errors import (
    DatabaseUnavailable,
    ReadModelBehind,
    RedisUnavailable,
    RequestNotFound,
    Unserved,
)
from handlers.limits import Limits
from handlers.log import Log

_encode = msgspec.json.Encoder().encode
_LOOK_SECONDS = 1.0
"""How often a waiting status looks by itself: a hint may have been lost."""


class StatusRoute:
    """What the status route of a family does; `reader` knows the family."""

    def __init__(
        self,
        log: Log,
        limits: Limits,
        tariff: Tariff,
        reader: StatusReader,
        watches: wait.Watches,
        drain: wait.Drain,
        *,
        wait_limit: int,
    ) -> None:
        self._log = log
        self._limits = limits
        self._tariff = tariff
        self._reader = reader
        self._watches = watches
        self._drain = drain
        self._wait_limit = wait_limit

    async def show(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, request_id: str
    ) -> None:
        """Answer with the status; with `Prefer: wait=N` once it is done, or N seconds have
        passed."""
        id_ = known(request_id)
        seconds = wait.preferred(req, self._wait_limit)
        if not seconds:
            _answer(resp, (await self._reader.read(id_)).status)
            return
        disconnect.watch(req.scope)
        status = await self._until_done(id_, seconds)
        wait.applied(resp, seconds)
        _answer(resp, status)

    async def cancel(self, resp: falcon.asgi.Response, request_id: str) -> None:
        """Cancel; the answer is the status as it was before.

        The cancel is carried out even where that status cannot be read.
        """
        id_ = known(request_id)
        reading: Reading | None = None
        unread: Unserved | None = None
        try:
            reading = await self._reader.read(id_)
        except (DatabaseUnavailable, ReadModelBehind) as error:
            unread = error
        if reading is not None:
            if reading.position is None:  # asking Redis once more would take as long again
                raise RedisUnavailable
            _answer(resp, reading.status)
        await cancel(self._log, self._limits, self._tariff, id_)
        if unread is not None:
            raise unread

    async def _until_done(self, request_id: str, seconds: int) -> Status:
        """Wait on hot state, and read the status once: nobody is told of the steps between."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        with self._watches.watch(request_id) as watch:
            while True:
                try:
                    hot = await self._reader.hot(request_id)
                except RedisUnavailable:  # what can be said without it is said by the read
                    return (await self._reader.read(request_id)).status
                left = ends - loop.time()
                if hot.done or left <= 0 or self._drain.on:
                    return (await self._reader.read(request_id, hot)).status
                await watch.next(min(_LOOK_SECONDS, left))


def known(request_id: str) -> str:
    """The id as we spell it; raise RequestNotFound for what is none."""
    id_ = canonical(request_id)
    if id_ is None:
        raise RequestNotFound
    return id_


def _answer(resp: falcon.asgi.Response, status: Status) -> None:
    resp.content_type = JSON
    resp.data = _encode(status)
