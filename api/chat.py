"""The routes of a chat request: submit, status, cancel."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

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
from handlers.accounts import Account, Accounts
from handlers.admission import Operation
from handlers.chat import (
    context,
    fingerprint,
    images,
    payload,
    pictures,
    pricing,
    request,
    submission,
)
from handlers.chat.body import ChatRequest, Message
from handlers.chat.flatten import flatten
from handlers.chat.images import Placed
from handlers.chat.pictures import Pictures
from handlers.chat.pricing import Tariff
from handlers.errors import ChatAdmissionDisabled, ChatKudosCapExceeded
from handlers.limits import Limits
from handlers.moderation import Moderation
from handlers.shared_keys import check_tokens
from handlers.submit import NewRequest, Receipt

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


class Checked(NamedTuple):
    """A request that is to be queued, once its images are loaded.

    Of what was submitted, only `sources` refer to data URLs: each may be let go of on its own.
    """

    account: Account
    new: NewRequest
    messages: Sequence[Message]
    """As workers get them; of image parts all but the URLs."""
    sources: deque[Placed]
    """Its images in order, by their places in the submitted body."""


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
        pictures: Pictures,
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
        self._pictures = pictures
        self._secret = secret
        self._admission = admission
        self._max_messages = max_messages
        self._max_text_bytes = max_text_bytes
        self._max_body = max_body
        self._bodies = bodies

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Queue a request, or tell what it would cost."""
        resp.content_type = JSON
        checked = await self._checked(req)
        if isinstance(checked, Priced):
            resp.data = _encode(checked)
            return
        self._gate.room()
        account, new = checked.account, checked.new
        async with self._pictures.loaded(account, checked.messages, checked.sources) as attached:
            receipt, _ = await self._allowances.submit(account, new._replace(attached=attached))
        if receipt.repeated:
            resp.data = _encode(_repeated(receipt))
            return
        ttl, kudos = self._limits.request_ttl, new.kudos // KUDOS
        resp.status = falcon.HTTP_202
        resp.data = _encode(
            await queued(self._availability, ttl, account, new, receipt.request_id, kudos)
        )

    async def _checked(self, req: falcon.asgi.Request) -> Checked | Priced:
        """What passed every check but those of its images; or the answer of what is not queued."""
        asked, operation = await self._read(req)
        auth.key(req)
        if operation is not None:
            known = await auth.payer(req, self._accounts)
            earlier = await self._allowances.repeated(known, operation)
            if earlier is not None:
                return _repeated(earlier)
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
        sources = deque(images.placed(screened, fitted.messages))
        if asked.horde.dry_run:
            pictures.check_total(account, sources)
            await self._allowances.measured(account, new)
            return _quoted(asked, screened, fitted, kudos)
        return Checked(account, new, images.without_urls(fitted.messages), sources)

    async def _read(self, req: falcon.asgi.Request) -> tuple[ChatRequest, Operation | None]:
        """The body, and which operation it is. Both take long where it is large."""
        async with self._bodies.read(req, self._max_body) as raw:
            asked = request.read(
                raw, max_messages=self._max_messages, max_text_bytes=self._max_text_bytes
            )
            operation = self._operation(asked)
        return asked, operation

    def _operation(self, asked: ChatRequest) -> Operation | None:
        key = asked.horde.operation_key
        if key is None or asked.horde.dry_run:
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


def _repeated(receipt: Receipt) -> Priced:
    return Priced(id=receipt.request_id, kudos=receipt.kudos / KUDOS)


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
