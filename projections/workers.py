"""What is told of workers: their declarations, what was said of them, what they did."""

from __future__ import annotations

from typing import Any, NamedTuple

from projections.database import Database


class WorkerRow(NamedTuple):
    """A worker as it was last projected. Times are milliseconds of the Redis clock."""

    id: str
    name: str
    user_id: int
    trusted: bool  # its owner, at the last check-in
    models: list[str]
    threads: int
    bridge_agent: str
    max_length: int
    max_context_length: int
    accepts_chat_jobs: bool
    accepts_prompt_jobs: bool
    chat_model_id: str | None
    chat_features: list[str]
    chat_max_context_length: int | None
    chat_max_length: int | None
    chat_tools_max_temperature: float | None
    image_transports: list[str]
    last_check_in_ms: int
    uptime_ms: int
    maintenance: bool
    paused: bool
    info: str
    speed: float | None  # tokens a second
    uncompleted_jobs: int
    nonconformant_replies: int
    fulfilments: int
    implausible: int
    """Replies that came faster than can be believed."""
    nsfw: bool
    generated: int
    """10^-4 kudos that its owner was paid for its replies, as the next for its being online."""
    uptime_kudos: int


_WORKERS = b"""
SELECT w.id::text, w.name, w.user_id, w.trusted, w.models, w.threads, w.bridge_agent,
    w.max_length, w.max_context_length, w.accepts_chat_jobs, w.accepts_prompt_jobs,
    w.chat_model_id, w.chat_features, w.chat_max_context_length, w.chat_max_length,
    w.chat_tools_max_temperature, w.image_transports, w.last_check_in_ms, w.uptime_ms,
    w.maintenance, w.paused, w.info, w.speed, w.uncompleted_jobs,
    w.nonconformant_replies, coalesce(f.replies, 0), coalesce(f.implausible, 0), w.nsfw,
    coalesce(k.generated, 0), coalesce(k.uptime, 0)
FROM workers w CROSS JOIN LATERAL (
    SELECT sum(fulfilments)::bigint AS replies, sum(implausible)::bigint AS implausible
    FROM worker_fulfilments WHERE worker_id = w.id
) f CROSS JOIN LATERAL (
    SELECT sum(generated)::bigint AS generated, sum(uptime)::bigint AS uptime
    FROM worker_kudos WHERE worker_id = w.id
) k
"""
_ONLINE = _WORKERS + b"WHERE w.last_check_in_ms >= %s ORDER BY w.name, w.id"
_BY_ID = _WORKERS + b"WHERE w.id = %s::uuid"
_BY_NAME = _WORKERS + b"WHERE w.name = %s"


async def online(database: Database, *, since_ms: int) -> list[WorkerRow]:
    """All that showed themselves since then, by name. Raise DatabaseUnavailable."""
    return _rows(await database.fetch(_ONLINE, (since_ms,)))


async def by_id(database: Database, worker_id: str) -> WorkerRow | None:
    """The worker of that id (UUID text in lower case). Raise DatabaseUnavailable."""
    return next(iter(_rows(await database.fetch(_BY_ID, (worker_id,)))), None)


async def by_name(database: Database, name: str) -> WorkerRow | None:
    """The worker of exactly that name. Raise DatabaseUnavailable."""
    clean = name.replace("\0", "\ufffd")  # as rows are written
    return next(iter(_rows(await database.fetch(_BY_NAME, (clean,)))), None)


def _rows(rows: list[tuple[Any, ...]]) -> list[WorkerRow]:
    return [WorkerRow(*row) for row in rows]


_BUSY = b"""
SELECT EXISTS (SELECT FROM processing_gens WHERE worker_id = %s::uuid AND state = 'pending')
"""


async def busy(database: Database, worker_id: str) -> bool:
    """Whether the worker holds a job, as the read model has it. Raise DatabaseUnavailable."""
    ((holds,),) = await database.fetch(_BUSY, (worker_id,))
    return bool(holds)
