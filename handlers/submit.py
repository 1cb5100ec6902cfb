"""Submitting a request: admission on the account, then the request itself, in two partitions' worth
of steps.

With an operation key a submission may be repeated at any time: whoever comes first stores the
request under the id that the key was claimed for, and all of them are told that id.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    Opened,
    Operation,
    Settled,
    admit,
    find_claim,
    never_settled,
    opened,
)
from handlers.cancel import cancel, tell_dropped
from handlers.chat.attached import Attached
from handlers.chat.pricing import Tariff
from handlers.errors import (
    AdmissionLost,
    ChatImageStorageUnavailable,
    OperationKeyConflict,
    RedisUnavailable,
    Unserved,
)
from handlers.limits import Limits
from handlers.log import Log, Refusal, persist
from handlers.objects import NOTHING, Kept
from handlers.store import Store

logger = structlog.get_logger()

STRAGGLERS = 30
"""Seconds after its deadline within which an upload may still land: one that began before, in a
thread that nobody can stop (lua/apply/expired.lua)."""

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

    attached: Attached | None = None
    """What has to be in the object store before it is taken; its messages take the place of those
    in `content`."""


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
    return await _stored(log, claim)


async def _stored(log: Log, claim: Claim) -> Receipt | None:
    """The request that a claim names; None where it is not there, or not yet."""
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
    store: Store | None = None,
) -> Receipt:
    """Admit and store a request, or answer with the one that its operation key names.

    What is attached to it goes into `store` in between, under the id that was admitted. Raise as
    `admit` does; OperationKeyConflict, AdmissionLost past the admission's deadline,
    RedisUnavailable; ChatImageStorageUnavailable, and the admission is given up at once, as where
    it is cancelled meanwhile and has no operation key.

    A submit without an operation key whose fate is unknown is followed up behind the caller's back
    and undone: its client was told to try again. One with a key is left as it is: the same try
    again will find it.
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
        kept=new.attached.kept if new.attached else NOTHING,
        settled=settled,
    )
    request_id = admission.request_id
    if new.operation and admission.claim:
        await _check(log, limits, account, new.operation, admission.claim)
        stored = await _stored(log, admission.claim)
        if stored is not None:
            return stored
    kept = _agreed(new, admission)
    if kept is None:
        deadline_ms = admission.deadline_ms
        await _give_up(log, limits, account.id, request_id, deadline_ms, _key(new))
        raise AdmissionLost
    if new.attached:
        try:
            await _keep(log, store, new.attached, admission, kept)
        except ChatImageStorageUnavailable:
            await _forgo(log, limits, account.id, admission, _key(new), kept)
            raise
        except asyncio.CancelledError:
            if new.operation is None:  # else its client may come again, and carry on
                log.later(_forgo(log, limits, account.id, admission, "", kept))
            raise
        new = new._replace(content=new.content | {"messages": new.attached.stored(request_id)})

    async def undo() -> None:
        await _store(log, limits, account, new, admission, kept)
        await cancel(log, limits, tariff, request_id)

    try:
        position = await _store(log, limits, account, new, admission, kept)
    except Refusal as refusal:
        # Past its deadline, or given up already. With this, the next try finds its key free.
        deadline_ms = admission.deadline_ms
        await _give_up(log, limits, account.id, request_id, deadline_ms, _key(new), kept)
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
    kept: Kept = NOTHING,
) -> bool | None:
    """Give up an admission whose deadline passed, and delete what was stored for it. Whether it was
    given up: false where the request came, None where its deadline is still ahead.

    `deadline_ms` is 0 for who was admitted, and will not come. A request that came and is gone
    again, unseen, is called abandoned: its release is the same.
    """
    partition = log.keys.of(request_id)
    stragglers = STRAGGLERS if kept != NOTHING else 0
    event = Abandoned(
        request_id=request_id,
        user_id=user_id,
        # While a submit or an upload of its may still come.
        ttl=max(limits.request_ttl, limits.admission_deadline + stragglers),
        operation_key=operation_key,
        shared_key=shared_key,
        images=kept.images,
        offloaded=kept.offloaded,
    )
    try:
        position, dropped = await log.run(
            "abandon",
            partition,
            {
                "request": log.keys.request(request_id),
                "due_request": log.keys.due(partition, "request"),
                "delete_retry": log.keys.delete_retry(partition),
            },
            {
                "deadline_ms": deadline_ms,
                "most": limits.delete_retries,
                "event": codec.encode(event),
            },
        )
    except Refusal as refusal:
        return False if refusal.word == "EXISTS" else None
    logger.info("abandoned", request_id=request_id, position=position.decode())
    tell_dropped(request_id, dropped)
    return True


def _agreed(new: NewRequest, admission: Admission) -> Kept | None:
    """What its admission lets the request keep in the object store.

    A repeat of an operation carries on with another's admission: it may want to offload what that
    one did not, or the other way round, for a URL brings another image; the admission decides.
    None where it cannot carry on: its images are others, or that admission is closed.
    """
    kept = admission.kept
    if kept is None or kept.images != (len(new.attached.images) if new.attached else 0):
        return None
    return None if kept.offloaded and new.attached is None else kept


async def _keep(
    log: Log, store: Store | None, attached: Attached, admission: Admission, kept: Kept
) -> None:
    """Store what is attached, in time for the request. Nothing where it comes too late already, of
    which `submit` will tell."""
    if kept == NOTHING:
        return
    request_id = admission.request_id
    left = (admission.deadline_ms - await log.now_ms(log.keys.of(request_id))) / 1000
    if left < 0:
        return
    if store is None:
        raise ChatImageStorageUnavailable
    objects = await asyncio.to_thread(attached.objects, request_id, kept)
    await store.put(objects, seconds=left)


async def _forgo(
    log: Log, limits: Limits, user_id: int, admission: Admission, operation_key: str, kept: Kept
) -> None:
    """Give up an own admission at once. Where Redis is away, too, the janitor will.

    Another's, only once it is past its deadline: until then, whoever was admitted may be about to
    store the request.
    """
    deadline_ms = admission.deadline_ms if admission.claim else 0
    with contextlib.suppress(Unserved):
        await _give_up(log, limits, user_id, admission.request_id, deadline_ms, operation_key, kept)


async def _store(
    log: Log,
    limits: Limits,
    account: Account,
    new: NewRequest,
    admission: Admission,
    kept: Kept,
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
        images=kept.images,
        offloaded=kept.offloaded,
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
    request_id, deadline_ms = claim.request_id, claim.deadline_ms
    if await _give_up(log, limits, account.id, request_id, deadline_ms, operation.key):
        raise AdmissionLost
    raise OperationKeyConflict


async def _give_up(
    log: Log,
    limits: Limits,
    user_id: int,
    request_id: str,
    deadline_ms: int,
    operation_key: str,
    kept: Kept = NOTHING,
) -> bool | None:
    """Abandon an admission, with the shared key and the objects that it named: a repeat may come
    with another key. Where it is closed already, `kept` is what the caller may have stored."""
    named = await opened(log, user_id, request_id)
    if named is None:
        named = Opened(operation_key, "", kept)
    return await abandon(
        log,
        limits,
        user_id,
        request_id,
        deadline_ms,
        operation_key,
        named.shared_key,
        named.kept,
    )


def _key(new: NewRequest) -> str:
    return new.operation.key if new.operation else ""
