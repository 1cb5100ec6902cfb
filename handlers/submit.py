"""Submitting a request: admission on the account, then the request itself, in two partitions' worth
of steps.

With an operation key a submission may be repeated at any time: whoever comes first stores the
request under the id that the key was claimed for, and all of them are told that id.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import structlog

from events import codec
from events.base import Position
from events.speed import tokens_of
from events.types import Abandoned, Demand, Submitted
from handlers.accounts import Account
from handlers.admission import (
    Admission,
    Claim,
    Operation,
    Settled,
    admit,
    find_claim,
    never_settled,
    opened,
)
from handlers.cancel import cancel
from handlers.chat.pricing import Tariff
from handlers.errors import AdmissionLost, OperationKeyConflict, RedisUnavailable
from handlers.limits import Limits
from handlers.log import Log, Refusal, persist

logger = structlog.get_logger()

_pack = msgspec.msgpack.Encoder().encode


class NewRequest(NamedTuple):
    """What a client asked for, checked and mapped."""

    chat: bool
    jobs: int
    max_length: int
    stream: bool
    demand: Demand
    content: dict[str, bytes]
    """Fields of the content hash, UTF-8 each: `messages` and `payload` (JSON), and whatever else
    belongs to the request but not to history."""

    kudos: int = 0
    """The estimate that the client is told, 10^-4 kudos like the next."""

    hold: int = 0
    """What has to be there, and is held until the request is done."""

    tax: int = 0
    """What is charged when it is taken."""

    priority: int | None = None
    """Where it stands before it ages, 10^-4 kudos; None: where its account does."""

    operation: Operation | None = None


class Receipt(NamedTuple):
    """The request was accepted and stands in the log."""

    request_id: str
    position: Position
    kudos: int = 0
    """The estimate of whoever submitted it first, 10^-4 kudos."""

    repeated: bool = False
    """Whether the operation had been admitted before."""


async def repeated(
    log: Log, limits: Limits, account: Account, operation: Operation
) -> Receipt | None:
    """The request that the operation made before; None where there is none (yet).

    None too where one was admitted but not stored: `submit` then carries on with it. Raise
    OperationKeyConflict where the key names another operation, AdmissionLost where that one never
    came and the key will be free in a moment.
    """
    claim = await find_claim(log, account, operation.key)
    if claim is None:
        return None
    await _check(log, limits, account, operation, claim)
    state, position = await log.read(
        "HMGET", log.keys.request(claim.request_id), "state", "position"
    )
    if state is None or state == b"abandoned":
        return None
    return Receipt(claim.request_id, Position.parse(position), claim.kudos, repeated=True)


async def submit(
    log: Log,
    limits: Limits,
    tariff: Tariff,
    account: Account,
    new: NewRequest,
    settled: Settled = never_settled,
) -> Receipt:
    """Admit and store a request, or answer with the one that its operation key names.

    Raise as `admit` does; OperationKeyConflict, AdmissionLost past the admission's deadline,
    RedisUnavailable. A submit without an operation key whose fate is unknown is followed up behind
    the caller's back and undone: its client was told to try again. One with a key is left as it is:
    the same try again will find it.
    """
    admission = await admit(
        log,
        limits,
        account,
        log.keys.new_request_id(),
        new.jobs,
        models=new.demand.models,
        operation=new.operation,
        kudos=new.kudos,
        hold=new.hold,
        tax=new.tax,
        settled=settled,
    )
    if new.operation and admission.claim:
        await _check(log, limits, account, new.operation, admission.claim)
    request_id = admission.request_id

    async def undo() -> None:
        await _store(log, limits, account, new, admission)
        await cancel(log, limits, tariff, request_id)

    try:
        position = await _store(log, limits, account, new, admission)
    except Refusal as refusal:
        # Past its deadline, or given up already. With this, the next try finds its key free.
        deadline_ms = admission.deadline_ms
        await _give_up(log, limits, account.id, request_id, deadline_ms, _key(new))
        raise AdmissionLost from refusal
    except RedisUnavailable:
        if new.operation is None:
            log.later(persist(undo, seconds=limits.admission_deadline))
        raise
    logger.info(
        "submitted",
        request_id=request_id,
        position=str(position),
        user_id=account.id,
        repeated=admission.claim is not None,
    )
    if admission.claim:
        return Receipt(request_id, position, admission.claim.kudos, repeated=True)
    return Receipt(request_id, position, new.kudos)


async def abandon(
    log: Log,
    limits: Limits,
    user_id: int,
    request_id: str,
    deadline_ms: int,
    operation_key: str = "",
    shared_key: str = "",
) -> bool | None:
    """Give up an admission whose deadline passed. Whether it was given up: false where the request
    came, None where its deadline is still ahead.

    A request that came and is gone again, unseen, is called abandoned: its release is the same.
    """
    partition = log.keys.of(request_id)
    event = Abandoned(
        request_id=request_id,
        user_id=user_id,
        ttl=limits.request_ttl,
        operation_key=operation_key,
        shared_key=shared_key,
    )
    try:
        (position,) = await log.run(
            "abandon",
            partition,
            {
                "request": log.keys.request(request_id),
                "due_request": log.keys.due(partition, "request"),
            },
            {"deadline_ms": deadline_ms, "event": codec.encode(event)},
        )
    except Refusal as refusal:
        return False if refusal.word == "EXISTS" else None
    logger.info("abandoned", request_id=request_id, position=position.decode())
    return True


async def _store(
    log: Log, limits: Limits, account: Account, new: NewRequest, admission: Admission
) -> Position:
    """Store the admitted request. It may have been stored before, by a repeat of the operation."""
    request_id = admission.request_id
    partition = log.keys.of(request_id)
    event = Submitted(
        request_id=request_id,
        user_id=account.id,
        chat=new.chat,
        jobs=new.jobs,
        max_length=new.max_length,
        stream=new.stream,
        ttl=limits.request_ttl,
        priority=admission.priority if new.priority is None else new.priority,
        data=new.demand,
        operation_key=_key(new),
        deadline_ms=admission.deadline_ms,
        prompt_tokens=tokens_of(new.demand.prompt_characters, new.max_length),
        targeted=bool(new.demand.only),
        shared_key=account.key_id,
        tax=new.tax,
    )
    content: list[str] = []
    for name, value in new.content.items():
        # Lua has byte strings only, and its unpacker reads the string type.
        content += (name, value.decode())
    (position,) = await log.run(
        "submit",
        partition,
        {
            "request": log.keys.request(request_id),
            "content": log.keys.content(request_id),
            "due_request": log.keys.due(partition, "request"),
        },
        {
            "deadline_ms": admission.deadline_ms,
            "content_ttl": limits.content_ttl,
            "content": _pack(content),
            "event": codec.encode(event),
        },
    )
    return Position.parse(position)


async def _check(
    log: Log, limits: Limits, account: Account, operation: Operation, claim: Claim
) -> None:
    """Whether the claim is of this operation."""
    if claim.fingerprint == operation.fingerprint:
        return
    # A claim lasts as long as its request: one whose request never came is nobody's.
    if await _give_up(log, limits, account.id, claim.request_id, claim.deadline_ms, operation.key):
        raise AdmissionLost
    raise OperationKeyConflict


async def _give_up(
    log: Log,
    limits: Limits,
    user_id: int,
    request_id: str,
    deadline_ms: int,
    operation_key: str,
) -> bool | None:
    """Abandon an admission, with the shared key that it named: a repeat may come with another."""
    named = await opened(log, user_id, request_id)
    shared_key = named.shared_key if named else ""
    return await abandon(log, limits, user_id, request_id, deadline_ms, operation_key, shared_key)


def _key(new: NewRequest) -> str:
    return new.operation.key if new.operation else ""
