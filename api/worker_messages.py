"""Messages for workers (text_path_reference.md 8.1).

Decisions where the specification is open:

* An owner leaves messages for its own workers, under its own name; a moderator for any worker or
  for all, under a name of choice.
* A message can be read by its worker's owner and by moderators, one for all by every account.
"""

from __future__ import annotations

from email.utils import formatdate
from typing import Annotated

import falcon.asgi
import msgspec
from msgspec import UNSET, Meta, UnsetType

from api import auth, query
from api.body import Bodies
from api.errors import JSON
from api.ids import canonical
from handlers.accounts import Accounts
from handlers.chat import documents
from handlers.errors import MessageNotFound, WorkerNotFound
from handlers.log import Log
from handlers.worker_messages import Left, Messages
from handlers.workers import find

BODY_BYTES = 2**17
MODERATORS = "Moderators"
"""Whose message it is, where a moderator names nobody."""


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a worker, or for all."""

    id: str
    message: str
    origin: str
    expiry: str
    """As in RFC 822."""
    worker_id: str | UnsetType = UNSET
    """For whom, where it is not for all."""


class MessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be left. Unknown keys are ignored, as on text routes."""

    message: Annotated[str, Meta(min_length=1, max_length=10_240)]
    worker_id: Annotated[str, Meta(max_length=36)] | None = None
    """Null: for all workers. That is for moderators."""
    expiry: Annotated[int, Meta(ge=1, le=720)] = 12
    """Hours."""
    origin: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Whose message it is; for moderators."""


class MessageGone(msgspec.Struct, frozen=True):
    """The message is deleted."""

    message: str = "OK"


_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(MessageBody)


def shown(left: Left) -> ShownMessage:
    """A message as it is told."""
    return ShownMessage(
        id=left.id,
        message=left.message.message,
        origin=left.message.origin,
        expiry=formatdate(left.until_ms / 1000),
        worker_id=left.message.worker_id or UNSET,
    )


class MessagesRoute:
    """`/v2/workers/messages`."""

    def __init__(self, log: Log, accounts: Accounts, messages: Messages, *, bodies: Bodies) -> None:
        self._log = log
        self._accounts = accounts
        self._messages = messages
        self._bodies = bodies

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """List the messages that the caller may read, the one that ends first in front."""
        worker_id = query.text(req, "worker_id")
        account = await auth.account(req, self._accounts)
        found = await self._messages.readable(account)
        if worker_id is not None:
            wanted = canonical(worker_id)
            found = [left for left in found if left.message.worker_id == wanted is not None]
        resp.content_type = JSON
        resp.data = _encode([shown(left) for left in found])

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Leave a message for a worker, or for all: it comes with their pops while it lasts."""
        async with self._bodies.read(req, BODY_BYTES) as raw:
            body = documents.decoded(_body, raw)
            documents.refuse_nul(raw, body)
        account = await auth.account(req, self._accounts)
        worker = None
        if body.worker_id is not None:
            worker_id = canonical(body.worker_id)
            if worker_id is None:
                raise WorkerNotFound
            worker = await find(self._log, worker_id)
        origin = (body.origin or MODERATORS) if account.moderator else account.username
        left = await self._messages.leave(account, worker, body.message, origin, body.expiry)
        resp.content_type = JSON
        resp.data = _encode(shown(left))


class MessageRoute:
    """`/v2/workers/messages/{message_id}`."""

    def __init__(self, accounts: Accounts, messages: Messages) -> None:
        self._accounts = accounts
        self._messages = messages

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, message_id: str
    ) -> None:
        """Tell a message that the caller may read."""
        account = await auth.account(req, self._accounts)
        left = await self._messages.find(account, _known(message_id))
        resp.content_type = JSON
        resp.data = _encode(shown(left))

    async def on_delete(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, message_id: str
    ) -> None:
        """Delete a message: as its worker's owner, or as a moderator."""
        account = await auth.account(req, self._accounts)
        await self._messages.take_away(account, _known(message_id))
        resp.content_type = JSON
        resp.data = _encode(MessageGone())


def _known(message_id: str) -> str:
    """The id as ours are spelled; raise MessageNotFound for what is none."""
    found = canonical(message_id)
    if found is None:
        raise MessageNotFound
    return found
