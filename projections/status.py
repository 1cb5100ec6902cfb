"""What the status routes answer: rows, completion signals and queries."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from events import faults
from events import keys as key_names
from events.base import START, Event, Position, Recorded
from events.keys import Keys
from events.settlements import settlements
from events.types import (
    Assigned,
    Cancelled,
    Demand,
    Expired,
    Faulted,
    Progressed,
    Refused,
    Returned,
    Submitted,
    SubmittedReply,
)
from projections.changes import Document, Row, Rows, bounded
from projections.database import Database
from projections.log import Log
from projections.projection import Projected, Projection, Signal

NAME = "status"

OUTPUT_ESTIMATE = "output_estimate"
"""What a chat reply is charged by: its characters, not what its worker counted (spec, Pricing)."""

_MAY_END = (SubmittedReply, Returned, Faulted, Cancelled)


# rows


FOLDS: frozenset[type[Event]] = frozenset(
    {
        *(Submitted, Assigned, Progressed, SubmittedReply, Returned),
        *(Refused, Faulted, Cancelled, Expired),
    }
)


def fold(batch: Sequence[Recorded]) -> Document:  # noqa: PLR0912 - a case an event
    """Events to changes of `waiting_prompts` and `processing_gens`.

    A request's rows end with `expired`; a generation that was returned never was, for those who
    asked.
    """
    prompts, gens = Rows("id"), Rows("id")
    ended: dict[str, None] = {}
    for recorded in batch:
        event, ms = recorded.event, recorded.position.ms
        if isinstance(event, Expired) or (isinstance(event, _MAY_END) and event.done):
            ended[event.request_id] = None
        match event:
            case Submitted():
                prompts.insert(event.request_id, _prompt(event, recorded))
            case Assigned():
                gens.insert(event.generation_id, _generation(event, recorded))
                prompts.update(event.request_id, {"touched_ms": ms})
            case Progressed():
                gens.update(event.generation_id, {"job_ttl": event.job_ttl})
            case SubmittedReply():
                gens.update(event.generation_id, _reply(event, ms))
                prompts.update(event.request_id, {"touched_ms": ms} | _done(event.done))
            case Returned():
                gens.delete(event.generation_id)
                prompts.update(event.request_id, _done(event.done))
            case Refused():
                gens.update(event.generation_id, {"chat_refusal_rc": event.rc})
                prompts.update(event.request_id, _fault(event.rc))
            case Faulted():
                lease: Row = {"job_ttl": event.job_ttl} if event.job_ttl else {}
                gens.update(event.generation_id, {"state": "faulted", "finished_ms": ms} | lease)
                faulted: Row = {"faulted": True} if event.exhausted else {}
                why = _fault(event.fault_rc, event.fault_code) if event.fault_rc else {}
                prompts.update(event.request_id, faulted | why | _done(event.done))
            case Cancelled():
                # One that was written before cancels were paid for charges nothing.
                charges = {job.generation_id: job.price + event.burn for job in settlements(event)}
                for generation_id, characters in zip(event.settled, event.characters, strict=True):
                    charge = charges.get(generation_id, 0)
                    gens.update(generation_id, _settled(characters, charge, ms))
                prompts.update(event.request_id, {"cancelled": True} | _done(event.done))
            case Expired():
                for generation_id in event.generations:
                    gens.delete(generation_id)
                prompts.delete(event.request_id)
            case _:  # workers, accounts and admissions
                pass
    tables = {"waiting_prompts": prompts.document(), "processing_gens": gens.document()}
    document: Document = {table: changes for table, changes in tables.items() if changes}
    if ended:
        document["requests"] = list(ended)  # for those who wait; the database does not look at it
    return document


def _prompt(event: Submitted, recorded: Recorded) -> Row:
    demand, ms = event.data, recorded.position.ms
    return {
        "partition": recorded.partition,
        "user_id": event.user_id,
        "is_chat": event.chat,
        "jobs": event.jobs,
        "max_length": bounded(event.max_length),
        "max_context_length": bounded(demand.max_context_length),
        "models": demand.models,
        "chat_required_features": demand.features,
        "chat_conformance": demand.conformance,
        "chat_tools_temperature": demand.tools_temperature,
        "images": demand.images,
        "only_workers": demand.only,
        "ignore_workers": demand.ignore,
        "trusted_workers": demand.trusted_workers,
        "validated_backends": demand.validated_backends,
        "slow_workers": demand.slow_workers,
        "stream": event.stream,
        "ttl": event.ttl,
        "created_ms": ms,
        "touched_ms": ms,
        "cancelled": False,
        "faulted": False,
        "done": False,
        "context_adjustments": demand.context_adjustments or None,
        "tax": event.tax,
        "chat_messages_offloaded": event.offloaded,
    }


def _generation(event: Assigned, recorded: Recorded) -> Row:
    return {
        "partition": recorded.partition,
        "wp_id": event.request_id,
        "worker_id": event.worker_id,
        "worker_name": event.worker_name,
        "owner_id": event.owner_id,
        "model": event.model,
        "assigned_model": event.model,
        "assigned_max_context_length": bounded(event.max_context_length),
        "assigned_max_length": bounded(event.max_length),
        "job_ttl": event.job_ttl,
        "created_ms": recorded.position.ms,
        "created_seq": recorded.position.seq,
        "state": "pending",
        "cancelled": False,
        "charge": 0,
        "image_transport": event.image_transport or None,
    }


def _reply(event: SubmittedReply, ms: int) -> Row:
    usage = event.data
    counts = {
        name: None if count is None else bounded(count)
        for name, count in (
            ("prompt_tokens", usage.prompt_tokens),
            ("completion_tokens", usage.completion_tokens),
            ("reasoning_tokens", usage.reasoning_tokens),
        )
    }
    return {
        "state": "finished",
        "result_state": event.state,
        "seed": bounded(event.seed),
        "finish_reason": event.finish_reason or None,  # a text job has none
        "native_finish_reason": usage.native_finish_reason,
        "charge_basis": OUTPUT_ESTIMATE if event.finish_reason else None,
        "charge": event.charge,
        "finished_ms": ms,
    } | counts


def _settled(characters: int, charge: int, ms: int) -> Row:
    return {
        "state": "faulted",
        "cancelled": True,
        "settled_character_count": bounded(characters),
        "charge": charge,
        "finished_ms": ms,
    }


def _fault(rc: str, code: str = "") -> Row:
    """Why a job of the request failed last: the return code, and the worker's own reason."""
    return {"chat_fault_rc": rc, "chat_fault_code": code or None}


def _done(done: bool) -> Row:
    return {"done": True} if done else {}


# what is announced


class _Completion(msgspec.Struct, frozen=True):
    """The completion signal of the specification. Never carries generated text."""

    id: str
    event: str  # generation, done, cancelled, faulted
    generations: int  # replies stored
    fault_reason: str | UnsetType = UNSET
    fault_rc: str | UnsetType = UNSET


class _Word(NamedTuple):
    """What is to be announced of a request."""

    request_id: str
    event: str
    generations: int
    fault_rc: str = ""
    fault_code: str = ""

    @property
    def quotes(self) -> bool:
        """Whether what its worker was told is told with it: that is content."""
        return bool(self.fault_rc) and not self.fault_code


_encode = msgspec.json.Encoder().encode


def _hints(position: str, document: Document, _came_back: Sequence[str]) -> Projected:
    return Projected(position=position, requests=tuple(document.get("requests", ())))


def _signals(batch: Sequence[Recorded], log: Log) -> list[Signal]:
    """The completion signals of committed events, in order."""
    words = [word for recorded in batch for word in _words(recorded)]
    quoting = [word.request_id for word in words if word.quotes]
    reasons = dict(zip(quoting, log.fault_reasons(quoting), strict=True))
    return [
        Signal(key_names.channel(word.request_id), _encode(_completion(word, reasons)))
        for word in words
    ]


def _completion(word: _Word, reasons: Mapping[str, str | None]) -> _Completion:
    reason = faults.MESSAGES.get(word.fault_code) or reasons.get(word.request_id)
    return _Completion(
        word.request_id,
        word.event,
        word.generations,
        fault_reason=reason or UNSET,
        fault_rc=word.fault_rc or UNSET,
    )


def _words(recorded: Recorded) -> Iterable[_Word]:
    event = recorded.event
    match event:
        case SubmittedReply():
            yield _Word(event.request_id, "generation", event.finished)
            if event.done:
                yield _Word(event.request_id, "done", event.finished)
        case Cancelled():
            yield _Word(event.request_id, "cancelled", event.finished)
        case Faulted(exhausted=True) | Expired(done=True):  # an expiry that ended nothing is silent
            yield _Word(
                event.request_id, "faulted", event.finished, event.fault_rc, event.fault_code
            )


STATUS = Projection(
    name=NAME,
    tables=("waiting_prompts", "processing_gens"),
    write="status_write",
    fold=fold,
    folds=FOLDS,
    hints=_hints,
    signals=_signals,
)


# queries


class GenerationRow(NamedTuple):
    """One generation as it was last projected. Times are milliseconds of the Redis clock."""

    id: str
    worker_id: str
    worker_name: str
    model: str
    assigned_max_length: int
    assigned_max_context_length: int
    state: str  # pending, finished, faulted
    cancelled: bool
    result_state: str | None  # ok, censored, csam
    seed: int | None
    finish_reason: str | None
    native_finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    charge_basis: str | None
    settled_character_count: int | None
    job_ttl: int  # seconds
    created_ms: int  # the assignment
    finished_ms: int | None
    charge: int  # 10^-4 kudos


class StatusRow(NamedTuple):
    """One request as it was last projected, its generations in the order of their assignment."""

    id: str
    user_id: int
    chat: bool
    jobs: int
    max_length: int
    stream: bool
    created_ms: int
    expires_ms: int
    cancelled: bool
    faulted: bool
    done: bool
    demand: Demand
    context_adjustments: bytes | None
    """What of it was changed, JSON; None: nothing."""
    fault_rc: str | None
    """Why its last job failed, where a reply was refused or its worker told."""
    fault_code: str | None
    """The worker's reason, a word of events/faults.py; None with a refusal: that is content."""
    tax: int
    """10^-4 kudos that it was charged when it was taken."""
    generations: tuple[GenerationRow, ...]

    @property
    def charged(self) -> int:
        """10^-4 kudos that it was charged so far: its tax, its replies, and what of its cancelled
        generations was paid for."""
        return self.tax + sum(each.charge for each in self.generations)

    @property
    def delivered(self) -> tuple[GenerationRow, ...]:
        """The generations with a stored reply."""
        return tuple(each for each in self.generations if each.state == "finished")

    @property
    def finished(self) -> int:
        """Replies stored."""
        return len(self.delivered)

    @property
    def processing(self) -> int:
        """Jobs that a worker holds."""
        return self._count("pending")

    @property
    def restarted(self) -> int:
        """Jobs that failed, or were settled by a cancel."""
        return self._count("faulted")

    @property
    def waiting(self) -> int:
        """Jobs that may still be handed out."""
        if self.cancelled or self.faulted or self.done:
            return 0
        return max(0, self.jobs - self.finished - self.processing)

    def queue_wait_seconds(self, generation: GenerationRow) -> float:
        """Seconds from the submit until this job was assigned."""
        return (generation.created_ms - self.created_ms) / 1000

    def _count(self, state: str) -> int:
        return sum(generation.state == state for generation in self.generations)


class Read(NamedTuple):
    """What the model knows of a request, and how far it has come in the log that the request is in.

    Without a row and with a checkpoint that has reached the request's last position, there is no
    such request.
    """

    row: StatusRow | None
    checkpoint: Position


_LOAD = b"""
SELECT asked.id::text, c.position_ms, c.position_seq,
    w.id IS NOT NULL, w.user_id, w.is_chat, w.jobs, w.max_length, w.stream, w.created_ms,
    w.touched_ms + w.ttl::bigint * 1000, w.cancelled, w.faulted, w.done,
    w.models, w.max_context_length, w.chat_required_features, w.chat_conformance,
    w.chat_tools_temperature, w.images, w.only_workers, w.ignore_workers, w.trusted_workers,
    w.validated_backends, w.slow_workers, w.context_adjustments::text, w.chat_fault_rc,
    w.chat_fault_code, w.tax,
    g.id::text, g.worker_id::text, g.worker_name, g.model, g.assigned_max_length,
    g.assigned_max_context_length, g.state, g.cancelled, g.result_state, g.seed, g.finish_reason,
    g.native_finish_reason, g.prompt_tokens, g.completion_tokens, g.reasoning_tokens,
    g.charge_basis, g.settled_character_count, g.job_ttl, g.created_ms, g.finished_ms,
    g.charge
FROM unnest(%s::uuid[], %s::int[]) AS asked (id, partition)
LEFT JOIN checkpoints c ON c.name = 'status' AND c.partition = asked.partition
LEFT JOIN waiting_prompts w ON w.id = asked.id
LEFT JOIN processing_gens g ON g.wp_id = w.id
ORDER BY g.created_ms, g.created_seq
"""


async def load(database: Database, keys: Keys, request_ids: Sequence[str]) -> dict[str, Read]:
    """Every id asked for, by one statement: one moment for rows and checkpoints.

    Ids are UUID text in lower case. Raise DatabaseUnavailable without an answer in time.
    """
    partitions = [keys.of(request_id) for request_id in request_ids]
    rows = await database.fetch(_LOAD, (list(request_ids), partitions))
    first: dict[str, tuple[Any, ...]] = {}
    generations: dict[str, list[GenerationRow]] = {}
    for row in rows:
        first.setdefault(row[0], row)
        gens = generations.setdefault(row[0], [])
        if row[29] is not None:
            gens.append(GenerationRow(*row[29:]))
    return {id_: _read(row, tuple(generations[id_])) for id_, row in first.items()}


def _read(row: tuple[Any, ...], generations: tuple[GenerationRow, ...]) -> Read:
    (
        id_,
        position_ms,
        position_seq,
        exists,
        user_id,
        chat,
        jobs,
        max_length,
        stream,
        created_ms,
    ) = row[:10]
    position = START if position_ms is None else Position(position_ms, position_seq)
    if not exists:
        return Read(None, position)
    (expires_ms, cancelled, faulted, done) = row[10:14]
    return Read(
        StatusRow(
            id_,
            user_id,
            chat,
            jobs,
            max_length,
            stream,
            created_ms,
            expires_ms,
            cancelled,
            faulted,
            done,
            _demand(row[14:25]),
            None if row[25] is None else row[25].encode(),
            row[26],
            row[27],
            row[28],
            generations,
        ),
        position,
    )


def _demand(columns: tuple[Any, ...]) -> Demand:
    (models, context, features, conformance, temperature, images) = columns[:6]
    (only, ignore, trusted, validated, slow) = columns[6:]
    return Demand(
        models=tuple(models),
        max_context_length=context,
        features=tuple(features),
        conformance=conformance,
        tools_temperature=temperature,
        images=images,
        only=tuple(only),
        ignore=tuple(ignore),
        trusted_workers=trusted,
        validated_backends=validated,
        slow_workers=slow,
    )


class StatusLoader:
    """Gathers the requests asked for in one turn of the event loop into one statement."""

    def __init__(self, database: Database, keys: Keys) -> None:
        self._database = database
        self._keys = keys
        self._asked: dict[str, asyncio.Future[Read]] = {}
        self._batches: set[asyncio.Task[None]] = set()

    async def get(self, request_id: str) -> Read:
        """What the model knows of this request now. Raises as `load` does."""
        request_id = str(uuid.UUID(request_id))  # one malformed id must not fail the others
        answer = self._asked.get(request_id)
        if answer is None:
            loop = asyncio.get_running_loop()
            if not self._asked:
                loop.call_soon(self._flush)
            answer = self._asked[request_id] = loop.create_future()
        return await asyncio.shield(answer)  # others may wait for the same

    def _flush(self) -> None:
        asked, self._asked = self._asked, {}
        task = asyncio.get_running_loop().create_task(self._load(asked))
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    async def _load(self, asked: dict[str, asyncio.Future[Read]]) -> None:
        try:
            found = await load(self._database, self._keys, list(asked))
        except Exception as error:  # noqa: BLE001 - belongs to those who asked
            for answer in asked.values():
                answer.set_exception(error)
                answer.exception()  # whoever asked may be gone
            return
        for request_id, answer in asked.items():
            answer.set_result(found[request_id])
