"""Who could take a request now, how fast, and what keeps the others from it (spec, Eligibility and
Impossible reason)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from projections.database import Database
from projections.online import online
from projections.rules import Offer, Rules, Wanted, Worker, pace, refusal, restriction

_LIMITS = ("max_context_length", "max_length", "tools_max_temperature")


class Gap(NamedTuple):
    """What no online worker that serves the model declares."""

    missing: tuple[str, ...]
    """Features and guarantees that a refused worker lacks, and `image_transports`; sorted."""
    exceeded: tuple[str, ...]
    """Limits of a refused worker that the request is above."""


class Reach(NamedTuple):
    """Which queued requests an eligible worker could take: by models, chat, what chat requests
    need, and lengths."""

    chat_model: str | None
    chat_features: frozenset[str]
    receives_images: bool
    chat_max_length: int
    chat_max_context_length: int
    models: tuple[str, ...]
    max_length: int
    max_context_length: int

    @classmethod
    def of(cls, offer: Offer) -> Reach:
        """Of a worker with this offer."""
        return cls(
            offer.chat_model,
            offer.chat_features,
            offer.receives_images,
            offer.chat_max_length,
            offer.chat_max_context_length,
            offer.models,
            offer.max_length,
            offer.max_context_length,
        )


class Servers(NamedTuple):
    """Who could take a request now."""

    workers: int = 0
    threads: int = 0
    tokens_per_second: float = 0.0
    """Of all their threads together; a worker without a measured speed counts as one of 10."""
    reaches: frozenset[Reach] = frozenset()
    speeds: Mapping[str, float] = {}
    """Tokens a second of the online workers that serve its models, by their ids."""
    refused: Mapping[str, int] = {}
    """Online workers that serve its models and may not have it, counted by reason (`refusal`)."""
    gap: Gap | None = None
    """Why nobody may have it, where that is the workers' declarations."""


async def servers(
    database: Database,
    wanted: Wanted,
    *,
    now_ms: int,
    online_window_s: int,
    rules: Rules = Rules(),  # noqa: B008 - immutable
) -> Servers:
    """Which online workers may take such a request.

    Raise DatabaseUnavailable.
    """
    since_ms = now_ms - online_window_s * 1000
    found = await online(database, wanted.models, chat=wanted.chat, since_ms=since_ms, rules=rules)
    return judged(wanted, found)


def judged(wanted: Wanted, found: Iterable[Worker]) -> Servers:
    """Which of these workers, all serving its models, may take a request."""
    found = list(found)
    eligible: list[Worker] = []
    refused: dict[str, int] = {}
    for worker in found:
        reason = refusal(wanted, worker)
        if reason is None:
            eligible.append(worker)
        else:
            refused[reason] = refused.get(reason, 0) + 1
    return Servers(
        workers=len(eligible),
        threads=sum(worker.threads for worker in eligible),
        tokens_per_second=sum(pace(worker.speed) * worker.threads for worker in eligible),
        reaches=frozenset(Reach.of(worker.offer) for worker in eligible),
        speeds={worker.id: pace(worker.speed) for worker in found},
        refused=refused,
        gap=None if eligible else _gap(wanted, found),
    )


def _gap(wanted: Wanted, found: Iterable[Worker]) -> Gap | None:
    """What these workers' declarations lack, where nothing else keeps the request from them.

    Workers that its restrictions leave out do not count; one that only its speed holds back means
    that there is no gap, as does nobody at all: both can change while the request waits.
    """
    missing: set[str] = set()
    exceeded: set[str] = set()
    for worker in found:
        if not wanted.chat:
            return None
        if restriction(wanted, worker) is not None:
            continue
        lacks, above = _shortfall(wanted, worker.offer)
        if not (lacks or above):
            return None
        missing |= lacks
        exceeded |= above
    if not (missing or exceeded):
        return None
    return Gap(tuple(sorted(missing)), tuple(limit for limit in _LIMITS if limit in exceeded))


def _shortfall(wanted: Wanted, offer: Offer) -> tuple[set[str], set[str]]:
    """All that a chat request needs and this offer has not, and all limits that it is above."""
    lacks = set(wanted.features - offer.chat_features)
    if wanted.images and "vision" not in lacks and not offer.receives_images:
        lacks.add("image_transports")
    temperature, limit = wanted.tools_temperature, offer.tools_max_temperature
    above = {
        "max_context_length": wanted.max_context_length > offer.chat_max_context_length,
        "max_length": wanted.max_length > offer.chat_max_length,
        "tools_max_temperature": temperature is not None
        and limit is not None
        and temperature > limit,
    }
    return lacks, {name for name, exceeds in above.items() if exceeds}
