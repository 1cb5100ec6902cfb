"""Long queues for pops to look through: rows of the read model that nobody can tell from real ones.

They come from `submitted` events through the projection's own fold and its own SQL, but from no
log: fifty thousand real submissions would take minutes. No pop tries one: those out of reach are
never offered, and those within reach stand behind the requests that are really submitted.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping

import psycopg
from msgspec.structs import replace

from events.base import Position, Recorded
from events.types import Demand, Submitted
from handlers.chat.vocabulary import FEATURES
from projections.changes import encode
from projections.eligibility import ELIGIBILITY

LENGTH = 550
"""Tokens that the requests within reach ask for."""
LIMIT = 600
"""The longest reply of the worker that pops."""
TOO_LONG = 1000
"""Tokens, to the next power of two the same: such requests are seen one by one, not as a class."""

NEAR = "all in reach"
_CHANCE = random.Random(1)
_APART_MS = 600_000
_TTL = 24 * 3600
_BATCH = 1000
"""Requests in one statement."""


def _features() -> Demand:
    some = _CHANCE.sample(sorted(FEATURES), _CHANCE.randint(1, len(FEATURES)))
    return Demand(features=tuple(sorted(some)))


def _listed() -> Demand:
    return Demand(only=(_id(),))


KINDS: Mapping[str, Callable[[], Demand]] = {
    NEAR: Demand,
    "features": _features,
    "only-lists": _listed,
    "trust": lambda: Demand(trusted_workers=True),
    "length": Demand,
}
"""What keeps the rows of a queue from the worker that pops. Each queue is of a model of that
name."""


def fill(database_url: str, count: int) -> None:
    """Write a queue of so many requests for each kind, and let Postgres look at them once."""
    write = f"SELECT {ELIGIBILITY.write}(%s::jsonb)".encode()
    with psycopg.connect(database_url, autocommit=True) as connection:
        for kind in KINDS:
            for first in range(0, count, _BATCH):
                some = [_request(kind, n) for n in range(first, min(count, first + _BATCH))]
                connection.execute(write, (encode(ELIGIBILITY.fold(some)),))
        connection.execute("VACUUM ANALYZE queue")


def _request(kind: str, number: int) -> Recorded:
    apart = _APART_MS if kind == NEAR else -_APART_MS
    event = Submitted(
        request_id=_id(),
        user_id=10**9,  # nobody
        chat=True,
        jobs=1,
        max_length=TOO_LONG if kind == "length" else LENGTH,
        stream=False,
        ttl=_TTL,
        priority=0,
        data=replace(KINDS[kind](), models=(kind,)),
    )
    return Recorded(0, Position(int(time.time() * 1000) + apart, number), event)


def _id() -> str:
    return str(uuid.UUID(int=_CHANCE.getrandbits(128), version=4))
