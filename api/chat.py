"""The routes of a chat request: submit, status, cancel."""

from __future__ import annotations

import asyncio

import falcon.asgi
import msgspec
import structlog
from msgspec import UNSET, UnsetType

from api import auth, disconnect, wait
from api.availability import Availability
from api.body import Bodies
from api.errors import JSON
from api.guard import MemoryGuard
from api.ids import canonical
from api.status import Reading, Status, StatusReader
from handlers.accounts import Account, Accounts
from handlers.cancel import cancel
from handlers.chat import pricing, request
from handlers.errors import (
    DatabaseUnavailable,
    ReadModelBehind,
    RedisUnavailable,
    RequestNotFound,
    Unserved,
)
from handlers.limits import Limits
from handlers.log import Log
from handlers.submit import NewRequest, submit
from projections import database
from projections.eligibility import Wanted

logger = structlog.get_logger()

_encode = msgspec.json.Encoder().encode
_LOOK_SECONDS = 1.0
"""How often a waiting status looks by itself: a hint may have been lost."""


class Warning_(msgspec.Struct, frozen=True):  # noqa: N801 - the built-in has the name
    """One entry of `warnings`."""

    code: str
    message: str


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 202."""

    id: str
    kudos: float
    message: str | UnsetType = UNSET
    warnings: list[Warning_] | UnsetType = UNSET


class ChatAsync:
    """`POST /v2/generate/chat/async`."""

    def __init__(
        self,
        log: Log,
        limits: Limits,
        accounts: Accounts,
        availability: Availability,
        guard: MemoryGuard,
        *,
        max_body: int,
        max_messages: int,
        max_text_bytes: int,
        bodies: Bodies,
    ) -> None:
        self._log = log
        self._limits = limits
        self._accounts = accounts
        self._availability = availability
        self._guard = guard
        self._max_body = max_body
        self._max_messages = max_messages
        self._max_text_bytes = max_text_bytes
        self._bodies = bodies

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Queue a request."""
        async with self._bodies.read(req, self._max_body) as raw:
            new = request.read(
                raw, max_messages=self._max_messages, max_text_bytes=self._max_text_bytes
            )
        account = await auth.account(req, self._accounts)
        self._guard.check()
        receipt = await submit(self._log, self._limits, account, new)
        warning = await self._warning(account, new)
        resp.status = falcon.HTTP_202
        resp.content_type = JSON
        resp.data = _encode(
            Queued(
                id=receipt.request_id,
                kudos=pricing.quote(new.max_length, new.demand.max_context_length, new.jobs),
                message=warning.message if warning else UNSET,
                warnings=[warning] if warning else UNSET,
            )
        )

    async def _warning(self, account: Account, new: NewRequest) -> Warning_ | None:
        """The request is accepted either way: a warning is for whoever reads the answer."""
        wanted = Wanted.of(new.demand, user_id=account.id, chat=new.chat, max_length=new.max_length)
        try:
            nobody = await self._availability.nobody(wanted)
        except (Unserved, database.DatabaseUnavailable):
            return None  # it stands in the log: nothing may turn it into an error now
        if not nobody:
            return None
        minutes = self._limits.request_ttl // 60
        return Warning_(
            "NoAvailableWorker",
            "No online worker can serve this request right now. It waits for one, and expires in "
            f"{minutes} minutes. Asking for fewer tokens may help.",
        )


class ChatStatus:
    """`GET` and `DELETE /v2/generate/chat/status/{id}`. The id is the capability: no key."""

    def __init__(
        self,
        log: Log,
        limits: Limits,
        reader: StatusReader,
        watches: wait.Watches,
        drain: wait.Drain,
        *,
        wait_limit: int,
    ) -> None:
        self._log = log
        self._limits = limits
        self._reader = reader
        self._watches = watches
        self._drain = drain
        self._wait_limit = wait_limit

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, request_id: str
    ) -> None:
        """The status; with `Prefer: wait=N` once it is done, or N seconds have passed."""
        id_ = _known(request_id)
        seconds = wait.preferred(req, self._wait_limit)
        if not seconds:
            _answer(resp, (await self._reader.read(id_)).status)
            return
        disconnect.watch(req.scope)
        status = await self._until_done(id_, seconds)
        wait.applied(resp, seconds)
        _answer(resp, status)

    async def on_delete(
        self, _req: falcon.asgi.Request, resp: falcon.asgi.Response, request_id: str
    ) -> None:
        """Cancel; the answer is the status as it was before.

        The cancel is carried out even where that status cannot be read.
        """
        id_ = _known(request_id)
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
        await cancel(self._log, self._limits, id_)
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


def _known(request_id: str) -> str:
    id_ = canonical(request_id)
    if id_ is None:
        raise RequestNotFound
    return id_


def _answer(resp: falcon.asgi.Response, status: Status) -> None:
    resp.content_type = JSON
    resp.data = _encode(status)
