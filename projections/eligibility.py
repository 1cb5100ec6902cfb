"""What waits and who may take it: rows, rules, and the queries of pop and submit.

The rules stand here twice. `fits` has all of them, on one request and one worker. The candidate
query has those that a whole class of workers shares (an `Offer`), because a pop must find the few
rows that fit in a long queue without walking it. A test compares the two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence, Set
from hashlib import blake2s
from typing import Any, NamedTuple
from uuid import UUID

from events.base import Recorded
from events.types import (
    Assigned,
    Cancelled,
    CheckedIn,
    Declaration,
    Demand,
    Expired,
    Faulted,
    Returned,
    Submitted,
    SubmittedReply,
    WorkerAborted,
    WorkerChanged,
    WorkerDeleted,
    WorkerMeasured,
    WorkerNonconformant,
    WorkerRenamed,
)
from projections.changes import Document, Row, Rows, bounded
from projections.database import Database
from projections.projection import Projected, Projection

NAME = "eligibility"

ANY_MODEL = ""
"""The model of a text request that names none."""

IMAGE_TRANSPORTS = frozenset({"url", "base64"})

UNMEASURED_SPEED = 10.0
"""Tokens a second that a worker without a measured speed is taken to make."""


# rows


def fold(batch: Sequence[Recorded]) -> Document:  # noqa: PLR0912 - a case an event
    """Events to changes of `queue` and `workers`.

    A request's rows live until it hands out no more jobs: done, cancelled or expired. One that is
    all assigned stays, with nothing waiting, since a fault may bring a job back.
    """
    requests = Rows("request_id")
    workers = _Workers()
    for recorded in batch:
        event, ms = recorded.event, recorded.position.ms
        match event:
            case Submitted():
                requests.insert(event.request_id, _request(event, recorded))
            case Assigned():
                requests.update(event.request_id, {"waiting": event.waiting, "touched_ms": ms})
            case SubmittedReply():
                requests.update(event.request_id, {"touched_ms": ms})
            case Returned():
                requests.update(event.request_id, {"waiting": event.waiting, "came_back": True})
            case Faulted():
                requests.update(event.request_id, _fault(event, ms))
            case CheckedIn():
                workers.check_in(event.worker_id, _worker(event, recorded))
            case WorkerChanged():
                workers.change(event.worker_id, _changed(event))
            case WorkerRenamed():
                workers.change(event.worker_id, {"name": event.name})
            case WorkerDeleted():
                workers.delete(event.worker_id)
            case WorkerAborted():
                workers.abort(event.worker_id)
                if event.maintenance_msg:
                    told = {"maintenance": True, "maintenance_msg": event.maintenance_msg}
                    workers.change(event.worker_id, told)
            case WorkerNonconformant():
                workers.nonconform(event.worker_id)
            case WorkerMeasured():
                workers.measure(event.worker_id, event.speed / 1000)
            case _:
                pass
        if isinstance(event, Cancelled | Expired) or (
            isinstance(event, SubmittedReply | Returned | Faulted) and event.done
        ):
            requests.delete(event.request_id)
    parts = {"queue": requests.document()} | workers.document()
    return {name: part for name, part in parts.items() if part}


class _Workers:
    """Changes of `workers`.

    A worker may go and come back under its id within one batch: it goes first.
    """

    def __init__(self) -> None:
        self._declared: dict[str, Row] = {}
        self._changed: dict[str, Row] = {}
        self._aborts: dict[str, int] = {}
        self._nonconformant: dict[str, int] = {}
        self._speeds: dict[str, float] = {}
        self._gone: dict[str, None] = {}

    def check_in(self, id_: str, row: Row) -> None:
        """What it declares now; it stays as old as it is."""
        earlier = self._declared.get(id_)
        if earlier:
            row["created_ms"] = earlier["created_ms"]
        self._declared[id_] = row

    def change(self, id_: str, columns: Row) -> None:
        """New values of some columns."""
        self._changed.setdefault(id_, {"id": id_}).update(columns)

    def abort(self, id_: str) -> None:
        """One more dropped job."""
        self._aborts[id_] = self._aborts.get(id_, 0) + 1

    def nonconform(self, id_: str) -> None:
        """One more job that ended on a reply that broke its request's contract."""
        self._nonconformant[id_] = self._nonconformant.get(id_, 0) + 1

    def measure(self, id_: str, speed: float) -> None:
        """How fast it is now, in tokens a second."""
        self._speeds[id_] = speed

    def delete(self, id_: str) -> None:
        """It goes, and whatever was known of it."""
        parts: tuple[dict[str, Any], ...]
        parts = (
            self._declared,
            self._changed,
            self._aborts,
            self._nonconformant,
            self._speeds,
        )
        for known in parts:
            known.pop(id_, None)
        self._gone[id_] = None

    def document(self) -> Document:
        """The parts that `workers_write` takes."""
        return {
            "workers_gone": list(self._gone),
            "workers": list(self._declared.values()),
            "workers_changed": list(self._changed.values()),
            "aborts": self._aborts,
            "nonconformant": self._nonconformant,
            "speeds": self._speeds,
        }


def _request(event: Submitted, recorded: Recorded) -> Row:
    wanted = Wanted.of(
        event.data, user_id=event.user_id, chat=event.chat, max_length=event.max_length
    )
    created_ms = recorded.position.ms
    return {
        "models": list(dict.fromkeys(wanted.models)),
        "partition": recorded.partition,
        "rank": rank(event.priority, created_ms),
        "waiting": event.jobs,
        "chat": wanted.chat,
        "max_length": bounded(wanted.max_length),
        "max_context_length": bounded(wanted.max_context_length),
        "features": sorted(wanted.features),
        "images": wanted.images,
        "tools_temperature": wanted.tools_temperature,
        "only_workers": wanted.only,
        "ignore_workers": wanted.ignore,
        "trusted_workers": wanted.trusted_workers,
        "validated_backends": wanted.validated_backends,
        "slow_workers": wanted.slow_workers,
        "class": requirement_class(wanted),
        "user_id": event.user_id,
        "holdoff_worker": "",
        "holdoff_ms": 0,
        "ttl": event.ttl,
        "created_ms": created_ms,
        "touched_ms": created_ms,
    }


def _fault(event: Faulted, ms: int) -> Row:
    row: Row = {
        "waiting": event.waiting,
        "holdoff_worker": event.worker_id,
        "holdoff_ms": ms + event.holdoff * 1000,
    }
    if event.restarted:
        row["came_back"] = True
    return row


def _worker(event: CheckedIn, recorded: Recorded) -> Row:
    declared = event.data
    limits = (declared.chat_max_context_length, declared.chat_max_length)
    (chat_context, chat_length) = (None if limit is None else bounded(limit) for limit in limits)
    return {
        "id": event.worker_id,
        "partition": recorded.partition,
        "name": event.name,
        "user_id": event.user_id,
        "trusted": event.trusted,
        "models": declared.models,
        "threads": bounded(declared.threads),
        "bridge_agent": declared.bridge_agent,
        "nsfw": declared.nsfw,
        "max_length": bounded(declared.max_length),
        "max_context_length": bounded(declared.max_context_length),
        "accepts_chat_jobs": declared.chat_jobs,
        "accepts_prompt_jobs": declared.prompt_jobs,
        "chat_model_id": declared.model_id,
        "chat_features": declared.chat_features,
        "chat_max_context_length": chat_context,
        "chat_max_length": chat_length,
        "chat_tools_max_temperature": declared.chat_tools_max_temperature,
        "image_transports": declared.image_transports,
        "last_check_in_ms": recorded.position.ms,
        "created_ms": recorded.position.ms,
        "uptime_ms": bounded(event.uptime_ms),
    }


def _changed(event: WorkerChanged) -> Row:
    row: Row = {}
    if "maintenance" in event.changed:
        row["maintenance"] = event.maintenance
        row["maintenance_msg"] = event.maintenance_msg
    if "paused" in event.changed:
        row["paused"] = event.paused
    if "info" in event.changed:
        row["info"] = event.data.info
    return row


def rank(priority: int, created_ms: int) -> int:
    """Where a request stands: its base priority less 5 kudos a second of age, in thousandths.

    All requests age alike, so this never changes. `priority` is in 10^-4 kudos.
    """
    return bounded(priority // 10 - 5 * created_ms)


def _hints(position: str, document: Document, came_back: Sequence[str]) -> Projected:
    models = dict.fromkeys(came_back)
    for row in document.get("queue", {}).get("insert", ()):
        if row["waiting"] > 0:
            models.update(dict.fromkeys(row["models"]))
    changed = [row["id"] for row in document.get("workers_changed", ())]
    workers = (*changed, *document.get("workers_gone", ()))
    return Projected(position=position, models=tuple(models), workers=workers)


ELIGIBILITY = Projection(
    name=NAME,
    tables=("queue", "queue_listed", "workers"),
    write="eligibility_write",
    fold=fold,
    hints=_hints,
)


# the rules


class Wanted(NamedTuple):
    """What a request asks of a worker."""

    user_id: int
    chat: bool
    models: tuple[str, ...]  # (ANY_MODEL,) where a text request names none
    max_length: int
    max_context_length: int
    features: frozenset[str]
    images: bool
    tools_temperature: float | None
    only: tuple[str, ...]
    ignore: tuple[str, ...]
    trusted_workers: bool
    validated_backends: bool
    slow_workers: bool

    @classmethod
    def of(cls, demand: Demand, *, user_id: int, chat: bool, max_length: int) -> Wanted:
        """From the parts that a `submitted` event, or a submit before it, has.

        Features, images and the tool temperature are rules of chat requests alone.
        """
        return cls(
            user_id,
            chat,
            tuple(map(_clean, demand.models)) or (ANY_MODEL,),
            max_length,
            demand.max_context_length,
            frozenset(demand.features if chat else ()),
            demand.images and chat,
            demand.tools_temperature if chat else None,
            demand.only,
            demand.ignore,
            demand.trusted_workers,
            demand.validated_backends,
            demand.slow_workers,
        )


def _clean(model: str) -> str:
    """Postgres takes no NUL, neither in a row (`changes.encode`) nor in a query."""
    return model.replace("\0", "\ufffd")


def _unknown(_model: str) -> float:
    return 1.0


class Rules(NamedTuple):
    """What the operator decides of who may take what."""

    validated: frozenset[str] = frozenset()
    """Names of bridge agents that `validated_backends` asks for (text_path_reference.md, 13)."""
    size: Callable[[str], float] = _unknown
    """Billions of parameters of a model."""
    lease: int = 150
    """Seconds that a job may take before it shows any progress."""
    preparation: int = 30
    """Seconds of the lease that go by before the first token comes."""

    def capacity(self, speed: float | None) -> int:
        """The longest chat reply (tokens) that a worker finishes in its lease (spec, Job lease)."""
        return int(pace(speed) * (self.lease - self.preparation))

    def fast(self, models: Sequence[str], speed: float | None) -> bool:
        """Whether requests that allow no slow workers may go to this one, by the size of the first
        of its models (text_path_reference.md 5.4)."""
        size = self.size(models[0]) if models else math.inf
        least = next(least for billions, least in _LEAST_SPEEDS if size >= billions)
        return pace(speed) >= least


_LEAST_SPEEDS = ((20.0, 3.0), (13.0, 4.0), (-math.inf, 5.0))
"""Tokens a second by the billions of parameters from which they do."""


def pace(speed: float | None) -> float:
    """Tokens a second, measured or assumed."""
    return UNMEASURED_SPEED if speed is None else speed


class Offer(NamedTuple):
    """What a worker declared, as far as the rules look at it.

    Workers with equal offers share candidates.
    """

    chat_model: str | None  # None: no chat jobs
    chat_features: frozenset[str]
    chat_max_length: int
    chat_max_context_length: int
    tools_max_temperature: float | None
    receives_images: bool
    models: tuple[str, ...]  # of text jobs; empty: no text jobs
    max_length: int
    max_context_length: int
    validated: bool
    trusted: bool
    """Its owner is."""
    fast: bool
    """Fast enough for requests that allow no slow workers."""
    lease_length: int | None
    """The longest chat reply that it finishes in its lease, rounded up so that workers of like
    speeds share candidates; None where that is no less than its declared limit."""

    @classmethod
    def of(
        cls,
        declared: Declaration,
        rules: Rules = Rules(),  # noqa: B008 - immutable
        speed: float | None = None,
    ) -> Offer:
        """From a pop's declaration; `speed` in tokens a second, None where none was measured."""
        chat = declared.chat_jobs
        offer = cls(
            _clean(declared.model_id) if chat and declared.model_id else None,
            frozenset(declared.chat_features if chat else ()),
            (declared.chat_max_length or 0) if chat else 0,
            (declared.chat_max_context_length or 0) if chat else 0,
            declared.chat_tools_max_temperature if chat else None,
            chat and not IMAGE_TRANSPORTS.isdisjoint(declared.image_transports),
            tuple(sorted(set(map(_clean, declared.models)))) if declared.prompt_jobs else (),
            declared.max_length,
            declared.max_context_length,
            is_validated(declared.bridge_agent, rules.validated),
            trusted=False,
            fast=True,
            lease_length=None,
        )
        return offer.by(declared.models, rules, speed)

    def by(
        self, models: Sequence[str], rules: Rules, speed: float | None, *, trusted: bool = False
    ) -> Offer:
        """The same of a worker that is this fast (tokens a second) and whose owner is trusted or
        not; `models` as it listed them."""
        capacity = rules.capacity(speed)
        return self._replace(
            trusted=trusted,
            fast=rules.fast(models, speed),
            lease_length=_stepped(capacity) if capacity < self.chat_max_length else None,
        )


def _stepped(length: int) -> int:
    """A length rounded up by an eighth at most, to one of few numbers."""
    step = 1 << max(0, length.bit_length() - 4)
    return -(-length // step) * step


class Worker(NamedTuple):
    """Who asks for a job."""

    id: str
    user_id: int
    trusted: bool
    offer: Offer
    threads: int = 1
    maintenance: bool = False
    paused: bool = False
    speed: float | None = None
    """Tokens a second; None where none was measured."""
    capacity: int | None = None
    """The longest chat reply that it finishes in its lease, by `Rules.capacity`; None: any."""
    prefers: frozenset[int] = frozenset()
    """Accounts whose requests come first: its owner, and whom it names."""
    decoys: Set[str] | None = None
    """Of a paused worker that asks for a job: the requests that it had a decoy of. It is offered
    the others as if it were not paused."""


class Candidate(NamedTuple):
    """A waiting request as it was last projected. Times are milliseconds of the Redis clock."""

    request_id: str
    wanted: Wanted  # its models: those found for the offer that was asked with
    rank: int
    waiting: int
    holdoff_worker: str
    holdoff_ms: int
    created_ms: int
    expires_ms: int

    @property
    def place(self) -> Place:
        """Where the next page begins."""
        return Place(self.rank, self.request_id)


class Place(NamedTuple):
    """A point in the rank order: behind it is a lower rank, or the same with a lower id."""

    rank: int
    request_id: str


FIRST = Place(2**63 - 1, "ffffffff-ffff-ffff-ffff-ffffffffffff")


def fits(candidate: Candidate, worker: Worker, now_ms: int) -> str | None:
    """Why this worker may not have a job of this request now; None where it may."""
    if candidate.waiting < 1:
        return "not_waiting"
    if candidate.expires_ms <= now_ms:
        return "expired"
    if candidate.holdoff_worker == worker.id and candidate.holdoff_ms > now_ms:
        return "holdoff"
    own = candidate.wanted.user_id == worker.user_id
    if worker.decoys and not own and candidate.request_id in worker.decoys:
        return "secret"
    return refusal(candidate.wanted, worker)


def refusal(wanted: Wanted, worker: Worker) -> str | None:
    """Which rule of eligibility keeps them apart; None: none.

    The rules are those of the chat reference, *Eligibility*, and the text reference, 5.5. The first
    that fails is told, by the words of a pop's `skipped`. A missing feature or guarantee is named
    itself.
    """
    reason = restriction(wanted, worker)
    if reason is not None:
        return reason
    if not wanted.chat:
        return _text_refusal(wanted, worker.offer)
    reason = _chat_refusal(wanted, worker.offer)
    if reason is None and worker.capacity is not None and wanted.max_length > worker.capacity:
        return "lease_speed"
    return reason


def restriction(wanted: Wanted, worker: Worker) -> str | None:
    """Which of the request's own restrictions, or the worker's pause, keeps them apart."""
    away = worker.maintenance or (worker.paused and worker.decoys is None)
    if away and worker.user_id != wanted.user_id:
        return "maintenance"
    if wanted.trusted_workers and not worker.trusted:
        return "untrusted"
    if (wanted.only and worker.id not in wanted.only) or worker.id in wanted.ignore:
        return "worker_id"
    if not (wanted.slow_workers or worker.offer.fast):
        return "performance"
    if wanted.validated_backends and not worker.offer.validated:
        return "bridge_version"
    return None


def _chat_refusal(wanted: Wanted, offer: Offer) -> str | None:
    if offer.chat_model is None or offer.chat_model not in wanted.models:
        return "models"
    missing = wanted.features - offer.chat_features
    if missing:
        return min(missing)
    if wanted.images and not offer.receives_images:
        return "image_transports"
    asked, limit = wanted.tools_temperature, offer.tools_max_temperature
    if asked is not None and limit is not None and asked > limit:
        return "tools_max_temperature"
    return _size_refusal(wanted, offer.chat_max_context_length, offer.chat_max_length)


def _text_refusal(wanted: Wanted, offer: Offer) -> str | None:
    if not offer.models or not {ANY_MODEL, *offer.models}.intersection(wanted.models):
        return "models"
    return _size_refusal(wanted, offer.max_context_length, offer.max_length)


def _size_refusal(wanted: Wanted, context: int, length: int) -> str | None:
    if wanted.max_context_length > context:
        return "max_context_length"
    return "max_length" if wanted.max_length > length else None


_AGENT = re.compile(r"([^:]*):v?\d+(\.\d+)*[^:]*(:.*)?", re.S)


def is_validated(bridge_agent: str, validated_backends: Collection[str]) -> bool:
    """Whether an agent (`name:version:url`) has a listed name and something like a version."""
    match = _AGENT.fullmatch(bridge_agent)
    return match is not None and match[1] in validated_backends


LISTED = "~"
"""Before the class of a request that only certain workers may serve: behind all other classes."""


def requirement_class(wanted: Wanted) -> str:
    """A short name for what is needed, equal for requests of like needs.

    All rules that an offer alone decides are the same within a class, but for the three numeric
    limits, which are alike to a factor of two (half a degree): most classes fit an offer as a whole
    or not at all. Lists of workers do not count, or there would be a class for each list; requests
    that have an `only` list are found by the workers that it names.
    """
    needs = (
        sorted(wanted.features),
        wanted.images,
        wanted.validated_backends,
        wanted.slow_workers,
        wanted.trusted_workers,
        _round_up(wanted.max_length),
        _round_up(wanted.max_context_length),
        _temperature_step(wanted.tools_temperature),
    )
    name = blake2s(repr(needs).encode(), digest_size=6).hexdigest()
    return LISTED + name if wanted.only else name


def _round_up(limit: int) -> int:
    """The next power of two.

    If a class's first row is above that of an offer's limit, all its rows are above the limit.
    """
    return 1 << (max(1, bounded(limit)) - 1).bit_length()


def _temperature_step(temperature: float | None) -> float | None:
    return None if temperature is None else math.ceil(temperature * 2) / 2


# queries

_COLUMNS = b"""
    q.request_id::text, q.model, q.user_id, q.chat, q.max_length, q.max_context_length,
    q.features, q.images, q.tools_temperature, q.only_workers, q.ignore_workers,
    q.trusted_workers, q.validated_backends, q.slow_workers, q.rank, q.waiting,
    q.holdoff_worker, q.holdoff_ms, q.created_ms, q.expires_ms"""

# A class is judged by its first row.
_POSSIBLE = b"""
            q.features <@ %(features)s::text[]
            AND (%(images)s OR NOT q.images)
            AND (%(validated)s OR NOT q.validated_backends)
            AND (%(fast)s OR q.slow_workers)
            AND (%(trusted)s OR NOT q.trusted_workers)
            AND q.max_length <= a.length_up AND q.max_context_length <= a.context_up
            AND (q.tools_temperature IS NULL OR q.tools_temperature <= %(temperature_up)s::float8)
"""
# What may differ within a class: first what the index of the ranges knows, then what the row does.
_WITHIN = b"""
            AND row.max_length <= a.max_length AND row.max_context_length <= a.max_context_length
            AND (row.tools_temperature IS NULL
                OR row.tools_temperature <= %(temperature)s::float8)
"""
_STANDING = b"""
            AND r.expires_ms > %(now_ms)s
            AND (r.ignore_workers = '{}' OR NOT %(workers)s::text[] <@ r.ignore_workers)
"""

# By its key, and by nothing else, even where a plan is made for an empty table: what has a limit or
# an offset is not merged with what is around it.
_ROW = b"""
            SELECT * FROM queue row
            WHERE row.request_id = place.request_id AND row.model = place.model LIMIT 1
        """


def _compact(query: bytes) -> bytes:
    """Without comments and indentation: psycopg takes a statement of more than 4096 bytes apart
    anew each time that it is sent."""
    return b" ".join(re.sub(rb"--[^\n]*", b"", query).split())


# The recursive parts walk the distinct classes of each range, one index probe each: of the requests
# for everybody, and of those that list one of the workers. The last part takes the best rows of
# each class that is possible; what it passes over for its size it sees in the index alone.
_CANDIDATES = _compact(
    b"""
WITH RECURSIVE asked AS (
    SELECT a.*, '' AS class, false AS possible
    FROM unnest(
        %(chat)s::bool[], %(model)s::text[], %(length)s::bigint[], %(context)s::bigint[],
        %(length_up)s::bigint[], %(context_up)s::bigint[]
    ) AS a (chat, model, max_length, max_context_length, length_up, context_up)
), class AS (
    SELECT * FROM asked
    UNION ALL
    SELECT a.chat, a.model, a.max_length, a.max_context_length, a.length_up, a.context_up,
        next.class, next.possible
    FROM class a CROSS JOIN LATERAL (
        SELECT q.class, ("""
    + _POSSIBLE
    + b""") AS possible
        FROM queue q
        WHERE q.chat = a.chat AND q.model = a.model AND q.class > a.class AND q.waiting > 0
            AND q.class < %(listed)s
        ORDER BY q.class, q.rank DESC, q.request_id DESC LIMIT 1
    ) AS next
), listed AS (
    SELECT w.worker, a.*
    FROM unnest(%(workers)s::text[]) AS w (worker) CROSS JOIN asked a
    WHERE EXISTS (SELECT FROM queue_listed l WHERE l.worker = w.worker)
    UNION ALL
    SELECT a.worker, a.chat, a.model, a.max_length, a.max_context_length, a.length_up, a.context_up,
        next.class, next.possible
    FROM listed a CROSS JOIN LATERAL (
        SELECT l.class, ("""
    + _POSSIBLE
    + b""") AS possible
        FROM queue_listed l CROSS JOIN LATERAL ("""
    + _ROW.replace(b"place.", b"l.")
    + b""") q
        WHERE l.worker = a.worker AND l.chat = a.chat AND l.model = a.model AND l.class > a.class
        ORDER BY l.class, l.rank, l.request_id LIMIT 1
    ) AS next
), found AS (
    SELECT r.*
    FROM class a CROSS JOIN LATERAL (
        SELECT r.*
        FROM (
            SELECT q.request_id, q.model, q.rank FROM queue q
            WHERE q.chat = a.chat AND q.model = a.model AND q.class = a.class AND q.waiting > 0
                AND (q.rank, q.request_id) < (%(rank)s, %(request_id)s)"""
    + _WITHIN.replace(b"row.", b"q.")
    + b"""
            ORDER BY q.rank DESC, q.request_id DESC
            OFFSET 0
        ) q CROSS JOIN LATERAL ("""
    + _ROW.replace(b"place.", b"q.")
    + b""") r
        WHERE r.waiting > 0"""
    + _STANDING
    + b"""
        ORDER BY q.rank DESC, q.request_id DESC LIMIT %(limit)s
    ) r
    WHERE a.possible
    UNION ALL
    (SELECT DISTINCT ON (r.request_id, r.model) r.*  -- several of the workers may be listed
    FROM listed a CROSS JOIN LATERAL (
        SELECT r.*
        FROM queue_listed l CROSS JOIN LATERAL ("""
    + _ROW.replace(b"place.", b"l.")
    + b""") r
        WHERE l.worker = a.worker AND l.chat = a.chat AND l.model = a.model AND l.class = a.class
            AND (l.rank, l.request_id) < (%(rank)s, %(request_id)s)
            AND r.waiting > 0"""
    + _WITHIN.replace(b"row.", b"r.")
    + _STANDING
    + b"""
        ORDER BY l.rank DESC, l.request_id DESC LIMIT %(limit)s
    ) r
    WHERE a.possible
    ORDER BY r.request_id, r.model)
)
SELECT """
    + _COLUMNS
    + b"""
FROM found q
ORDER BY q.rank DESC, q.request_id DESC, q.model LIMIT %(limit)s
"""
)


async def candidates(
    database: Database,
    offer: Offer,
    *,
    now_ms: int,
    workers: Sequence[str],
    limit: int = 20,
    after: Place = FIRST,
) -> list[Candidate]:
    """Waiting requests that workers with this offer may take, best first: those behind `after`.

    What concerns one worker only (its lists, hold-off) is for `fits`. `workers` are the ids that
    share this list: requests whose lists leave all of them out are not looked at, so that they
    cannot fill a page. Fewer than `limit` may come where a request was found under several models;
    an empty list is the end. Raise DatabaseUnavailable.
    """
    ranges = _ranges(offer)
    if not ranges:
        return []
    up = _temperature_step(offer.tools_max_temperature)
    parameters = {
        "chat": [chat for chat, *_ in ranges],
        "model": [model for _, model, *_ in ranges],
        "length": [bounded(length) for _, _, length, _ in ranges],
        "context": [bounded(context) for _, _, _, context in ranges],
        "length_up": [bounded(_round_up(length)) for _, _, length, _ in ranges],
        "context_up": [bounded(_round_up(context)) for _, _, _, context in ranges],
        "features": list(offer.chat_features),
        "images": offer.receives_images,
        "validated": offer.validated,
        "fast": offer.fast,
        "trusted": offer.trusted,
        "temperature": _no_limit(offer.tools_max_temperature),
        "temperature_up": _no_limit(up),
        "rank": after.rank,
        "request_id": UUID(after.request_id),
        "now_ms": now_ms,
        "limit": limit,
        "workers": list(workers),
        "listed": LISTED,
    }
    rows = await database.fetch(_CANDIDATES, parameters)
    listed = _candidates(rows)
    if len(rows) == limit and len(listed) > 1 and not listed[-1].wanted.chat:
        # The page may end between two of its models: the next one begins with it.
        listed.pop()
    return listed


OF_USER = 100
"""Best requests of one account that are looked at, for those workers that prefer it."""

_OF_USERS = (
    b"SELECT "
    + _COLUMNS
    + b"""
FROM unnest(%(users)s::bigint[]) AS u (id) CROSS JOIN LATERAL (
    SELECT * FROM queue q
    WHERE q.user_id = u.id AND q.waiting > 0 AND q.expires_ms > %(now_ms)s
    ORDER BY q.rank DESC, q.request_id DESC LIMIT %(limit)s
) q JOIN unnest(%(chat)s::bool[], %(model)s::text[]) AS a (chat, model) USING (chat, model)
ORDER BY q.rank DESC, q.request_id DESC, q.model
"""
)


async def of_users(
    database: Database, offer: Offer, users: Collection[int], *, now_ms: int
) -> list[Candidate]:
    """The best waiting requests of these accounts for the models of an offer, best first.

    All other rules are for `fits`. Raise DatabaseUnavailable.
    """
    ranges = _ranges(offer)
    if not ranges or not users:
        return []
    parameters = {
        "users": list(users),
        "now_ms": now_ms,
        "limit": OF_USER,
        "chat": [chat for chat, *_ in ranges],
        "model": [model for _, model, *_ in ranges],
    }
    return _candidates(await database.fetch(_OF_USERS, parameters))


COUNTED = 1000
"""Waiting requests that are counted at most, and groups of them that are told apart."""
_GROUPS = 100

_TALLY = b"""
SELECT array_agg(DISTINCT model), chat, max_length, max_context_length, features, images,
    tools_temperature, only_workers, ignore_workers, trusted_workers, validated_backends,
    slow_workers, count(DISTINCT request_id) AS requests
FROM (
    SELECT q.* FROM unnest(%(chat)s::bool[], %(model)s::text[]) AS a (chat, model)
    CROSS JOIN LATERAL (
        SELECT * FROM queue q
        WHERE q.chat = a.chat AND q.model = a.model AND q.waiting > 0 LIMIT %(counted)s
    ) q
    LIMIT %(counted)s
) q
GROUP BY chat, max_length, max_context_length, features, images, tools_temperature, only_workers,
    ignore_workers, trusted_workers, validated_backends, slow_workers
ORDER BY requests DESC LIMIT %(groups)s
"""


class Group(NamedTuple):
    """Waiting requests with the same needs."""

    wanted: Wanted  # of nobody
    requests: int


async def tally(database: Database, offer: Offer) -> list[Group]:
    """What waits for the models of an offer, whoever may have it: of `COUNTED` requests at most.

    Raise DatabaseUnavailable.
    """
    ranges = _ranges(offer)
    if not ranges:
        return []
    parameters = {
        "chat": [chat for chat, *_ in ranges],
        "model": [model for _, model, *_ in ranges],
        "counted": COUNTED,
        "groups": _GROUPS,
    }
    rows = await database.fetch(_TALLY, parameters)
    return [Group(_group(row), row[12]) for row in rows]


def _group(row: tuple[Any, ...]) -> Wanted:
    (models, chat, length, context, features, images, temperature, only, ignore) = row[:9]
    return Wanted(
        -1,
        chat,
        tuple(models),
        length,
        context,
        frozenset(features),
        images,
        temperature,
        tuple(only),
        tuple(ignore),
        *row[9:12],
    )


def _candidates(rows: Sequence[tuple[Any, ...]]) -> list[Candidate]:
    """Rows in their order, those of one request as one candidate with all their models."""
    found: dict[str, Candidate] = {}
    for row in rows:
        candidate = _candidate(row)
        earlier = found.setdefault(candidate.request_id, candidate)
        if earlier is not candidate:
            models = earlier.wanted.models + candidate.wanted.models
            wanted = earlier.wanted._replace(models=models)
            found[candidate.request_id] = earlier._replace(wanted=wanted)
    return list(found.values())


def _ranges(offer: Offer) -> list[tuple[bool, str, int, int]]:
    """What an offer looks at of the queue: chat, model, longest reply, longest context."""
    ranges = []
    if offer.chat_model is not None:
        length = offer.chat_max_length if offer.lease_length is None else offer.lease_length
        ranges.append((True, offer.chat_model, length, offer.chat_max_context_length))
    if offer.models:
        limits = (offer.max_length, offer.max_context_length)
        ranges += [(False, model, *limits) for model in (*offer.models, ANY_MODEL)]
    return ranges


def _no_limit(temperature: float | None) -> float:
    return math.inf if temperature is None else temperature


def _candidate(row: tuple[Any, ...]) -> Candidate:
    (request_id, model, user_id, chat, length, context, features, images, temperature) = row[:9]
    (only, ignore, trusted, validated, slow) = row[9:14]
    wanted = Wanted(
        user_id,
        chat,
        (model,),
        length,
        context,
        frozenset(features),
        images,
        temperature,
        tuple(only),
        tuple(ignore),
        trusted,
        validated,
        slow,
    )
    return Candidate(request_id, wanted, *row[14:])


_ONLINE = """
SELECT id::text, user_id, trusted, threads, maintenance, paused, models, bridge_agent,
    max_length, max_context_length, accepts_chat_jobs, accepts_prompt_jobs, chat_model_id,
    chat_features, chat_max_context_length, chat_max_length, chat_tools_max_temperature,
    image_transports, speed
FROM workers
WHERE last_check_in_ms >= %(since_ms)s AND """
_ONLINE_CHAT = (_ONLINE + "accepts_chat_jobs AND chat_model_id = ANY(%(models)s::text[])").encode()
_ONLINE_TEXT = (
    _ONLINE
    + "accepts_prompt_jobs AND (%(models)s::text[] = ARRAY['']::text[] OR models && %(models)s)"
).encode()


async def online(
    database: Database,
    models: Sequence[str],
    *,
    chat: bool,
    since_ms: int,
    rules: Rules = Rules(),  # noqa: B008 - immutable
) -> list[Worker]:
    """Workers that showed themselves since then and serve one of the models.

    [ANY_MODEL] means any, for text. Raise DatabaseUnavailable.
    """
    query = _ONLINE_CHAT if chat else _ONLINE_TEXT
    names = list(map(_clean, models))
    rows = await database.fetch(query, {"models": names, "since_ms": since_ms})
    return [_online(row, rules) for row in rows]


def _online(row: tuple[Any, ...], rules: Rules) -> Worker:
    (id_, user_id, trusted, threads, maintenance, paused, models, agent, length, context) = row[:10]
    (chat, prompt, model_id, features, chat_context, chat_length, temperature) = row[10:17]
    declared = Declaration(
        models=tuple(models),
        bridge_agent=agent,
        threads=threads,
        max_length=length,
        max_context_length=context,
        chat_jobs=chat,
        prompt_jobs=prompt,
        model_id=model_id,
        chat_features=tuple(features),
        chat_max_context_length=chat_context,
        chat_max_length=chat_length,
        chat_tools_max_temperature=temperature,
        image_transports=tuple(row[17]),
    )
    speed = row[18]
    offer = Offer.of(declared, rules, speed)
    capacity = rules.capacity(speed)
    return Worker(id_, user_id, trusted, offer, threads, maintenance, paused, speed, capacity)


async def worker_names(database: Database, user_id: int) -> frozenset[str]:
    """The names of an account's workers. Raise DatabaseUnavailable."""
    rows = await database.fetch(b"SELECT name FROM workers WHERE user_id = %s", (user_id,))
    return frozenset(name for (name,) in rows)


class Serving(NamedTuple):
    """How a model is served for chat: the online workers that declare it, their largest limits."""

    workers: int
    threads: int
    max_length: int
    max_context_length: int


async def serving(
    database: Database, models: Sequence[str], *, now_ms: int, online_window_s: int
) -> dict[str, Serving]:
    """Each of these models that an online chat worker serves. Raise DatabaseUnavailable."""
    since_ms = now_ms - online_window_s * 1000
    found: dict[str, Serving] = {}
    for worker in await online(database, models, chat=True, since_ms=since_ms):
        offer = worker.offer
        if offer.chat_model is None:
            continue
        so_far = found.get(offer.chat_model, Serving(0, 0, 0, 0))
        found[offer.chat_model] = Serving(
            so_far.workers + 1,
            so_far.threads + worker.threads,
            max(so_far.max_length, offer.chat_max_length),
            max(so_far.max_context_length, offer.chat_max_context_length),
        )
    return found


_TEXT_CONTEXT = b"""
SELECT max(max_context_length) FROM workers
WHERE last_check_in_ms >= %(since_ms)s AND accepts_prompt_jobs
    AND (%(models)s::text[] = ARRAY['']::text[] OR models && %(models)s)
"""


async def text_context(
    database: Database, models: Sequence[str], *, now_ms: int, online_window_s: int
) -> int:
    """The largest context that an online worker serves text jobs of one of these models under; 0
    where none does. No models mean any. Raise DatabaseUnavailable."""
    names = list(map(_clean, models)) or [ANY_MODEL]
    since_ms = now_ms - online_window_s * 1000
    ((most,),) = await database.fetch(_TEXT_CONTEXT, {"models": names, "since_ms": since_ms})
    return most or 0
