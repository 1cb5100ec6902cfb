"""A worker ends the job that it holds: with a reply, or by giving it up."""

from __future__ import annotations

import contextlib
import uuid
from typing import NamedTuple

import structlog

from events import codec, types
from events.base import Position
from events.prices import escrow_of
from events.types import Faulted, SubmittedReply, Usage
from handlers import metrics
from handlers.accounts import Account
from handlers.chat.pricing import BURN, Tariff, Terms
from handlers.decoy import end_decoy
from handlers.errors import (
    AbortedGen,
    DuplicateGen,
    InvalidJobID,
    Refused,
    Unserved,
    WrongCredentials,
)
from handlers.limits import Limits
from handlers.log import Log, Refusal

logger = structlog.get_logger()


class Held(NamedTuple):
    """A generation as its worker's submit finds it."""

    generation_id: str
    request_id: str
    worker_id: str
    model: str
    owner_id: int
    state: str
    job_ttl: int
    user_id: int
    chat: bool
    assigned_ms: int
    trusted: bool
    """Whether its owner was, when it was assigned."""
    over_capacity: int
    """Tokens that were asked for, where the worker's speed does not finish as many in the lease."""
    max_length: int
    """Tokens that its request asks for."""
    prompt_tokens: int
    """What its prompt counts as in prices."""
    targeted: bool
    """Its request names the workers that may serve it."""
    validated: bool
    """The worker's backend is."""
    shared_key: str
    """Of the payer, with which its request was submitted; empty for none."""

    decoy: bool = False
    """It is no job at all: whatever becomes of it changes nothing (handlers/decoy.py)."""

    def check_owner(self, account: Account) -> None:
        """Raise WrongCredentials unless it is of a worker of the account."""
        if self.owner_id != account.id:
            raise WrongCredentials

    @property
    def terms(self) -> Terms:
        """What its price depends on."""
        return Terms(self.model, self.prompt_tokens, self.targeted, self.validated, self.trusted)


class Reply(NamedTuple):
    """What is stored of a reply, and what the log says of it."""

    stored: bytes
    """JSON, to content only."""

    state: str
    finish_reason: str
    characters: int
    tool_calls: int
    seed: int
    usage: Usage
    empty: bool = False
    """It has no text and calls nothing."""


class Stored(NamedTuple):
    """A reply was stored."""

    done: bool
    """Its request is, with it."""

    reward: int
    """10^-4 kudos for the worker's owner, of which a part may wait for trust."""


_HELD = (
    "request",
    "worker",
    "model",
    "owner",
    "state",
    "job_ttl",
    "payer",
    "chat",
    "assigned_ms",
    "trusted",
    "over_capacity",
    "max_length",
    "prompt_tokens",
    "targeted",
    "validated",
    "shared_key",
)


async def held(log: Log, generation_id: str) -> Held:
    """The generation that a worker took; raise InvalidJobID.

    None of what is read ever changes for a generation but its state and ttl, which the scripts
    judge again.
    """
    decoy = False
    fields = await log.read("HMGET", log.keys.generation(generation_id), *_HELD)
    if fields[0] is None:
        fields = await log.read("HMGET", log.keys.decoy(generation_id), *_HELD)
        decoy = True
    if fields[0] is None or fields[1] is None:  # an id given back before it was a job has no worker
        raise InvalidJobID
    # What an older build did not store counts as nothing.
    request, worker, model, owner, state, job_ttl, payer, chat, assigned, trusted, *younger = (
        (each or b"0").decode() for each in fields
    )
    over, max_length, prompt_tokens, targeted, validated, _ = younger
    return Held(
        generation_id,
        request,
        worker,
        model,
        int(owner),
        state,
        int(job_ttl),
        int(payer),
        chat == "1",
        int(assigned),
        trusted == "1",
        int(over),
        int(max_length),
        int(prompt_tokens),
        targeted == "1",
        validated == "1",
        (fields[-1] or b"").decode(),
        decoy,
    )


def aborted(job: Held) -> AbortedGen:
    """The refusal of a reply that came too late; it states the lease (spec, Job lease)."""
    return AbortedGen(
        "This generation was aborted: it was cancelled, faulted, "
        f"or its lease of {job.job_ttl} seconds ran out. Its reply is not accepted."
    )


async def submit_reply(
    log: Log,
    limits: Limits,
    tariff: Tariff,
    job: Held,
    reply: Reply,
    *,
    believable: int = 0,
    dropped_tool_calls: int = 0,
) -> Stored:
    """Store the reply, and what it is worth by the tariff.

    `believable`: of handlers/plausibility.py. `dropped_tool_calls` is only told. Raise
    InvalidJobID, DuplicateGen or AbortedGen.
    """
    price = tariff.rate(job.terms).price(reply.characters, job.max_length)
    if job.decoy:
        await _end_decoy(log, job, "finished")
        return Stored(done=False, reward=price)
    keys = log.keys
    partition = keys.of(job.generation_id)
    event = SubmittedReply(
        request_id=job.request_id,
        generation_id=job.generation_id,
        user_id=job.user_id,
        worker_id=job.worker_id,
        owner_id=job.owner_id,
        model=job.model,
        state=reply.state,
        finish_reason=reply.finish_reason,
        characters=reply.characters,
        tool_calls=reply.tool_calls,
        seed=reply.seed,
        data=reply.usage,
        believable=believable,
        price=price,
        escrow=0 if job.trusted else escrow_of(price),
        charge=BURN + (price if reply.state == "ok" else 0),
        burn=BURN,
        shared_key=job.shared_key,
    )
    try:
        position, _, done = await log.run(
            "submit_reply",
            partition,
            {
                "request": keys.request(job.request_id),
                "generation": keys.generation(job.generation_id),
                "content": keys.content(job.request_id),
                "lease": keys.lease(job.generation_id),
                "due_lease": keys.due(partition, "lease"),
                "due_request": keys.due(partition, "request"),
            },
            {
                "generation_id": job.generation_id,
                "command": uuid.uuid4().hex,
                "reply": reply.stored,
                "content_ttl": limits.content_ttl,
                "event": codec.encode(event),
            },
        )
    except Refusal as refusal:
        raise _refused(job, refusal) from refusal
    logger.info(
        "horde.job_submit.done",
        request_id=job.request_id,
        generation_id=job.generation_id,
        position=position.decode(),
        done=done == b"1",
        dropped_tool_calls=dropped_tool_calls,
    )
    if job.over_capacity:
        seconds = (Position.parse(position).ms - job.assigned_ms) / 1000
        metrics.gate_shadow_outcome(
            job.over_capacity, "completed", trusted=job.trusted, seconds=seconds
        )
    if reply.empty:
        metrics.empty_generation(job.model)
    return Stored(done=done == b"1", reward=price)


async def refuse(log: Log, limits: Limits, job: Held, refusal: Refused) -> None:
    """Remember the refusal of a reply, for the client of a request that faults and for the counters
    of its worker.

    Best effort: the worker is told of the refusal either way.
    """
    if job.decoy:
        return
    rc, partition = type(refusal).__name__, log.keys.of(job.generation_id)
    event = types.Refused(request_id=job.request_id, generation_id=job.generation_id, rc=rc)
    line = logger.bind(request_id=job.request_id, generation_id=job.generation_id, rc=rc)
    try:
        (position,) = await log.run(
            "refuse",
            partition,
            {
                "request": log.keys.request(job.request_id),
                "generation": log.keys.generation(job.generation_id),
                "content": log.keys.content(job.request_id),
            },
            {
                "rc": rc,
                "message": refusal.message[: limits.fault_reason],
                "event": codec.encode(event),
            },
        )
    except (Unserved, Refusal) as error:
        line.warning("refusal_not_recorded", reason=str(error))
    else:
        line.info("refused", position=position.decode())


async def fault(log: Log, limits: Limits, job: Held, reason: str = "") -> None:
    """Give the job up; it is restarted in the same step, unless its request had too many faults.

    `reason` is a word of events/faults.py, or empty. A job that a fault, a lapse or a cancel ended
    before is left as it is. Raise InvalidJobID or DuplicateGen.
    """
    if job.decoy:
        with contextlib.suppress(AbortedGen):
            await _end_decoy(log, job, "faulted")
        return
    try:
        position, exhausted, _ = await _end_job(
            log, limits, "fault", job.request_id, job.generation_id, reason
        )
    except Refusal as refusal:
        if refusal.word == "ABORTED":
            return
        raise _refused(job, refusal) from refusal
    logger.info(
        "faulted",
        request_id=job.request_id,
        generation_id=job.generation_id,
        position=position.decode(),
        cause="worker",
        reason=reason,
        exhausted=exhausted == b"1",
    )
    if job.over_capacity:
        metrics.gate_shadow_outcome(job.over_capacity, "faulted", trusted=job.trusted)


async def lapse(log: Log, limits: Limits, request_id: str, generation_id: str) -> bool:
    """End a job whose lease ran out; false where it ended before, or its lease did not."""
    try:
        position, exhausted, _ = await _end_job(log, limits, "lapse", request_id, generation_id)
    except Refusal:
        return False
    logger.info(
        "faulted",
        request_id=request_id,
        generation_id=generation_id,
        position=position.decode(),
        cause="lapse",
        exhausted=exhausted == b"1",
    )
    trusted, chat, over_capacity = await log.read(
        "HMGET", log.keys.generation(generation_id), "trusted", "chat", "over_capacity"
    )
    metrics.stale_abort(trusted=trusted == b"1", chat=chat == b"1")
    if int(over_capacity or 0):
        metrics.gate_shadow_outcome(int(over_capacity), "aborted", trusted=trusted == b"1")
    return True


async def _end_job(
    log: Log,
    limits: Limits,
    script: str,
    request_id: str,
    generation_id: str,
    reason: str = "",
) -> list[bytes]:
    """Run `fault` or `lapse`, which differ in what they refuse."""
    keys = log.keys
    partition = keys.of(generation_id)
    event = Faulted(
        request_id=request_id,
        generation_id=generation_id,
        cause="worker" if script == "fault" else "lapse",
        holdoff=limits.fault_holdoff,
        reason=reason,
    )
    return await log.run(
        script,
        partition,
        {
            "request": keys.request(request_id),
            "generation": keys.generation(generation_id),
            "lease": keys.lease(generation_id),
            "stream": keys.stream(request_id),
            "due_lease": keys.due(partition, "lease"),
        },
        {
            "generation_id": generation_id,
            "limit": limits.faulted_generations,
            "stream_ttl": limits.progress_stream_ttl,
            "event": codec.encode(event),
        },
    )


async def _end_decoy(log: Log, job: Held, state: str) -> None:
    try:
        await end_decoy(log, job.generation_id, state)
    except Refusal as refusal:
        raise _refused(job, refusal) from refusal


def _refused(job: Held, refusal: Refusal) -> Exception:
    match refusal.word:
        case "NOT_FOUND":
            return InvalidJobID()
        case "ALREADY_SUBMITTED":
            return DuplicateGen()
        case _:
            return aborted(job)
