"""The routes of workers: pop, submit, progress. Named for text, which chat shares them with."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Coroutine
from typing import Annotated, Any, NamedTuple

import falcon.asgi
import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from api import auth, disconnect, wait
from api.body import Bodies
from api.client import Callers
from api.errors import JSON
from api.ids import canonical
from api.matcher import Matcher, Outcome
from api.worker_messages import ShownMessage, shown
from events import faults
from events.base import KUDOS, Position
from events.types import Declaration
from handlers import metrics, plausibility
from handlers import reply as replies
from handlers.accounts import Account, Accounts
from handlers.chat import declaration, documents, payload, reply, transport, verification
from handlers.chat.delivery import Delivered, Delivery
from handlers.chat.pricing import Tariff
from handlers.chat.schema_pool import SchemaPool
from handlers.decoy import Decoys
from handlers.errors import (
    BadRequest,
    ChatJobAborted,
    ChatModelMismatch,
    ChatSubmitInvalid,
    ChatSubmitNonconformant,
    DuplicateGen,
    InvalidJobID,
    WorkerMaintenance,
)
from handlers.limits import Limits
from handlers.log import Log, persist
from handlers.pop import Assignment, Overrun, Worker, Workers, assign, give_back
from handlers.progress import Posts
from handlers.reference import Reference
from handlers.text import reply as text_reply
from handlers.timeouts import Timeouts
from handlers.worker_addresses import WorkerAddresses
from handlers.worker_messages import Messages
from handlers.workers import in_maintenance
from projections.rules import ANY_MODEL, Candidate, Offer, Rules, pace
from projections.rules import Worker as SeenWorker

POP_BODY_BYTES = 2**20
SUBMIT_BODY_BYTES = 8 * 2**20
"""1 MiB of reasoning and the longest reply, with room for escapes."""
PROGRESS_BODY_BYTES = 4 * 2**20

_encode = msgspec.json.Encoder().encode

NO_MESSAGE = "This is a text job: its submit carries a generation, and nothing of a chat reply."

UNTOLD = frozenset({"maintenance"})
"""Reasons that `skipped` does not count, as the text path does not (text_path_reference.md 5.5)."""


class Popped(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a pop's answer (text_path_reference.md 5.7)."""

    payload: Raw | payload.NoJob
    id: str | None = None
    ids: list[str] = []
    model: str | None = None
    ttl: int | None = None  # seconds
    skipped: Annotated[
        dict[str, int],
        Meta(
            description="Of a pop without a job: how many requests wait for the worker's models and"
            " are not for it, by the first reason against it."
        ),
    ] = {}
    messages: list[ShownMessage] = []
    """Notices for the worker, of its owner and of moderators."""
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
        rules: Rules,
        tariff: Tariff,
        callers: Callers,
        timeouts: Timeouts,
        messages: Messages,
        addresses: WorkerAddresses,
        delivery: Delivery,
        *,
        wait_limit: int,
        bodies: Bodies,
    ) -> None:
        self._log = log
        self._limits = limits
        self._accounts = accounts
        self._workers = workers
        self._decoys = Decoys(log, limits)
        self._matcher = matcher
        self._rules = rules
        self._tariff = tariff
        self._callers = callers
        self._timeouts = timeouts
        self._messages = messages
        self._addresses = addresses
        self._delivery = delivery
        self._wait_limit = wait_limit
        self._bodies = bodies

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Check a worker in, and give it a job; with `Prefer: wait=N` wait for one."""
        async with self._bodies.read(req, POP_BODY_BYTES) as raw:
            pop = _read(raw)  # a body that is none is refused before its sender is asked for
        owner = await auth.worker_owner(req, self._accounts)
        address = self._callers.remote(req)
        await self._timeouts.check(address)
        declared = _declared(raw, pop, owner.username, self._rules)
        seconds = wait.preferred(req, self._wait_limit)
        if seconds:
            disconnect.watch(req.scope)
        offer = self._offer(declared, self._workers.speed(declared.name), owner.trusted)
        shelf = self._matcher.shelf(offer)
        shelf.prepare()
        worker = await self._workers.check_in(
            owner, declared.name, declared.declaration, reward=self._reward(declared)
        )
        # Before it holds a job that could be lost:
        told = await self._messages.of(worker.id)
        await self._addresses.note(worker.id, address)
        seen = self._seen(worker, declared)
        if seen.offer != offer:
            shelf = self._matcher.shelf(seen.offer)
        if worker.speed is not None and seen.offer.lease_length is not None:
            metrics.lease_capacity_limited()

        async def take(candidate: Candidate) -> Hand | None:
            return await self._take(worker, declared, candidate)

        outcome = await self._matcher.pop(shelf, seen, seconds, take, self._put_back)
        hand = outcome.job
        if hand is not None:
            disconnect.unless_delivered(req.scope, lambda: self._put_back(hand))
        elif worker.maintenance:
            raise WorkerMaintenance(worker.maintenance_msg or None)
        if seconds:
            wait.applied(resp, seconds)
        resp.content_type = JSON
        answer = _encode(_popped(outcome, list(map(shown, told))))
        delivered = None if hand is None else hand.delivered
        if delivered is None or not delivered.images:
            resp.data = answer
        else:
            length = delivered.length(answer)
            disconnect.deliver_within(req.scope, self._delivery.patience(length))
            resp.set_stream(delivered.sent(answer), length)

    def _offer(self, declared: _Declared, speed: float | None, trusted: bool) -> Offer:
        return declared.offer.by(declared.models, self._rules, speed, trusted=trusted)

    def _reward(self, declared: _Declared) -> int:
        """10^-4 kudos for a stretch of such a worker's uptime."""
        return self._tariff.uptime(
            declared.models,
            declared.declaration.max_context_length,
            validated=declared.offer.validated,
        )

    def _seen(self, worker: Worker, declared: _Declared) -> SeenWorker:
        return SeenWorker(
            worker.id,
            worker.owner.id,
            worker.owner.trusted,
            self._offer(declared, worker.speed, worker.owner.trusted),
            maintenance=worker.maintenance,
            paused=worker.paused,
            speed=worker.speed,
            capacity=self._rules.capacity(worker.speed),
            prefers=declared.prefers | {worker.owner.id},
            fetches=transport.fetches(declared.declaration),
            decoys=self._decoys.had_by(worker.id) if worker.paused else None,
        )

    async def _take(self, worker: Worker, declared: _Declared, candidate: Candidate) -> Hand | None:
        """Try for as many jobs of the request as the worker asked for; None where none waits.

        All get the same model. Raise RedisUnavailable where that is why there is none.
        """
        chat, models = candidate.wanted.chat, candidate.wanted.models
        if worker.paused and candidate.wanted.user_id != worker.owner.id:
            return await self._decoy(worker, declared, candidate)
        overrun = None if chat else self._overrun(worker, candidate.wanted.max_length)
        if chat:
            model, declaration, count = models[0], declared.declaration, 1
        else:
            model = declared.chosen(models)
            declaration, count = declared.for_text, min(declared.amount, candidate.waiting)

        def one(declaration: Declaration) -> Coroutine[Any, Any, Assignment | None]:
            return assign(
                self._log,
                self._limits,
                worker,
                declaration,
                candidate.request_id,
                model,
                overrun,
                validated=declared.offer.validated,
            )

        if chat:
            images = candidate.wanted.images
            handed = await self._delivery.hand_out(declaration, one, images=images)
            return None if handed is None else Hand((handed.job,), handed.delivered)
        if count == 1:
            job = await one(declaration)
            return None if job is None else Hand((job,))
        tries = await asyncio.gather(
            *(one(declaration) for _ in range(count)), return_exceptions=True
        )
        jobs = tuple(each for each in tries if isinstance(each, Assignment))
        if jobs:
            return Hand(jobs)
        for each in tries:
            if isinstance(each, BaseException):
                raise each
        return None

    async def _decoy(
        self, worker: Worker, declared: _Declared, candidate: Candidate
    ) -> Hand | None:
        chat, models = candidate.wanted.chat, candidate.wanted.models
        model = models[0] if chat else declared.chosen(models)

        def one(declaration: Declaration) -> Coroutine[Any, Any, Assignment | None]:
            return self._decoys.give(
                worker, declaration, candidate.request_id, model, validated=declared.offer.validated
            )

        if chat:
            images = candidate.wanted.images
            handed = await self._delivery.hand_out(declared.declaration, one, images=images)
            return None if handed is None else Hand((handed.job,), handed.delivered, decoy=True)
        job = await one(declared.for_text)
        return None if job is None else Hand((job,), decoy=True)

    def _overrun(self, worker: Worker, max_length: int) -> Overrun | None:
        capacity = self._rules.capacity(worker.speed)
        if max_length <= capacity:
            return None
        return Overrun(max_length, capacity, pace(worker.speed))

    def _put_back(self, hand: Hand) -> None:
        """The worker is gone: the next one gets its jobs."""
        if hand.delivered is not None:
            hand.delivered.release()
        if hand.decoy:
            return
        for job in hand.jobs:
            self._log.later(persist(functools.partial(self._give_back, job)))

    async def _give_back(self, job: Assignment) -> None:
        await give_back(self._log, job.request_id, job.generation_id)


class Hand(NamedTuple):
    """What one pop is handed: jobs of one request, one unless the worker asked for more."""

    jobs: tuple[Assignment, ...]
    delivered: Delivered | None = None
    """What goes with a chat job; None: they are text jobs."""
    decoy: bool = False
    """They are none (handlers/decoy.py)."""

    @property
    def positions(self) -> tuple[Position, ...]:
        """Of their `assigned` events, which decoys have not."""
        if self.decoy:
            return ()
        return tuple(job.position for job in self.jobs)


class _Declared(NamedTuple):
    name: str
    declaration: Declaration
    offer: Offer
    """Of a worker without a measured speed."""
    amount: int
    """Jobs that it would take at once."""
    prefers: frozenset[int]
    """Accounts that it wants to serve first."""

    @property
    def models(self) -> tuple[str, ...]:
        """Those that it serves text jobs with."""
        return self.declaration.models

    def chosen(self, models: tuple[str, ...]) -> str:
        """One of these models of a text request that it serves, or of all that it serves."""
        return random.choice(self.models if models == (ANY_MODEL,) else models)  # noqa: S311 - no secret

    @property
    def for_text(self) -> Declaration:
        """The same without its chat limits: they do not bound text jobs."""
        return msgspec.structs.replace(
            self.declaration, chat_max_length=None, chat_max_context_length=None
        )


# A worker sends the same body again and again, and what it means depends on nothing else.
_SMALL_BYTES = 4096
_KEPT = 4096
_read_small = functools.lru_cache(_KEPT)(declaration.read)


def _read(raw: bytes) -> declaration.Pop:
    return _read_small(raw) if len(raw) <= _SMALL_BYTES else declaration.read(raw)


def _declared(raw: bytes, pop: declaration.Pop, owner: str, rules: Rules) -> _Declared:
    if len(raw) <= _SMALL_BYTES:
        return _declared_small(raw, owner, rules)
    return _declare(pop, owner, rules)


@functools.lru_cache(_KEPT)
def _declared_small(raw: bytes, owner: str, rules: Rules) -> _Declared:
    return _declare(_read_small(raw), owner, rules)


def _declare(pop: declaration.Pop, owner: str, rules: Rules) -> _Declared:
    name, declared = declaration.declared(pop, owner)
    offer, prefers = Offer.of(declared, rules), declaration.preferred(pop)
    return _Declared(name, declared, offer, pop.amount or 1, prefers)


def _popped(outcome: Outcome[Hand], messages: list[ShownMessage]) -> Popped:
    hand = outcome.job
    if hand is None:
        skipped = {name: count for name, count in outcome.skipped.items() if name not in UNTOLD}
        return Popped(payload=payload.NoJob(), messages=messages, skipped=skipped)
    job = hand.jobs[0]
    return Popped(
        payload=Raw(job.payload) if hand.delivered is None else hand.delivered.payload,
        messages=messages,
        id=job.generation_id,
        ids=[each.generation_id for each in hand.jobs],
        model=job.model,
        ttl=job.ttl,
        chat=UNSET if hand.delivered is None else True,
    )


class Rewarded(msgspec.Struct, frozen=True):
    """The body of a submit's answer."""

    reward: float
    """Kudos for the worker's owner, of which a part may wait until it is trusted."""


class Submit:
    """`POST /v2/generate/text/submit`."""

    def __init__(
        self,
        log: Log,
        limits: Limits,
        accounts: Accounts,
        schemas: SchemaPool,
        reference: Reference,
        tariff: Tariff,
        *,
        bodies: Bodies,
    ) -> None:
        self._log = log
        self._limits = limits
        self._accounts = accounts
        self._schemas = schemas
        self._reference = reference
        self._tariff = tariff
        self._bodies = bodies

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """End a job: with its reply, or by giving it up."""
        async with self._bodies.read(req, SUBMIT_BODY_BYTES) as raw:
            submit = reply.read(raw)
        generated = None if submit.chat else text_reply.read(submit)
        key = auth.key(req)
        generation_id = canonical(submit.id)
        if generation_id is None:
            raise InvalidJobID
        job = await replies.held(self._log, generation_id)
        account = await auth.of(key, self._accounts)
        job.check_owner(account)
        reward = 0
        try:
            if submit.faulted:
                await self._give_up(submit, job, account)
            else:
                reward = await self._deliver(submit, generated, job)
        except DuplicateGen:
            # To a worker that goes out of service it is no fault (text_path_reference.md 6.2).
            if not await in_maintenance(self._log, job.worker_id):
                raise
        resp.content_type = JSON
        resp.data = _encode(Rewarded(reward / KUDOS))

    async def _give_up(self, submit: reply.Submit, job: replies.Held, account: Account) -> None:
        if not job.chat:
            if submit.message is not UNSET:
                raise ChatSubmitInvalid(NO_MESSAGE)
            await replies.fault(self._log, self._limits, job)
            return
        if submit.chat:  # the form of text jobs ends a chat job too
            reply.check_model(submit, job.model)
        said = reply.fault_reason(submit)
        if not job.decoy:
            metrics.worker_fault(said, trusted=account.trusted)
        await replies.fault(self._log, self._limits, job, said if said in faults.MESSAGES else "")

    async def _deliver(
        self, submit: reply.Submit, generated: text_reply.Generated | None, job: replies.Held
    ) -> int:
        """Store the reply; return what it earns, 10^-4 kudos."""
        # Before the reply is looked at: one that came too late is refused as that.
        if job.state == "finished":
            raise DuplicateGen
        if job.state != "pending":
            raise replies.aborted(job)
        dropped = 0
        if job.chat:
            try:
                stored, dropped = await self._verified(submit, job)
            except (ChatSubmitInvalid, ChatSubmitNonconformant, ChatModelMismatch) as refusal:
                await replies.refuse(self._log, self._limits, job, refusal)
                raise
        elif generated is None:
            raise ChatSubmitInvalid(NO_MESSAGE)
        else:
            stored = text_reply.reply(submit, generated)
        stored_reply = await replies.submit_reply(
            self._log,
            self._limits,
            self._tariff,
            job,
            stored,
            believable=plausibility.believable(self._reference, job.model, trusted=job.trusted),
            dropped_tool_calls=dropped,
        )
        return stored_reply.reward

    async def _verified(self, submit: reply.Submit, job: replies.Held) -> tuple[replies.Reply, int]:
        """The reply of a chat job, and how many of its calls were dropped."""
        given = reply.given(submit, job.model)
        rules = await verification.rules_of(self._log, job.request_id)
        parties = frozenset((job.user_id, job.owner_id))
        judged = await verification.verify(given, rules, self._schemas, parties)
        return reply.stored(submit, judged.given), judged.dropped_tool_calls


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
            post = documents.decoded(_progress_body, raw)
        content, reasoning = post.delta.content or "", post.delta.reasoning_content or ""
        if not content and not reasoning:
            raise BadRequest("The delta carries neither content nor reasoning_content.")
        key = self._accounts.progress_key(auth.key(req))
        generation_id = canonical(post.id)
        if generation_id is None:
            raise ChatJobAborted
        accepted = await self._posts.progress(key, generation_id, post.seq, content, reasoning)
        resp.content_type = JSON
        resp.data = _encode(Accepted(accepted.seq, accepted.cancelled))
