"""Which models are served and asked for (spec, Chat model list; text_path_reference.md 8.2)."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec

from projections import statistics
from projections.database import Database


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is served for chat, by the online workers that are not in maintenance."""

    workers: int
    max_context_length: int
    max_length: int
    features: list[str]
    """Of any of them, guarantees included, sorted."""
    created: int | None
    """When the first of them showed itself first: Unix seconds."""


class Served(NamedTuple):
    """One model that is served, or asked for."""

    name: str
    threads: int  # of workers that take text jobs with it
    chat: Chat | None
    tokens: int  # max_length of the requests that name it, each once
    jobs: int  # of these requests, waiting and being worked on
    speed: float  # tokens a second, of the last hour; 0: nothing was generated

    @property
    def eta(self) -> int:
        """Seconds until what is asked of it is done, about."""
        if not self.jobs:
            return 0
        pace = self.threads * self.speed
        return int(self.tokens / pace) if pace else NEVER


NEVER = 10_000
"""Seconds, where nothing shows how long it takes."""


class Load(NamedTuple):
    """What the whole service has to do, and who is there for it."""

    jobs: int
    tokens: int
    workers: int
    threads: int


# One pass over what each worker adds to each model: a join of what was counted apart is planned by
# guesses, and takes seconds where thousands of workers serve a model each.
_OFFERED = b"""
WITH online AS (
    SELECT * FROM workers WHERE last_check_in_ms >= %(since_ms)s AND NOT maintenance
), added (model, threads, workers, context, length, feature, created_ms) AS (
    SELECT m.model, o.threads, 0, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint
    FROM online o, unnest(o.models) AS m (model) WHERE o.accepts_prompt_jobs
    UNION ALL
    SELECT chat_model_id, 0, 1, chat_max_context_length, chat_max_length, NULL, created_ms
    FROM online WHERE accepts_chat_jobs
    UNION ALL
    SELECT o.chat_model_id, 0, 0, NULL, NULL, f.feature, NULL
    FROM online o, unnest(o.chat_features) AS f (feature) WHERE o.accepts_chat_jobs
)
SELECT model, sum(threads)::bigint, sum(workers)::bigint, max(context), max(length),
    coalesce(array_agg(DISTINCT feature ORDER BY feature) FILTER (WHERE feature IS NOT NULL), '{}'),
    min(created_ms) / 1000
FROM added GROUP BY model
"""

# Only a request that was handed out once can be in work: the others need no look.
_ACTIVE = b"""
SELECT q.request_id, q.model, q.max_length, q.waiting + coalesce(g.processing, 0) AS jobs
FROM queue q LEFT JOIN LATERAL (
    SELECT count(*) AS processing FROM processing_gens g
    WHERE g.wp_id = q.request_id AND g.state = 'pending'
) g ON q.touched_ms > q.created_ms
WHERE q.expires_ms > %(now_ms)s
"""
_ASKED = (
    b"SELECT model, sum(max_length)::bigint, sum(jobs)::bigint FROM ("
    + _ACTIVE
    + b") a WHERE jobs > 0 GROUP BY model"
)
_LOAD = (
    b"SELECT coalesce(sum(jobs), 0)::bigint, coalesce(sum(jobs * max_length), 0)::bigint FROM ("
    b"SELECT DISTINCT ON (request_id) jobs, max_length FROM ("
    + _ACTIVE
    + b") a ORDER BY request_id) b"
)
_PRESENT = b"""
SELECT count(*), coalesce(sum(threads), 0)::bigint
FROM workers WHERE last_check_in_ms >= %(since_ms)s AND NOT maintenance
"""


async def snapshot(database: Database, *, now_ms: int, since_ms: int) -> dict[str, Served]:
    """Every model that an online worker serves or a request asks for, by its name.

    For once in a while in each process, not for once a call. Raise DatabaseUnavailable.
    """
    offered, asked, speeds = await asyncio.gather(
        database.fetch(_OFFERED, {"since_ms": since_ms}),
        database.fetch(_ASKED, {"now_ms": now_ms}),
        statistics.speeds(database, now_ms=now_ms),
    )
    demand = {model: (tokens, jobs) for model, tokens, jobs in asked if model}
    found: dict[str, Served] = {}
    for model, threads, workers, context, length, features, created in offered:
        chat = None
        if workers:
            chat = Chat(
                workers=workers,
                max_context_length=context or 0,
                max_length=length or 0,
                features=features,
                created=created,
            )
        tokens, jobs = demand.get(model, (0, 0))
        found[model] = Served(model, threads, chat, tokens, jobs, speeds.get(model, 0.0))
    for model in demand.keys() - found.keys():
        tokens, jobs = demand[model]
        found[model] = Served(model, 0, None, tokens, jobs, speeds.get(model, 0.0))
    return dict(sorted(found.items()))


async def load(database: Database, *, now_ms: int, since_ms: int) -> Load:
    """How much is waiting or being worked on, and who is online. Raise DatabaseUnavailable."""
    asked, present = await asyncio.gather(
        database.fetch(_LOAD, {"now_ms": now_ms}), database.fetch(_PRESENT, {"since_ms": since_ms})
    )
    return Load(*asked[0], *present[0])
