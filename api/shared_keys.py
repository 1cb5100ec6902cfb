"""Shared keys over HTTP (text_path_reference.md 2.2)."""

from __future__ import annotations

from email.utils import formatdate
from typing import Annotated

import falcon.asgi
import msgspec
from msgspec import UNSET, Meta, UnsetType

from api import auth
from api.body import Bodies
from api.errors import JSON
from api.ids import canonical
from events.base import KUDOS
from handlers.accounts import Accounts, people
from handlers.chat import documents
from handlers.errors import InvalidAPIKey, NoSharedKeyModSelected
from handlers.log import Log
from handlers.shared_keys import (
    GONE,
    NEVER,
    UNLIMITED,
    Known,
    Terms,
    change_shared_key,
    check_owner,
    delete_shared_key,
    find,
    open_shared_key,
)

BODY_BYTES = 2**14
_MOST_DAYS = 36_500


class SharedKeyBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a shared key is to be like. -1 is without an end, everywhere."""

    kudos: Annotated[int, Meta(ge=-1, le=50_000_000)] | UnsetType = UNSET
    """What may be spent with it; 0: nothing. 5000, if nothing is said of it."""
    expiry: Annotated[int, Meta(ge=-1, le=_MOST_DAYS)] | UnsetType = UNSET
    """Days from now."""
    name: Annotated[str, Meta(min_length=3, max_length=255)] | UnsetType = UNSET
    max_text_tokens: Annotated[int, Meta(ge=-1, le=500)] | UnsetType = UNSET
    """That one request may ask for."""
    max_image_pixels: Annotated[int, Meta(ge=-1, le=4_194_304)] | UnsetType = UNSET
    """Kept and told: there are no image requests."""
    max_image_steps: Annotated[int, Meta(ge=-1, le=500)] | UnsetType = UNSET
    """Like the former."""


class ShownSharedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A shared key."""

    id: str
    """Is itself the key that is sent as `apikey`."""
    username: str
    """Whose kudos are spent, as `name#id`."""
    name: str | UnsetType = UNSET
    kudos: float
    """That may still be spent; -1: no end."""
    expiry: str | UnsetType = UNSET
    """By RFC 822; absent where it never expires."""
    utilized: float
    """Kudos spent with it."""
    max_image_pixels: int
    max_image_steps: int
    max_text_tokens: int


class SharedKeyGone(msgspec.Struct, frozen=True):
    """It is no more."""

    message: str = "OK"


_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(SharedKeyBody)


class _Bodied:
    def __init__(self, log: Log, accounts: Accounts, *, bodies: Bodies) -> None:
        self._log = log
        self._accounts = accounts
        self._bodies = bodies

    async def _terms(self, req: falcon.asgi.Request) -> Terms:
        async with self._bodies.read(req, BODY_BYTES) as raw:
            body = documents.decoded(_body, raw)
            documents.refuse_nul(raw, body)
        named = msgspec.structs.asdict(body)
        given = {name: value for name, value in named.items() if value is not UNSET}
        return Terms(days=given.pop("expiry", None), **given)

    async def _show(self, resp: falcon.asgi.Response, known: Known) -> None:
        owner = (await people(self._log, [known.user_id]))[known.user_id]
        ends = known.expiry_ms
        resp.content_type = JSON
        resp.data = _encode(
            ShownSharedKey(
                id=known.id,
                username=owner.username,
                name=known.name or UNSET,
                kudos=UNLIMITED if known.kudos == UNLIMITED else known.kudos / KUDOS,
                expiry=UNSET if ends == NEVER else formatdate(ends / 1000),
                utilized=known.utilized / KUDOS,
                max_image_pixels=known.max_image_pixels,
                max_image_steps=known.max_image_steps,
                max_text_tokens=known.max_text_tokens,
            )
        )


class SharedKeysRoute(_Bodied):
    """`/v2/sharedkeys`."""

    async def on_put(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Make a shared key.

        Whoever has it spends the account's kudos, within its budget.
        """
        terms = await self._terms(req)
        account = await auth.account(req, self._accounts)
        id_ = await open_shared_key(self._log, account, terms)
        await self._show(resp, await find(self._log, id_))


class SharedKeyRoute(_Bodied):
    """`/v2/sharedkeys/{shared_key}`."""

    async def on_get(
        self, _req: falcon.asgi.Request, resp: falcon.asgi.Response, shared_key: str
    ) -> None:
        """Tell of a shared key: whoever has it may know."""
        await self._show(resp, await find(self._log, _known(shared_key)))

    async def on_patch(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, shared_key: str
    ) -> None:
        """Change a shared key: what its owner names of it."""
        terms = await self._terms(req)
        account = await auth.account(req, self._accounts)
        known = await find(self._log, _known(shared_key))
        check_owner(account, known)
        if terms == Terms():
            raise NoSharedKeyModSelected
        await change_shared_key(self._log, account, known, terms)
        await self._show(resp, await find(self._log, known.id))

    async def on_delete(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, shared_key: str
    ) -> None:
        """Delete a shared key. Requests that were sent with it go on."""
        account = await auth.account(req, self._accounts)
        known = await find(self._log, _known(shared_key))
        await delete_shared_key(self._log, account, known)
        resp.content_type = JSON
        resp.data = _encode(SharedKeyGone())


def _known(shared_key: str) -> str:
    """The id as ours are spelled; raise InvalidAPIKey for what is none."""
    found = canonical(shared_key)
    if found is None:
        raise InvalidAPIKey(GONE)
    return found
