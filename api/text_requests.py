"""The routes of a text request: submit, status, cancel, stored parameters."""

from __future__ import annotations

import asyncio
from typing import Literal

import falcon.asgi
import msgspec

from api import auth
from api.allowance import Allowances
from api.availability import Availability
from api.body import Bodies
from api.errors import JSON
from api.gate import Gate, client_agent
from api.ids import canonical
from api.queued import queued
from api.status import StatusReader
from api.status_route import StatusRoute, known
from events.base import KUDOS
from handlers.accounts import Accounts
from handlers.chat import pricing
from handlers.chat.context import SizedPrompt, fit_prompt
from handlers.chat.flatten import estimate_tokens
from handlers.chat.pricing import Tariff
from handlers.errors import RequestNotFound, WrongCredentials
from handlers.limits import Limits
from handlers.log import Log
from handlers.moderation import Moderation
from handlers.shared_keys import check_tokens
from handlers.submit import NewRequest
from handlers.text import request, submission
from handlers.text.payload import Params
from handlers.text.request import TextRequest

_encode = msgspec.json.Encoder().encode


class TextResolved(msgspec.Struct, frozen=True, kw_only=True):
    """What a dry run found that the request would run under."""

    prompt: str
    models: tuple[str, ...]
    style: None = None
    params: Params
    estimated_prompt_tokens: int
    context_fit: Literal["ignore", "reject", "grow"]


class TextQuoted(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 200 for a dry run."""

    kudos: float
    resolved: TextResolved


class TextAsync:
    """`POST /v2/generate/text/async` (text_path_reference.md 3.3; sizing as in spec, Routes)."""

    def __init__(
        self,
        log: Log,
        limits: Limits,
        gate: Gate,
        moderation: Moderation,
        tariff: Tariff,
        availability: Availability,
        allowances: Allowances,
        *,
        bodies: Bodies,
    ) -> None:
        self._log = log
        self._limits = limits
        self._gate = gate
        self._moderation = moderation
        self._tariff = tariff
        self._availability = availability
        self._allowances = allowances
        self._bodies = bodies

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Queue a request, or tell what it would cost."""
        resp.content_type = JSON
        async with self._bodies.read(req, request.MAX_BODY_BYTES) as raw:
            asked = request.read(raw)
        auth.key(req)
        sized = await self._sized(asked)
        account = await self._allowances.payer(await self._gate.enter(req))
        request.check_proxy(asked, service=account.service)
        request.check_image_count(asked, trusted=account.vouched)
        request.check_prompt(asked)
        request.check_workers(asked.workers, await self._existing(asked.workers))
        request.check_batching(asked, trusted=account.vouched)
        await self._gate.check(req, account, asked.params.n, asked.models)
        prompt = await self._moderation.prompt(asked.prompt, asked.models, flagged=account.flagged)
        request.check_params(submission.sized_params(asked, sized))
        request.check_images(asked)
        check_tokens(account, asked.params.max_length)
        agent = client_agent(req)

        def new(of: TextRequest) -> NewRequest:
            kudos = self._estimate(of, sized)
            return submission.new_request(of, prompt, sized, kudos=kudos, client_agent=agent)

        if asked.dry_run:
            await self._allowances.measured(account, new(asked))
            resp.data = _encode(_quoted(asked, sized, self._estimate(asked, sized)))
            return
        self._gate.room()

        def lower(max_length: int) -> NewRequest:
            return new(request.lowered(asked, max_length))

        receipt, taken = await self._allowances.submit(
            account, new(asked), lower if asked.allow_downgrade else None
        )
        ttl = self._limits.request_ttl
        resp.status = falcon.HTTP_202
        resp.data = _encode(
            await queued(
                self._availability, ttl, account, taken, receipt.request_id, taken.kudos // KUDOS
            )
        )

    async def _sized(self, asked: TextRequest) -> SizedPrompt:
        """Its context: as sent, refused or grown, as it asks. Raise PromptExceedsContext."""
        requested, max_length = asked.params.max_context_length, asked.params.max_length
        needed = estimate_tokens(asked.prompt) + max_length
        most = 0
        if asked.context_fit == "grow" and needed > requested:
            most = await self._availability.text_context(asked.models, at_least=needed)
        return fit_prompt(asked.prompt, max_length, requested, most, asked.context_fit)

    async def _existing(self, workers: tuple[str, ...]) -> set[str]:
        """Those of these ids that are workers, by hot state: no read model is waited for."""
        ids = [worker for worker in workers if canonical(worker) is not None]
        found = await asyncio.gather(
            *(self._log.read("EXISTS", self._log.keys.worker(id_)) for id_ in ids)
        )
        return {id_ for id_, exists in zip(ids, found, strict=True) if exists}

    def _estimate(self, asked: TextRequest, sized: SizedPrompt) -> int:
        return pricing.quote(
            asked.params.max_length,
            sized.max_context_length,
            asked.params.n,
            size=self._tariff.quoted_size(asked.models),
        )


def _quoted(asked: TextRequest, sized: SizedPrompt, kudos: int) -> TextQuoted:
    return TextQuoted(
        kudos=float(kudos),
        resolved=TextResolved(
            prompt=asked.prompt,
            models=asked.models,
            params=submission.sized_params(asked, sized),
            estimated_prompt_tokens=sized.estimate,
            context_fit=asked.context_fit,
        ),
    )


class TextStatus(StatusRoute):
    """`GET` and `DELETE /v2/generate/text/status/{id}`."""

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, request_id: str
    ) -> None:
        """The status; with `Prefer: wait=N` once it is done, or N seconds have passed."""
        await self.show(req, resp, request_id)

    async def on_delete(
        self, _req: falcon.asgi.Request, resp: falcon.asgi.Response, request_id: str
    ) -> None:
        """Cancel; the answer is the status as it was before."""
        await self.cancel(resp, request_id)


class TextParameters:
    """`GET /v2/generate/text/request/{id}`: for whoever submitted it, and nobody else."""

    def __init__(self, log: Log, accounts: Accounts, reader: StatusReader) -> None:
        self._log = log
        self._accounts = accounts
        self._reader = reader

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, request_id: str
    ) -> None:
        """What was submitted, with the defaults filled in."""
        account = await auth.payer(req, self._accounts)
        id_ = known(request_id)
        hot = await self._reader.hot(id_)
        shared_key = account.shared_key
        own = hot.user_id == account.id if shared_key is None else hot.shared_key == shared_key.id
        if not own:
            raise WrongCredentials("This request was submitted with another API key.")
        payload, options, submitted_prompt = await self._log.read(
            "HMGET", self._log.keys.content(id_), *submission.CONTENT
        )
        if payload is None or options is None:  # it expired meanwhile, or its content was lost
            raise RequestNotFound
        resp.content_type = JSON
        resp.cache_control = ["private", "no-store"]
        resp.data = _encode(
            submission.stored_parameters(hot.jobs, payload, options, submitted_prompt)
        )
