"""The routes of workers: pop, submit, progress. Named for text, which chat shares them with."""

from __future__ import annotations

import functools
from typing import Annotated, Any, NamedTuple

import falcon.asgi
import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from api import auth, disconnect, wait
from api.body import Bodies
from api.errors import JSON
from api.ids import canonical
from api.matcher import Matcher, Outcome
from events.types import Declaration
from handlers import reply as replies
from handlers.accounts import Accounts
from handlers.chat import declaration, documents, payload, reply
from handlers.errors import (
    BadRequest,
    ChatJobAborted,
    ChatProgressUnavailable,
    ChatSubmitInvalid,
    DuplicateGen,
    InvalidJobID,
    RedisUnavailable,
    WorkerMaintenance,
)
from handlers.limits import Limits
from handlers.log import Log, persist
from handlers.pop import Assignment, Worker, Workers, assign, give_back
from handlers.progress import Posts
from projections import eligibility
from projections.eligibility import Candidate, Offer

POP_BODY_BYTES = 2**20
SUBMIT_BODY_BYTES = 8 * 2**20
"""1 MiB of reasoning and the longest reply, with room for escapes."""
PROGRESS_BODY_BYTES = 4 * 2**20

_encode = msgspec.json.Encoder().encode

SKIPPED = frozenset(
    {"worker_id", "untrusted", "bridge_version", "max_context_length", "max_length"}
)
"""What the text path tells of skipped requests (5.5), as far as one worker alone is concerned."""


class Popped(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a pop's answer (text_path_reference.md 5.7)."""

    payload: Raw | payload.NoJob
    id: str | None = None
    ids: list[str] = []
    model: str | None = None
    ttl: int | None = None  # seconds
    skipped: dict[str, int] = {}
    messages: list[Any] = []  # the operator's notices
    softprompt: None = None
    extra_source_images: None = None
    chat: bool | UnsetType = UNSET


class Pop:
    """`POST /v2/generate/text/pop`."""

    def __init__(
        self,
        log: Log,
        limits: Limits,
        accounts: Accounts,
        workers: Workers,
        matcher: Matcher,
        *,
        wait_limit: int,
        bodies: Bodies,
    ) -> None:
        self._log = log
        self._limits = limits
        self._accounts = accounts
        self._workers = workers
        self._matcher = matcher
        self._wait_limit = wait_limit
        self._bodies = bodies

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Check a worker in, and give it a job; with `Prefer: wait=N` wait for one."""
        async with self._bodies.read(req, POP_BODY_BYTES) as raw:
            _read(raw)  # a body that is none is refused before its sender is asked for
        owner = await auth.worker_owner(req, self._accounts)
        declared = _declared(raw, owner.username)
        seconds = wait.preferred(req, self._wait_limit)
        if seconds:
            disconnect.watch(req.scope)
        offer = declared.offer
        shelf = self._matcher.shelf(offer)
        shelf.prepare()
        worker = await self._workers.check_in(owner, declared.name, declared.declaration)

        async def take(candidate: Candidate) -> Assignment | None:
            return await assign(
                self._log,
                self._limits,
                worker,
                declared.declaration,
                candidate.request_id,
                candidate.wanted.models[0],
            )

        outcome = await self._matcher.pop(
            shelf, _seen(worker, offer), seconds, take, self._put_back
        )
        job = outcome.job
        if job is not None:
            disconnect.unless_delivered(req.scope, lambda: self._put_back(job))
        elif worker.maintenance:
            raise WorkerMaintenance
        if seconds:
            wait.applied(resp, seconds)
        resp.content_type = JSON
        resp.data = _encode(_popped(outcome))

    def _put_back(self, job: Assignment) -> None:
        """The worker is gone: the next one gets its job."""
        self._log.later(persist(lambda: give_back(self._log, job.request_id, job.generation_id)))


class _Declared(NamedTuple):
    name: str
    declaration: Declaration
    offer: Offer


# A worker sends the same body again and again, and what it means depends on nothing else.
_SMALL_BYTES = 4096
_KEPT = 4096
_read_small = functools.lru_cache(_KEPT)(declaration.read)


def _read(raw: bytes) -> declaration.Pop:
    return _read_small(raw) if len(raw) <= _SMALL_BYTES else declaration.read(raw)


def _declared(raw: bytes, owner: str) -> _Declared:
    if len(raw) <= _SMALL_BYTES:
        return _declared_small(raw, owner)
    return _declare(declaration.read(raw), owner)


@functools.lru_cache(_KEPT)
def _declared_small(raw: bytes, owner: str) -> _Declared:
    return _declare(_read_small(raw), owner)


def _declare(pop: declaration.Pop, owner: str) -> _Declared:
    name, declared = declaration.declared(pop, owner)
    # Text jobs are not handed out yet: only the chat part is looked for.
    return _Declared(name, declared, Offer.of(declared)._replace(models=()))


def _seen(worker: Worker, offer: Offer) -> eligibility.Worker:
    return eligibility.Worker(
        worker.id,
        worker.owner.id,
        worker.owner.trusted,
        offer,
        maintenance=worker.maintenance,
        paused=worker.paused,
    )


def _popped(outcome: Outcome[Assignment]) -> Popped:
    job = outcome.job
    if job is None:
        skipped = {reason: count for reason, count in outcome.skipped.items() if reason in SKIPPED}
        return Popped(payload=payload.NoJob(), skipped=skipped)
    return Popped(
        payload=payload.rendered(job.messages, job.payload),
        id=job.generation_id,
        ids=[job.generation_id],
        model=job.model,
        ttl=job.ttl,
        chat=True,
    )


class Submit:
    """`POST /v2/generate/text/submit`."""

    def __init__(self, log: Log, limits: Limits, accounts: Accounts, *, bodies: Bodies) -> None:
        self._log = log
        self._limits = limits
        self._accounts = accounts
        self._bodies = bodies

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """End a job: with its reply, or by giving it up."""
        async with self._bodies.read(req, SUBMIT_BODY_BYTES) as raw:
            submit = reply.read(raw)
        if not submit.chat and submit.generation is UNSET:
            raise BadRequest(documents.INVALID, errors={"generation": "Missing required key"})
        account = await auth.account(req, self._accounts)
        generation_id = canonical(submit.id)
        if generation_id is None:
            raise InvalidJobID
        job = await replies.held(self._log, account, generation_id)
        if submit.faulted:
            if submit.chat:
                reply.check_model(submit, job.model)
            await replies.fault(self._log, self._limits, job)
        else:
            await self._deliver(submit, job)
        resp.content_type = JSON
        resp.data = b'{"reward":0.0}'  # replies have no price yet

    async def _deliver(self, submit: reply.Submit, job: replies.Held) -> None:
        # Before the reply is looked at: one that came too late is refused as that.
        if job.state == "finished":
            raise DuplicateGen
        if job.state != "pending":
            raise replies.aborted(job)
        if not job.chat:
            raise ChatSubmitInvalid("This is a text job: it takes no message.")
        await replies.submit_reply(self._log, self._limits, job, reply.verified(submit, job.model))


class Delta(msgspec.Struct, frozen=True):
    """What was generated since the last post."""

    content: str | None = None
    reasoning_content: str | None = None


class ProgressBody(msgspec.Struct, frozen=True):
    """The body of a progress post."""

    id: Annotated[str, Meta(max_length=255)]
    seq: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    delta: Delta


class Accepted(msgspec.Struct, frozen=True):
    """The body of its answer."""

    accepted_seq: int
    cancelled: bool


_progress_body = msgspec.json.Decoder(ProgressBody)


class Progress:
    """`POST /v2/generate/text/progress`."""

    def __init__(self, log: Log, limits: Limits, accounts: Accounts, *, bodies: Bodies) -> None:
        self._posts = Posts(log, limits)
        self._accounts = accounts
        self._bodies = bodies

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Take in what a streamed job has generated so far."""
        async with self._bodies.read(req, PROGRESS_BODY_BYTES) as raw:
            try:
                post = documents.decode(_progress_body, raw)
            except documents.Misfit as misfit:
                raise documents.invalid(misfit.fault) from None
        content, reasoning = post.delta.content or "", post.delta.reasoning_content or ""
        if not content and not reasoning:
            raise BadRequest("The delta carries neither content nor reasoning_content.")
        try:
            account = await auth.account(req, self._accounts)
        except RedisUnavailable as error:
            raise ChatProgressUnavailable from error
        generation_id = canonical(post.id)
        if generation_id is None:
            raise ChatJobAborted
        accepted = await self._posts.progress(account, generation_id, post.seq, content, reasoning)
        resp.content_type = JSON
        resp.data = _encode(Accepted(accepted.seq, accepted.cancelled))
