"""How long a request may be and still need no kudos upfront (spec, Free output allowance)."""

from __future__ import annotations

from typing import NamedTuple

from handlers.submit import NewRequest


class Terms(NamedTuple):
    """Between which lengths the allowance moves, and at which waits. The spec's defaults."""

    ceiling: int = 4096
    """Tokens that idle workers generate without kudos upfront."""
    floor: int = 512
    """Tokens that are free under any load."""
    full_wait: float = 60
    """Seconds of queue up to which the ceiling is free."""
    floor_wait: float = 300
    """Seconds of queue from which on only the floor is."""
    upfront_for_listed: bool = False
    """Whether a request that lists workers needs its kudos upfront, whatever its length."""


def allowance(wait: float | None, terms: Terms = Terms()) -> int:  # noqa: B008 - immutable
    """Tokens that are free for a request which would wait this many seconds.

    `wait` is None where no worker could take it: then it is the floor.
    """
    if wait is None:
        return terms.floor
    if wait <= terms.full_wait:
        return terms.ceiling
    if wait >= terms.floor_wait:
        return terms.floor
    part = (wait - terms.full_wait) / (terms.floor_wait - terms.full_wait)
    return round(terms.ceiling - (terms.ceiling - terms.floor) * part)


def listed(new: NewRequest, terms: Terms) -> bool:
    """Whether a request needs its kudos upfront because it lists workers: shorter or slower it
    would need them just the same."""
    return terms.upfront_for_listed and bool(new.demand.only or new.demand.ignore)


def upfront(new: NewRequest, free: int, terms: Terms) -> bool:
    """Whether a request needs its kudos upfront; `free`: its allowance."""
    return not new.demand.slow_workers or new.max_length > free or listed(new, terms)
