"""What was generated: totals by time and model, and how much each worker delivered.

Times come from the events. A window is a sum of buckets, of which the oldest reaches back at most
as far as the window: it is never longer than it says, and at most one bucket shorter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from events.base import Event, Recorded
from events.speed import implausible, sample, tokens_of
from events.types import SubmittedReply
from projections.changes import MOST, Document, Row, bounded
from projections.database import Database
from projections.projection import Projected, Projection

NAME = "statistics"


class Window(NamedTuple):
    """The last so many milliseconds, counted in buckets of `width_ms`."""

    ms: int
    width_ms: int

    def bucket(self, ms: int) -> int:
        """When the bucket begins that holds this moment."""
        return ms - ms % self.width_ms if self.width_ms else 0

    def since(self, now_ms: int) -> int:
        """When its oldest bucket may begin."""
        return now_ms - self.ms if self.width_ms else 0


_MINUTE = 60_000
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR

WINDOWS = {
    "minute": Window(_MINUTE, 5_000),
    "hour": Window(_HOUR, _MINUTE),
    "day": Window(_DAY, 30 * _MINUTE),
    "month": Window(30 * _DAY, 6 * _HOUR),
    "total": Window(0, 0),
}
"""Those that are told of; a month is 30 days."""


FOLDS: frozenset[type[Event]] = frozenset({SubmittedReply})


def fold(batch: Sequence[Recorded]) -> Document:
    """Events to what is to be added to `text_statistics` and `worker_fulfilments`, and to the
    buckets that no window reaches any more."""
    text: dict[tuple[int, int, int, str], Row] = {}
    replies: Counter[tuple[str, int]] = Counter()
    fast: Counter[tuple[str, int]] = Counter()
    latest: dict[int, int] = {}
    for recorded in batch:
        event, partition, ms = recorded.event, recorded.partition, recorded.position.ms
        if isinstance(event, SubmittedReply):
            added = _added(event)
            for window in WINDOWS.values():
                model = event.model.replace("\0", "\ufffd")  # as `changes.encode` would
                place = (partition, window.width_ms, window.bucket(ms), model)
                row = text.setdefault(place, dict.fromkeys(added, 0))
                for name, number in added.items():
                    row[name] += number
            worker = (event.worker_id, partition)
            replies[worker] += 1
            fast[worker] += implausible(
                event.characters, event.max_length, event.elapsed_ms, event.believable
            )
            latest[partition] = ms
    if not text:
        return {}
    return {
        "text": [
            {"partition": partition, "width_ms": width, "since_ms": since, "model": model} | row
            for (partition, width, since, model), row in text.items()
        ],
        "workers": [
            {
                "worker_id": worker_id,
                "partition": partition,
                "fulfilments": count,
                "implausible": fast[worker_id, partition],
            }
            for (worker_id, partition), count in replies.items()
        ],
        "past": [
            {"partition": partition, "width_ms": window.width_ms, "until_ms": window.since(ms)}
            for partition, ms in latest.items()
            for window in WINDOWS.values()
            if window.width_ms
        ],
    }


def _added(event: SubmittedReply) -> Row:
    if not event.elapsed_ms:  # written before times and lengths were recorded
        tokens = tokens_of(event.characters, MOST)
        return {"requests": 1, "tokens": bounded(tokens), "samples": 0, "speed": 0}
    tokens = tokens_of(event.characters, event.max_length)
    speed = sample(event.characters, event.max_length, event.elapsed_ms)
    return {"requests": 1, "tokens": tokens, "samples": 1, "speed": speed}


def _hints(position: str, _document: Document, _came_back: Sequence[str]) -> Projected:
    return Projected(position=position)


STATISTICS = Projection(
    name=NAME,
    tables=("text_statistics", "worker_fulfilments"),
    write="statistics_write",
    fold=fold,
    folds=FOLDS,
    hints=_hints,
    pause_s=0.2,
)


# queries


class Total(NamedTuple):
    """What was generated within a window."""

    requests: int  # replies
    tokens: int


_TOTALS = b"""
SELECT w.name, coalesce(sum(t.requests), 0)::bigint, coalesce(sum(t.tokens), 0)::bigint
FROM unnest(%(names)s::text[], %(widths)s::bigint[], %(since)s::bigint[])
    AS w (name, width_ms, since_ms)
LEFT JOIN text_statistics t ON t.width_ms = w.width_ms AND t.since_ms >= w.since_ms
GROUP BY w.name
"""
_MODELS = b"""
SELECT w.name, t.model, sum(t.requests)::bigint
FROM unnest(%(names)s::text[], %(widths)s::bigint[], %(since)s::bigint[])
    AS w (name, width_ms, since_ms)
JOIN text_statistics t ON t.width_ms = w.width_ms AND t.since_ms >= w.since_ms
GROUP BY w.name, t.model ORDER BY t.model
"""
_SPEEDS = b"""
SELECT model, sum(speed)::float8 / sum(samples) / 1000
FROM text_statistics WHERE width_ms = %(width)s AND since_ms >= %(since)s
GROUP BY model HAVING sum(samples) > 0
"""


async def totals(database: Database, *, now_ms: int) -> dict[str, Total]:
    """By window, in the order of WINDOWS. Raise DatabaseUnavailable."""
    rows = await database.fetch(_TOTALS, _asked(WINDOWS, now_ms))
    found = {name: Total(requests, tokens) for name, requests, tokens in rows}
    return {name: found[name] for name in WINDOWS}


async def replies_by_model(
    database: Database, windows: Sequence[str], *, now_ms: int
) -> dict[str, dict[str, int]]:
    """By window and model. Raise DatabaseUnavailable."""
    asked = {name: WINDOWS[name] for name in windows}
    found: dict[str, dict[str, int]] = {name: {} for name in windows}
    for name, model, replies in await database.fetch(_MODELS, _asked(asked, now_ms)):
        found[name][model] = replies
    return found


async def speeds(database: Database, *, now_ms: int) -> dict[str, float]:
    """Tokens a second of each model: the average over the replies of the last hour.

    Raise DatabaseUnavailable.
    """
    hour = WINDOWS["hour"]
    parameters = {"width": hour.width_ms, "since": hour.since(now_ms)}
    return dict(await database.fetch(_SPEEDS, parameters))


def _asked(windows: dict[str, Window], now_ms: int) -> dict[str, list[Any]]:
    return {
        "names": list(windows),
        "widths": [window.width_ms for window in windows.values()],
        "since": [window.since(now_ms) for window in windows.values()],
    }
