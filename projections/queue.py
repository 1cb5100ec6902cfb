"""What waits, as pops ask for it: candidates for an offer, and counts of what is out of reach."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from projections.changes import bounded
from projections.database import Database
from projections.rules import (
    ANY_MODEL,
    FIRST,
    LISTED,
    Candidate,
    Offer,
    Place,
    Wanted,
    rounded_up,
    temperature_step,
)

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
    up = temperature_step(offer.tools_max_temperature)
    parameters = {
        "chat": [chat for chat, *_ in ranges],
        "model": [model for _, model, *_ in ranges],
        "length": [bounded(length) for _, _, length, _ in ranges],
        "context": [bounded(context) for _, _, _, context in ranges],
        "length_up": [bounded(rounded_up(length)) for _, _, length, _ in ranges],
        "context_up": [bounded(rounded_up(context)) for _, _, _, context in ranges],
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
    return [Group(_wanted(-1, models, needs), count) for models, *needs, count in rows]


def _wanted(user_id: int, models: Sequence[str], needs: Sequence[Any]) -> Wanted:
    """From the columns from `chat` to `slow_workers`."""
    (chat, length, context, features, images, temperature, only, ignore, *restrictions) = needs
    return Wanted(
        user_id,
        chat,
        tuple(models),
        length,
        context,
        frozenset(features),
        images,
        temperature,
        tuple(only),
        tuple(ignore),
        *restrictions,
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
    request_id, model, user_id, *_ = row
    return Candidate(request_id, _wanted(user_id, (model,), row[3:14]), *row[14:])
