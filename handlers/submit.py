"""Submitting a request: admission on the account, then the request itself, in two partitions' worth
of steps."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import structlog

from events import codec
from events.base import Position
from events.types import Abandoned, Admitted, Demand, Submitted
from handlers.accounts import Account
from handlers.cancel import cancel
from handlers.errors import AdmissionLost, InvalidAPIKey, RedisUnavailable
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
    """Fields of the content hash: `messages` and `payload`, JSON each."""


class Receipt(NamedTuple):
    """The request was accepted and stands in the log."""

    request_id: str
    position: Position


async def submit(log: Log, limits: Limits, account: Account, new: NewRequest) -> Receipt:
    """Admit and store a request.

    Raise InvalidAPIKey where the account went away, AdmissionLost past the admission's deadline,
    RedisUnavailable. A submit whose fate is unknown is followed up behind the caller's back and
    undone: its client was told to try again.
    """
    request_id = log.keys.new_request_id()
    deadline_ms, kudos = await _admit(log, limits, account, request_id, new.jobs)
    event = Submitted(
        request_id=request_id,
        user_id=account.id,
        chat=new.chat,
        jobs=new.jobs,
        max_length=new.max_length,
        stream=new.stream,
        ttl=limits.request_ttl,
        priority=kudos,
        data=new.demand,
    )
    content: list[str | bytes] = []
    for name, value in new.content.items():
        # Lua has byte strings only, and its unpacker reads the string type.
        content += (name, value.decode())

    async def store() -> Position:
        answer = await log.run(
            "submit",
            log.keys.of(request_id),
            {
                "request": log.keys.request(request_id),
                "content": log.keys.content(request_id),
                "due_request": log.keys.due(log.keys.of(request_id), "request"),
            },
            {
                "deadline_ms": deadline_ms,
                "content_ttl": limits.content_ttl,
                "content": _pack(content),
                "event": codec.encode(event),
            },
        )
        return Position.parse(answer[0])

    async def undo() -> None:
        await store()
        await cancel(log, limits, request_id)

    try:
        position = await store()
    except Refusal as refusal:
        raise AdmissionLost from refusal
    except RedisUnavailable:
        log.later(persist(undo, seconds=limits.admission_deadline))
        raise
    logger.info("submitted", request_id=request_id, position=str(position), user_id=account.id)
    return Receipt(request_id, position)


async def _admit(
    log: Log, limits: Limits, account: Account, request_id: str, jobs: int
) -> tuple[int, int]:
    partition = log.keys.of_account(account.id)
    try:
        deadline_ms, kudos = await log.run(
            "admit",
            partition,
            {
                "account": log.keys.account(account.id),
                "due_admission": log.keys.due(partition, "admission"),
            },
            {
                "request_id": request_id,
                "seconds": limits.admission_deadline,
                "event": codec.encode(
                    Admitted(user_id=account.id, request_id=request_id, jobs=jobs)
                ),
            },
        )
    except Refusal as refusal:
        raise InvalidAPIKey from refusal
    return int(deadline_ms), int(kudos)


async def abandon(
    log: Log, limits: Limits, user_id: int, request_id: str, deadline_ms: int
) -> bool | None:
    """Give up an admission whose deadline passed. Whether it was given up: false where the request
    came, None where its deadline is still ahead.

    A request that came and is gone again, unseen, is called abandoned: its release is the same.
    """
    partition = log.keys.of(request_id)
    event = Abandoned(request_id=request_id, user_id=user_id, ttl=limits.request_ttl)
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
