"""Giving kudos away (text_path_reference.md 8.3)."""

from __future__ import annotations

from typing import Annotated

import falcon.asgi
import msgspec
from msgspec import Meta

from api import auth
from api.body import Bodies
from api.errors import JSON
from api.ids import canonical
from events.base import KUDOS
from handlers.accounts import Accounts
from handlers.admission import Settled
from handlers.amounts import amount_of
from handlers.chat import documents
from handlers.errors import InvalidTargetUsername, UserNotFound
from handlers.limits import Limits
from handlers.log import Log
from handlers.transfers import Target, idempotency_of, transfer
from handlers.users import number_of

BODY_BYTES = 2**14


class TransferBody(msgspec.Struct, frozen=True, kw_only=True):
    """Who gets how much."""

    username: Annotated[
        str,
        Meta(description="The account as `name#number`, or the id of a shared key"),
    ]
    amount: Annotated[
        int | float,
        Meta(description="Kudos: more than 0, with at most four digits behind the point"),
    ]


class Transferred(msgspec.Struct, frozen=True):
    """They are given."""

    transferred: float
    """How many kudos."""


_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(TransferBody)


class TransferRoute:
    """`POST /v2/kudos/transfer`."""

    def __init__(
        self,
        log: Log,
        limits: Limits,
        accounts: Accounts,
        settled: Settled,
        *,
        secret: str,
        bodies: Bodies,
    ) -> None:
        self._log = log
        self._limits = limits
        self._accounts = accounts
        self._settled = settled
        self._secret = secret
        self._bodies = bodies

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Give kudos to another account, or to a shared key: its owner gets them, and its budget
        grows by as much.

        What is held for requests under way, and the least that an account has, cannot be given.
        They leave at once, and arrive a moment later. With an `Idempotency-Key` the same call may
        be sent again when its answer was lost: the kudos move once. The keys of an account's last
        200 transfers are remembered.
        """
        async with self._bodies.read(req, BODY_BYTES) as raw:
            body = documents.decoded(_body, raw)
        account = await auth.account(req, self._accounts)
        amount = amount_of(body.amount)
        await transfer(
            self._log,
            self._limits,
            account,
            _target(body.username),
            amount,
            idempotency=idempotency_of(self._secret, req.get_header("idempotency-key")),
            settled=self._settled,
        )
        resp.content_type = JSON
        resp.data = _encode(Transferred(amount / KUDOS))


def _target(username: str) -> Target:
    shared_key = canonical(username)
    if shared_key is not None:
        return Target(None, shared_key)
    if "#" not in username:  # a name without its number may look like another one's number
        raise InvalidTargetUsername
    try:
        return Target(number_of(username))
    except UserNotFound:
        raise InvalidTargetUsername from None
