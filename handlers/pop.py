"""A worker asks for a job: it checks in, is assigned one that it can serve, and may lose it again
without blame."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections import OrderedDict
from typing import NamedTuple

import msgspec
import structlog

from events import codec
from events.base import Position
from events.keys import name_hash
from events.types import Assigned, CheckedIn, Declaration, Returned
from handlers import metrics
from handlers.accounts import ANONYMOUS_ID, Account
from handlers.cancel import expire
from handlers.chat.transport import transports
from handlers.errors import RedisUnavailable, SettlerBehind, WrongCredentials
from handlers.limits import Limits
from handlers.log import Log, Refusal, persist
from handlers.newcomers import Newcomers

logger = structlog.get_logger()

_declared = msgspec.json.Encoder().encode
NAMES_KEPT = 20_000
_TRIES = 4
"""To find the worker of a name: it may be renamed or deleted, and the name taken, meanwhile."""


class Worker(NamedTuple):
    """A worker that checked in."""

    id: str
    name: str
    owner: Account
    maintenance: bool
    paused: bool
    speed: float | None
    """Tokens a second; None where none was measured yet."""
    maintenance_msg: str = ""
    """Why it is in maintenance, in the words of who put it there; empty: nothing was said."""


class Overrun(NamedTuple):
    """A legacy text job is longer than what its worker finishes in the lease (spec, Job lease)."""

    max_length: int  # tokens that the request asked for
    capacity: int  # tokens
    speed: float  # tokens a second, measured or assumed


class Assignment(NamedTuple):
    """A job that a worker holds."""

    request_id: str
    generation_id: str
    model: str
    ttl: int  # seconds
    stream: bool
    messages: bytes
    payload: bytes
    position: Position
    """Of its `assigned` event."""
    transport: str = ""
    """How its images or its messages travel: url, base64, messages_url; empty: inline."""


class _Known(NamedTuple):
    id: str
    speed: float | None


class Workers:
    """Checks workers in.

    Remembers which id a name leads to, and how fast its worker was; the script corrects both.
    """

    def __init__(self, log: Log, limits: Limits, newcomers: Newcomers) -> None:
        self._log = log
        self._limits = limits
        self._newcomers = newcomers
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def speed(self, name: str) -> float | None:
        """How fast the worker of that name was when it showed itself last; None where that is not
        known here, or none was measured."""
        known = self._known.get(name)
        return None if known is None else known.speed

    async def check_in(
        self, account: Account, name: str, declaration: Declaration, *, reward: int = 0
    ) -> Worker:
        """Record that a worker is here and what it declares.

        `reward`, 10^-4 kudos, is its owner's for each stretch of uptime. Raise WrongCredentials
        for another owner's name, and for a new name as `Newcomers.admit`.
        """
        log = self._log
        data = _declared(declaration)
        declared = hashlib.blake2b(data, digest_size=16).hexdigest()
        known = self._known.get(name)
        worker_id, new = (known.id, False) if known else await self._claimed(account, name)
        called = name
        for _ in range(_TRIES):
            event = CheckedIn(
                worker_id=worker_id,
                name=called,
                user_id=account.id,
                trusted=account.trusted,
                declared=declared,
                data=declaration,
            )
            try:
                maintenance, paused, measured, message = await log.run(
                    "check_in",
                    log.keys.of(worker_id),
                    {
                        "worker": log.keys.worker(worker_id),
                        "names": self._registered(worker_id, called),
                    },
                    {
                        "worker_id": worker_id,
                        "name": called,
                        "user_id": account.id,
                        "trusted": int(account.trusted),
                        "declared": declared,
                        "window": self._limits.check_in_window,
                        "stale": self._limits.online_window,
                        "new": int(new),
                        "reward": reward,
                        "stretch": self._limits.uptime_stretch,
                        "trusted_ms": account.trusted_ms if account.trusted else 0,
                        "event": codec.encode(event),
                    },
                )
            except Refusal as refusal:
                if refusal.word == "OTHER_ID":
                    worker_id, new, called = refusal.details[0].decode(), False, name
                    continue
                # Whom the name led to may have another one by now, or be gone.
                before, (worker_id, new) = worker_id, await self._claimed(account, name)
                if worker_id != before:
                    called = name
                elif refusal.word == "RENAMED":  # of two names, one is not free or not its own yet
                    called = refusal.details[0].decode()
                elif refusal.word == "GONE":
                    raise SettlerBehind("The name's last worker was just deleted.") from refusal
                else:
                    raise WrongCredentials(
                        "The worker name belongs to another account. "
                        "Choose another name, or use its owner's API key."
                    ) from refusal
                continue
            speed = int(measured) / 1000 if measured else None
            self._known[name] = _Known(worker_id, speed)
            if len(self._known) > NAMES_KEPT:
                self._known.popitem(last=False)
            return Worker(
                worker_id,
                called,
                account,
                maintenance == b"1",
                paused == b"1",
                speed,
                message.decode(),
            )
        raise RedisUnavailable

    def _registered(self, worker_id: str, name: str) -> list[str]:
        """The key of the name's claim, where it is in the worker's partition: that of every worker
        that has the name which it came with."""
        keys = self._log.keys
        here = keys.of(name_hash(name)) == keys.of(worker_id)
        return [keys.worker_name(name)] if here else []

    async def _claimed(self, account: Account, name: str) -> tuple[str, bool]:
        """The id that holds the name, or a new one in the name's own partition, so that one script
        can claim it; and whether it is new."""
        claim = await self._log.read("GET", self._log.keys.worker_name(name))
        if claim:
            return claim.decode(), False
        await self._newcomers.admit(account, name)
        return str(uuid.uuid4())[:-4] + name_hash(name)[-4:], True


async def assign(
    log: Log,
    limits: Limits,
    worker: Worker,
    declaration: Declaration,
    request_id: str,
    model: str,
    overrun: Overrun | None = None,
    *,
    validated: bool = False,
) -> Assignment | None:
    """Try to give the worker one job of a request; None where it no longer waits.

    `validated`: whether the worker's backend is (text_path_reference.md, 13). `overrun` is given
    for what is told of, and handed out all the same.

    The job is the worker's only when this returns it. A try whose fate is unknown, or whose payload
    is gone, is given back behind the caller's back. Raise RedisUnavailable.
    """
    keys = log.keys
    partition = keys.of(request_id)
    generation_id = keys.new_id_beside(request_id)
    cap = limits.lease_cap_of(worker.owner)
    event = Assigned(
        request_id=request_id,
        generation_id=generation_id,
        worker_id=worker.id,
        worker_name=worker.name,
        owner_id=worker.owner.id,
        model=model,
        max_length=declaration.chat_max_length or declaration.max_length,
        max_context_length=declaration.chat_max_context_length or declaration.max_context_length,
        job_ttl=limits.text_job_lease,
        lease_cap=cap,
        trusted=worker.owner.trusted,
        over_capacity=0 if overrun is None else overrun.max_length,
        validated=validated,
    )
    # In the same turn, and so in the same round trip: the content of a request never changes.
    reading = asyncio.ensure_future(
        log.read("HMGET", keys.content(request_id), "messages", "payload")
    )
    try:
        position, assigned_ms, transport, stream, *request = await log.run(
            "assign",
            partition,
            {
                "request": keys.request(request_id),
                "generation": keys.generation(generation_id),
                "content": keys.content(request_id),
                "lease": keys.lease(generation_id),
                "due_lease": keys.due(partition, "lease"),
                "due_request": keys.due(partition, "request"),
            },
            {
                "request_id": request_id,
                "worker_id": worker.id,
                "owner_id": worker.owner.id,
                "model": model,
                "job_ttl": limits.text_job_lease,
                "lease_cap": cap,
                "key": worker.owner.progress_key,
                "trusted": int(worker.owner.trusted),
                "bytes_per_token": limits.progress_bytes_per_token,
                "grace": limits.progress_lease_grace,
                "content_ttl": limits.content_ttl,
                "most": limits.generations,
                **transports(declaration),
                "event": codec.encode(event),
            },
        )
        messages, payload = await reading
    except RedisUnavailable:
        log.later(persist(lambda: give_back(log, request_id, generation_id)))
        raise
    except Refusal as refusal:
        if refusal.word == "LOST":
            await expire(log, limits, request_id)
        return None
    finally:
        reading.cancel()
    if messages is None or payload is None:
        await give_back(log, request_id, generation_id)
        await expire(log, limits, request_id)
        return None
    logger.info(
        "assigned",
        request_id=request_id,
        generation_id=generation_id,
        position=position.decode(),
        worker_id=worker.id,
    )
    created_ms, user_id, shared_key, max_length, chat = request
    metrics.queue_wait(
        (int(assigned_ms) - int(created_ms)) / 1000,
        metrics.requester(anonymous=int(user_id) == ANONYMOUS_ID, shared_key=shared_key != b""),
        int(max_length),
        chat=chat == b"1",
    )
    if overrun is not None:
        logger.info(
            "assigned_over_capacity",
            request_id=request_id,
            generation_id=generation_id,
            worker_id=worker.id,
            **overrun._asdict(),
        )
        metrics.gate_shadow_assignment(overrun.max_length, trusted=worker.owner.trusted)
    return Assignment(
        request_id,
        generation_id,
        model,
        limits.text_job_lease,
        stream == b"1",
        bytes(messages),
        bytes(payload),
        Position.parse(position),
        transport.decode(),
    )


async def give_back(log: Log, request_id: str, generation_id: str) -> None:
    """Put a job back into the queue without blame.

    Repeating it, or giving back an ended job, changes nothing.
    """
    keys = log.keys
    partition = keys.of(request_id)
    try:
        (position,) = await log.run(
            "give_back",
            partition,
            {
                "request": keys.request(request_id),
                "generation": keys.generation(generation_id),
                "lease": keys.lease(generation_id),
                "due_lease": keys.due(partition, "lease"),
            },
            {"event": codec.encode(Returned(request_id=request_id, generation_id=generation_id))},
        )
    except Refusal:
        return
    logger.info(
        "returned", request_id=request_id, generation_id=generation_id, position=position.decode()
    )
