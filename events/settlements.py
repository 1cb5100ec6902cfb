"""What a cancel owes for the jobs that it ended, read off its event in one way by all who count it
(spec, Pricing)."""

from __future__ import annotations

from typing import NamedTuple

from events.prices import Rate
from events.types import Cancelled


class Settlement(NamedTuple):
    """One job of a streamed request that its cancel ended."""

    generation_id: str
    characters: int  # that its worker had posted
    elapsed_ms: int  # since its assignment; 0: not recorded
    worker_id: str
    owner_id: int
    trusted: bool
    """Whether the owner was, when it was assigned."""
    believable: int  # 10^-3 tokens a second that the worker may reach; 0: not recorded
    price: int  # 10^-4 kudos for what was posted


def settlements(event: Cancelled) -> list[Settlement]:
    """In the order of the event; none where it ended nothing, or was written before such jobs were
    paid for."""
    if not event.rates:
        return []
    of = {generation_id: i for i, generation_id in enumerate(event.generations)}
    times = event.elapsed_ms or (0,) * len(event.settled)
    found = []
    for generation_id, characters, elapsed_ms in zip(
        event.settled, event.characters, times, strict=True
    ):
        i = of[generation_id]
        found.append(
            Settlement(
                generation_id,
                characters,
                elapsed_ms,
                event.workers[i],
                event.owners[i],
                event.trusted[i] == 1,
                event.believable[i] if event.believable else 0,
                Rate.parse(event.rates[i]).price(characters, event.max_length),
            )
        )
    return found
