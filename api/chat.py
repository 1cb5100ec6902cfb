"""The routes of a chat request: submit, status, cancel."""

from __future__ import annotations

from typing import Literal

import falcon.asgi
import msgspec
from msgspec import UNSET, Raw, UnsetType

from api import auth
from api.allowance import Allowances
from api.availability import Availability
from api.body import Bodies
from api.errors import JSON
from api.gate import Gate, client_agent
from api.models import Models
from api.queued import queued
from api.status_route import StatusRoute
from events.base import KUDOS
from handlers.accounts import Accounts
from handlers.admission import Operation
from handlers.chat import context, fingerprint, payload, pricing, request, submission
from handlers.chat.body import ChatRequest, Message
from handlers.chat.flatten import flatten
from handlers.chat.pricing import Tariff
from handlers.errors import (
    ChatAdmissionDisabled,
    ChatImageStorageUnavailable,
    ChatKudosCapExceeded,
)
from handlers.limits import Limits
from handlers.moderation import Moderation
from handlers.shared_keys import check_tokens
from handlers.submit import Receipt

_encode = msgspec.json.Encoder().encode


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What a dry run found that the request would run under."""

    models: list[str]
    prompt: str
    params: Raw
    estimated_prompt_tokens: int
    context_fit: Literal["grow", "reject"]
    style: None = None


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 200: nothing new was queued."""

    kudos: float
    id: str | UnsetType = UNSET
    """Of the request that the operation key names."""
    resolved: Resolved | UnsetType = UNSET
    """For a dry run."""


class ChatAsync:
    """`POST /v2/generate/chat/async` (spec, Routes: the order of a submission)."""

    def __init__(
        self,
        limits: Limits,
        accounts: Accounts,
        gate: Gate,
        models: Models,
        moderation: Moderation,
        tariff: Tariff,
        availability: Availability,
        allowances: Allowances,
        *,
        secret: str,
        admission: bool,
        max_messages: int,
        max_text_bytes: int,
        max_body: int,
        bodies: Bodies,
    ) -> None:
        self._limits = limits
        self._accounts = accounts
        self._gate = gate
        self._models = models
        self._moderation = moderation
        self._tariff = tariff
        self._availability = availability
        self._allowances = allowances
        self._secret = secret
        self._admission = admission
        self._max_messages = max_messages
        self._max_text_bytes = max_text_bytes
        self._max_body = max_body
        self._bodies = bodies

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Queue a request, or tell what it would cost."""
        resp.content_type = JSON
        async with self._bodies.read(req, self._max_body) as raw:
            asked = request.read(
                raw, max_messages=self._max_messages, max_text_bytes=self._max_text_bytes
            )
        auth.key(req)
        dry_run = asked.horde.dry_run
        operation = None if dry_run else self._operation(asked)
        if operation is not None:
            known = await auth.payer(req, self._accounts)
            earlier = await self._allowances.repeated(known, operation)
            if earlier is not None:
                resp.data = _repeated(earlier)
                return
        if not self._admission:
            raise ChatAdmissionDisabled
        account = await self._allowances.payer(await self._gate.enter(req), operation)
        await self._gate.check(req, account, 1, asked.models, operation)
        screened = await self._moderation.messages(
            asked.messages, asked.models, flagged=account.flagged
        )
        bound = await self._models.check(asked.models, asked.models_key)
        fitted = context.fit(msgspec.structs.replace(asked, messages=screened), bound)
        request.check_params(asked, fitted.max_context_length)
        check_tokens(account, fitted.max_length)
        kudos = self._estimate(asked, fitted)
        new = submission.new_request(
            asked, fitted, kudos=kudos, client_agent=client_agent(req), operation=operation
        )
        if dry_run:
            await self._allowances.measured(account, new)
            resp.data = _encode(_quoted(asked, screened, fitted, kudos))
            return
        if fitted.images:
            raise ChatImageStorageUnavailable
        self._gate.room()
        receipt, _ = await self._allowances.submit(account, new)
        if receipt.repeated:
            resp.data = _repeated(receipt)
            return
        ttl = self._limits.request_ttl
        resp.status = falcon.HTTP_202
        resp.data = _encode(
            await queued(self._availability, ttl, account, new, receipt.request_id, kudos)
        )

    def _operation(self, asked: ChatRequest) -> Operation | None:
        key = asked.horde.operation_key
        if key is None:
            return None
        return Operation.of(self._secret, key, fingerprint.of(asked))

    def _estimate(self, asked: ChatRequest, fitted: context.Fitted) -> int:
        """The estimate in kudos; raise ChatKudosCapExceeded where it passes the request's cap."""
        kudos = pricing.quote(
            fitted.max_length,
            fitted.max_context_length,
            size=self._tariff.quoted_size(asked.models),
            images=fitted.images,
        )
        cap = asked.horde.max_kudos
        if cap is not None and kudos > cap:
            raise ChatKudosCapExceeded(
                f"The request is estimated to cost {kudos} kudos at current pricing; max_kudos "
                f"allows {cap}."
            )
        return kudos


def _repeated(receipt: Receipt) -> bytes:
    return _encode(Priced(id=receipt.request_id, kudos=receipt.kudos / KUDOS))


def _quoted(
    asked: ChatRequest, screened: list[Message], fitted: context.Fitted, kudos: int
) -> Priced:
    """The quote; its prompt is of the kept messages as they were submitted.

    What moderation made of them is told to workers only: it would tell what filters look for.
    """
    kept = set(map(id, fitted.messages))
    submitted = zip(asked.messages, screened, strict=True)
    return Priced(
        kudos=float(kudos),
        resolved=Resolved(
            models=list(asked.models),
            prompt=flatten(
                (own for own, each in submitted if id(each) in kept), asked.extras.tools
            ),
            params=Raw(
                payload.of(
                    asked,
                    max_length=fitted.max_length,
                    max_context_length=fitted.max_context_length,
                )
            ),
            estimated_prompt_tokens=fitted.estimate,
            context_fit=fitted.context_fit,
        ),
    )


class ChatStatus(StatusRoute):
    """`GET` and `DELETE /v2/generate/chat/status/{id}`."""

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, request_id: str
    ) -> None:
        """The status; with `Prefer: wait=N` once it is done, or N seconds have passed."""
        await self.show(req, resp, request_id)

    async def on_delete(
        self, _req: falcon.asgi.Request, resp: falcon.asgi.Response, request_id: str
    ) -> None:
        """Cancel; the answer is the status as it was before.

        The cancel is carried out even where that status cannot be read.
        """
        await self.cancel(resp, request_id)
