"""What a status answer says, and reading it so that nobody sees less than their own write.

Hot state decides whether a request exists, the read model says what became of it, the content hash
holds the replies (design section 6, *Status*). Chat and text requests are two families: each is
unknown to the other's routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from api.availability import Availability, Queue
from api.clock import Clock
from events import faults
from events.base import KUDOS, Position
from events.types import Adjustment
from handlers.chat import estimate
from handlers.errors import (
    DatabaseUnavailable,
    ReadModelBehind,
    RedisUnavailable,
    RequestNotFound,
    Unserved,
)
from handlers.log import Log
from handlers.text.reply import CSAM, Metadata, stored
from projections import database
from projections.follow import Follower
from projections.rules import UNMEASURED_SPEED, Wanted
from projections.servers import Gap, Servers
from projections.status import GenerationRow, Read, StatusLoader, StatusRow

_adjustments = msgspec.json.Decoder(list[Adjustment])
NO_CONTENT = "The replies cannot be read right now. Ask again in a moment."

Replies = Mapping[str, bytes | None]
"""What content keeps of each delivered generation, by its id, and of the last refusal, as FAULT;
None where that is gone."""

FAULT = "fault_reason"


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What a status tells of every reply (text_path_reference.md section 4)."""

    id: str
    worker_id: str
    worker_name: str
    model: str
    seed: int
    state: str  # ok, censored, csam
    gen_metadata: list[Metadata]


class ChatGeneration(Generation, frozen=True, kw_only=True):
    """One delivered reply of a chat request (spec, Pricing)."""

    message: Raw
    """As the worker submitted it. Null only while Redis is away; then the answer says so."""
    finish_reason: str | None
    native_finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    charge_basis: str | None
    queue_wait_seconds: float


class TextGeneration(Generation, frozen=True, kw_only=True):
    """One delivered reply of a text request."""

    text: str | None
    """Null only while Redis is away; then the answer says so."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What a status tells of every request."""

    finished: int
    processing: int
    restarted: int
    waiting: int
    done: bool
    faulted: bool
    wait_time: int  # seconds
    queue_position: int
    kudos: float
    """Charged so far."""
    is_possible: bool
    eligible_workers: int
    eligible_worker_threads: int
    might_stall: bool
    """Jobs wait, and no online worker may take one."""
    message: str | UnsetType = UNSET
    """What this answer leaves out, and why."""


class ImpossibleReason(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="declaration_gap"
):
    """What no online worker that serves the model declares."""

    missing_declarations: list[str]
    exceeded_limits: list[str]


class ChatStatus(Status, frozen=True, kw_only=True):
    """The body of a chat request's status."""

    generations: list[ChatGeneration]
    impossible_reason: ImpossibleReason | None
    """Why no worker may take it and nothing is in process, where that is the workers' declarations
    (spec, Impossible reason)."""
    context_adjustments: list[Adjustment] | None
    """In the order in which they were made; null where nothing was changed."""
    fault_reason: str | None
    """Of a faulted request: what its worker was told of the last refused reply, or why the worker
    gave up. Null where neither is known."""
    fault_rc: str | None
    """The return code of that refusal, or ChatWorkerFault."""


class TextStatus(Status, frozen=True, kw_only=True):
    """The body of a text request's status."""

    generations: list[TextGeneration]


class Hot(NamedTuple):
    """A request as hot state has it."""

    position: Position
    generations: tuple[str, ...]
    done: bool
    user_id: int
    jobs: int
    shared_key: str
    """With which it was submitted; empty where that was its account's own."""


class Reading(NamedTuple):
    """A status, and the position of the last event that it is sure to show."""

    status: Status
    position: Position | None


class _Outlook(NamedTuple):
    """What may become of a request that is not done."""

    is_possible: bool
    workers: int
    threads: int
    queue_position: int
    wait_time: int
    might_stall: bool
    gap: Gap | None = None


class Family(NamedTuple):
    """How requests of one kind are told."""

    chat: bool
    shape: Callable[[StatusRow, _Outlook, Replies, str | UnsetType], Status]
    """From the row, what may become of it, its replies, and what the answer leaves out."""


class StatusReader:
    """Reads and shapes the status of one request of its family at a time."""

    def __init__(
        self,
        family: Family,
        log: Log,
        loader: StatusLoader,
        follower: Follower,
        availability: Availability,
        queue: Queue,
        clock: Clock,
        *,
        stale_seconds: float,
        wait_seconds: float,
    ) -> None:
        self._family = family
        self._log = log
        self._loader = loader
        self._follower = follower
        self._availability = availability
        self._queue = queue
        self._clock = clock
        self._stale_seconds = stale_seconds
        self._wait_seconds = wait_seconds

    async def hot(self, request_id: str) -> Hot:
        """Whether there is such a request. Raise RequestNotFound, RedisUnavailable."""
        state, chat, position, generations, user, jobs, shared_key = await self._log.read(
            "HMGET",
            self._log.keys.request(request_id),
            "state",
            "chat",
            "position",
            "generations",
            "user",
            "jobs",
            "shared_key",
        )
        if state is None or state == b"abandoned" or (chat == b"1") != self._family.chat:
            raise RequestNotFound
        known = generations.decode()
        ids = tuple(known.split(",")) if known else ()
        return Hot(
            Position.parse(position),
            ids,
            state == b"done",
            int(user),
            int(jobs),
            (shared_key or b"").decode(),
        )

    async def read(self, request_id: str, hot: Hot | None = None) -> Reading:
        """The status, never older than what was acknowledged before the call.

        `hot` is what the caller has just read of it. Raise RequestNotFound, RedisUnavailable,
        DatabaseUnavailable, ReadModelBehind. With Redis away, what Postgres knows of the request is
        answered, without content.
        """
        try:
            hot = hot or await self.hot(request_id)
        except RedisUnavailable as away:
            return Reading(await self._without_redis(request_id, away), None)
        row, replies = await asyncio.gather(
            self._caught_up(request_id, hot.position), self._replies(request_id, hot.generations)
        )
        finished = row.delivered
        # Since the first look at hot state more may have come in.
        missing = [each.id for each in finished if replies.get(each.id) is None]
        if missing:
            replies = {**replies, **await self._replies(request_id, missing)}
        if any(replies.get(each.id) is None for each in finished):
            raise RequestNotFound  # it expired meanwhile, or its content was lost
        if row.faulted and row.fault_rc and not row.fault_code:
            content = self._log.keys.content(request_id)
            replies = {**replies, FAULT: await self._log.read("HGET", content, FAULT)}
        status = self._family.shape(row, await self._outlook(row), replies, UNSET)
        return Reading(status, hot.position)

    async def _replies(self, request_id: str, generation_ids: Sequence[str]) -> Replies:
        if not generation_ids:
            return {}
        fields = [f"reply:{each}" for each in generation_ids]
        replies = await self._log.read("HMGET", self._log.keys.content(request_id), *fields)
        return dict(zip(generation_ids, replies, strict=True))

    async def _caught_up(self, request_id: str, position: Position) -> StatusRow:
        """The row, once the model shows the request's last event."""
        partition = self._log.keys.of(request_id)
        place = ("status", partition)
        for _ in range(2):
            still = self._follower.stands_still(*place, position, self._stale_seconds)
            if not still:
                await self._follower.reached(*place, position, self._wait_seconds)
            read = await self._load(request_id)
            if read.checkpoint >= position:
                if read.row is None:  # it expired between the two reads
                    raise RequestNotFound
                return read.row
            if still:
                break
        raise ReadModelBehind

    async def _load(self, request_id: str) -> Read:
        try:
            return await self._loader.get(request_id)
        except database.DatabaseUnavailable as error:
            raise DatabaseUnavailable from error

    async def _without_redis(self, request_id: str, away: RedisUnavailable) -> Status:
        try:
            async with asyncio.timeout(self._wait_seconds):
                read = await self._load(request_id)
        except (DatabaseUnavailable, TimeoutError):
            raise away from None
        row = read.row
        if row is None or row.chat != self._family.chat:
            raise away  # it may be newer than the model
        outlook = _unknown(is_possible=row.done or row.processing > 0)
        return self._family.shape(row, outlook, {}, NO_CONTENT)

    async def _outlook(self, row: StatusRow) -> _Outlook:
        if row.done:
            return _unknown(is_possible=not row.faulted)
        wanted = Wanted.of(
            row.demand, user_id=row.user_id, chat=row.chat, max_length=row.max_length
        )
        try:
            servers = await self._availability.servers(wanted)
            position, seconds = await self._place(row, servers)
        except (Unserved, database.DatabaseUnavailable):
            # An estimate: its lack is no reason to hold the answer back.
            return _unknown(is_possible=row.processing > 0)
        return _Outlook(
            servers.workers > 0 or row.processing > 0,
            servers.workers,
            servers.threads,
            position,
            round(seconds + self._remaining(row, servers)),
            might_stall=row.waiting > 0 and not servers.threads,
            gap=None if row.processing else servers.gap,
        )

    async def _place(self, row: StatusRow, servers: Servers) -> tuple[int, float]:
        """Where the request stands in the queue, and the seconds until its turn is over."""
        if not row.waiting:
            return 0, 0.0
        snapshot = await self._queue.snapshot(row.id)
        ahead = snapshot.ahead(row.id, servers.reaches)
        seconds = estimate.queue_seconds(
            ahead.tokens + row.max_length * row.waiting,
            ahead.jobs + row.waiting,
            servers.threads,
            servers.tokens_per_second,
        )
        return snapshot.position(row.id), seconds

    def _remaining(self, row: StatusRow, servers: Servers) -> float:
        now_ms = self._clock.estimate_ms()
        return max(
            (
                estimate.remaining_seconds(
                    row.max_length,
                    (now_ms - each.created_ms) / 1000,
                    servers.speeds.get(each.worker_id, UNMEASURED_SPEED),
                )
                for each in row.generations
                if each.state == "pending"
            ),
            default=0.0,
        )


def _unknown(*, is_possible: bool) -> _Outlook:
    """The outlook where nothing waits, or who could serve it cannot be said now."""
    return _Outlook(is_possible, 0, 0, 0, 0, might_stall=False)


def _chat(
    row: StatusRow, outlook: _Outlook, replies: Replies, message: str | UnsetType
) -> ChatStatus:
    generations = [
        ChatGeneration(
            **_delivered(each),
            message=Raw(replies.get(each.id) or b"null"),
            finish_reason=each.finish_reason,
            native_finish_reason=each.native_finish_reason,
            prompt_tokens=each.prompt_tokens,
            completion_tokens=each.completion_tokens,
            reasoning_tokens=each.reasoning_tokens,
            charge_basis=each.charge_basis,
            queue_wait_seconds=row.queue_wait_seconds(each),
            gen_metadata=[CSAM] if each.result_state == CSAM.value else [],
        )
        for each in row.delivered
    ]
    return ChatStatus(
        **_standing(row, outlook, message),
        generations=generations,
        impossible_reason=impossible(outlook.gap),
        context_adjustments=None
        if row.context_adjustments is None
        else _adjustments.decode(row.context_adjustments),
        fault_reason=_fault_reason(row, replies),
        fault_rc=row.fault_rc if row.faulted else None,
    )


def _fault_reason(row: StatusRow, replies: Replies) -> str | None:
    if not row.faulted:
        return None
    if row.fault_code:
        return faults.MESSAGES.get(row.fault_code)
    told = replies.get(FAULT)
    return None if told is None else told.decode()


def impossible(gap: Gap | None) -> ImpossibleReason | None:
    """The gap as it is told."""
    if gap is None:
        return None
    return ImpossibleReason(
        missing_declarations=list(gap.missing), exceeded_limits=list(gap.exceeded)
    )


def _text(
    row: StatusRow, outlook: _Outlook, replies: Replies, message: str | UnsetType
) -> TextStatus:
    generations = []
    for each in row.delivered:
        raw = replies.get(each.id)
        reply = None if raw is None else stored(raw)
        generations.append(
            TextGeneration(
                **_delivered(each),
                text=None if reply is None else reply.text,
                gen_metadata=[] if reply is None else reply.gen_metadata,
            )
        )
    return TextStatus(**_standing(row, outlook, message), generations=generations)


CHAT = Family(True, _chat)
TEXT = Family(False, _text)


def _delivered(each: GenerationRow) -> dict[str, Any]:
    return {
        "id": each.id,
        "worker_id": each.worker_id,
        "worker_name": each.worker_name,
        "model": each.model,
        "seed": each.seed or 0,
        "state": each.result_state or "ok",
    }


def _standing(row: StatusRow, outlook: _Outlook, message: str | UnsetType) -> dict[str, Any]:
    return {
        "finished": row.finished,
        "processing": row.processing,
        "restarted": row.restarted,
        "waiting": row.waiting,
        "done": row.done,
        "faulted": row.faulted,
        "wait_time": outlook.wait_time,
        "queue_position": outlook.queue_position,
        "kudos": row.charged / KUDOS,
        "is_possible": outlook.is_possible,
        "eligible_workers": outlook.workers,
        "eligible_worker_threads": outlook.threads,
        "might_stall": outlook.might_stall,
        "message": message,
    }
