"""The read model of what waits and of who may take it: `queue` and `workers`, from events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from events.base import Event, Recorded
from events.types import (
    Assigned,
    Cancelled,
    CheckedIn,
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
from projections.projection import Projected, Projection
from projections.rules import Wanted, requirement_class

NAME = "eligibility"


FOLDS: frozenset[type[Event]] = frozenset(
    {
        *(Submitted, Assigned, SubmittedReply, Returned, Faulted, Cancelled, Expired, CheckedIn),
        *(WorkerChanged, WorkerRenamed, WorkerDeleted),
        *(WorkerAborted, WorkerNonconformant, WorkerMeasured),
    }
)


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
    folds=FOLDS,
    hints=_hints,
)
