"""The moderators' route for addresses in timeout (text_path_reference.md 2.7)."""

from __future__ import annotations

from typing import Annotated, TypeVar

import falcon.asgi
import msgspec
from msgspec import Meta

from api import auth
from api.body import Bodies
from api.errors import JSON
from handlers.accounts import Accounts
from handlers.addresses import spelled
from handlers.chat import documents
from handlers.timeouts import LONGEST_MINUTES, Timeouts

BODY_BYTES = 2**14
LONGEST_HOURS = LONGEST_MINUTES // 60

Kind = TypeVar("Kind")
Ipaddr = Annotated[str, Meta(description="An IPv4 or IPv6 address, or a network as CIDR")]


class TimeoutBody(msgspec.Struct, frozen=True, kw_only=True):
    """Who is shut out, and for how long."""

    ipaddr: Ipaddr
    hours: Annotated[int, Meta(ge=1, le=LONGEST_HOURS)]


class ClearTimeoutBody(msgspec.Struct, frozen=True, kw_only=True):
    """Whose timeout ends."""

    ipaddr: Ipaddr


class ShownTimeout(msgspec.Struct, frozen=True, kw_only=True):
    """One address or network in timeout."""

    ipaddr: str
    seconds: int
    """How many more."""


class Done(msgspec.Struct, frozen=True):
    """It is done; the timeout may have been so before."""

    message: str = "OK"


_encode = msgspec.json.Encoder().encode
_set = msgspec.json.Decoder(TimeoutBody)
_clear = msgspec.json.Decoder(ClearTimeoutBody)


class TimeoutsRoute:
    """`/v2/operations/ipaddr`: for moderators."""

    def __init__(self, accounts: Accounts, timeouts: Timeouts, *, bodies: Bodies) -> None:
        self._accounts = accounts
        self._timeouts = timeouts
        self._bodies = bodies

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """List them, the one that ends first in front."""
        await auth.moderator(req, self._accounts)
        listed = await self._timeouts.list()
        shown = [ShownTimeout(ipaddr=spelled(each.network), seconds=each.left) for each in listed]
        resp.content_type = JSON
        resp.data = _encode(shown)

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Set one, in the place of an older one for the same address or network."""
        body = await self._body(req, _set)
        await auth.moderator(req, self._accounts)
        await self._timeouts.set(body.ipaddr, body.hours * 60)
        _done(resp)

    async def on_delete(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """End one, if there is one."""
        body = await self._body(req, _clear)
        await auth.moderator(req, self._accounts)
        await self._timeouts.clear(body.ipaddr)
        _done(resp)

    async def _body(self, req: falcon.asgi.Request, decoder: msgspec.json.Decoder[Kind]) -> Kind:
        async with self._bodies.read(req, BODY_BYTES) as raw:
            return documents.decoded(decoder, raw)


def _done(resp: falcon.asgi.Response) -> None:
    resp.content_type = JSON
    resp.data = _encode(Done())
