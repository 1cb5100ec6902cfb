"""What of a partition's log stands in Redis, how much memory that takes, and taking off its
beginning."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from events.base import START, Position
from handlers.log import Log, ResponseError

SAMPLES = 64
"""Nodes of a stream that its size is reckoned from; it has some for each hundred events."""

EASED = 0.95
"""The part of a limit that has to be reached before it counts as passed no longer."""

PIECE = 10_000
"""Events that one call takes off at most: about a millisecond of Redis."""


class Stretch(NamedTuple):
    """The part of a log that is in Redis."""

    first: Position
    """Of its first event; START where it is empty."""
    last: Position
    """Of its last."""
    events: int
    """How many are there."""
    added: int
    """How many there ever were."""

    @property
    def whole(self) -> bool:
        """Whether nothing was ever taken off."""
        return self.added == self.events


async def stretch(log: Log, partition: int) -> Stretch:
    """Ask Redis. Raise RedisUnavailable."""
    try:
        told = await log.read("XINFO", "STREAM", log.keys.events(partition))
    except ResponseError:  # no such key: nothing was ever written, or all of it is gone
        return Stretch(START, START, 0, 0)
    fields = {_text(name): value for name, value in zip(told[::2], told[1::2], strict=True)}
    first, last = fields["first-entry"], fields["last-entry"]
    events = int(fields["length"])
    return Stretch(
        Position.parse(first[0]) if first else START,
        Position.parse(last[0]) if last else START,
        events,
        int(fields.get("entries-added", events)),
    )


async def holds(log: Log, partition: int, position: Position) -> bool:
    """Whether the event at this position is in Redis."""
    at = str(position)
    return bool(await log.read("XRANGE", log.keys.events(partition), at, at))


async def memory_of(log: Log, partition: int) -> int:
    """Bytes that a partition's log takes in Redis, about. Raise RedisUnavailable."""
    key = log.keys.events(partition)
    return int(await log.read("MEMORY", "USAGE", key, "SAMPLES", SAMPLES) or 0)


async def memory(log: Log) -> int:
    """Bytes that all logs take in Redis together. Raise RedisUnavailable."""
    return sum(await asyncio.gather(*(memory_of(log, each) for each in log.keys.all())))


def passes(used: float, limit: float, *, already: bool) -> bool:
    """Whether a limit is passed. One that was already is until what is used is a twentieth below:
    what stands at a limit would cross it each second."""
    return used > limit * (EASED if already else 1.0)


async def trim(log: Log, partition: int, floor: Position, piece: int = PIECE) -> int:
    """Take off what stands in front of `floor`, in whole nodes of the stream, so that some may be
    left; count it. The event at `floor` stays."""
    key, trimmed = log.keys.events(partition), 0
    while gone := int(await log.read("XTRIM", key, "MINID", "~", str(floor), "LIMIT", piece)):
        trimmed += gone
    return trimmed


def _text(name: bytes | str) -> str:
    return name if isinstance(name, str) else name.decode()
