"""Workers that showed themselves a moment ago, as the rules see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from events.types import Declaration
from projections.database import Database
from projections.rules import ANY_MODEL, Offer, Rules, Worker, without_nul

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
    names = list(map(without_nul, models))
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
    names = list(map(without_nul, models)) or [ANY_MODEL]
    since_ms = now_ms - online_window_s * 1000
    ((most,),) = await database.fetch(_TEXT_CONTEXT, {"models": names, "since_ms": since_ms})
    return most or 0
