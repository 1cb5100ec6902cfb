"""Taking from Redis what of a partition's log is archived, read by everyone and old; who holds that
back, and saying so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import structlog

from events.base import START, Position
from handlers.log import Log
from handlers.stream import stretch, trim

logger = structlog.get_logger()

BEHIND = 1500
"""Events by which a reader has to be behind to be told of: the settler's fences are up to 1000."""

LOOK_SECONDS = 10.0
AGAIN_SECONDS = 60.0
"""How often it is asked who is so far behind, and how often the same is told again."""


class Marks(NamedTuple):
    """How far a reader of the log has come, and how far what it announced."""

    position: Position
    signalled: Position


class Readers(Protocol):
    """Who reads a log from a checkpoint in Postgres."""

    async def readers(self, partition: int) -> Mapping[str, Marks]:
        """Every reader that has a checkpoint, by its name."""


class Held(NamedTuple):
    """Somebody who still needs the events from a position on."""

    by: str
    position: Position


async def fences_of(log: Log, partition: int) -> list[Position]:
    """How far the settler has carried a partition's events over to each partition; START where it
    has not begun, or state is being rebuilt."""
    told = [await log.read("HGET", log.keys.fences(target), partition) for target in log.keys.all()]
    return [Position.parse(fence) if fence else START for fence in told]


def holders(
    readers: Mapping[str, Marks], fences: Sequence[Position], first: Position
) -> list[Held]:
    """Who needs events of a stream that begins at `first`. Who stands in front of it reads the
    archive; a settler that has not begun will begin with the stream."""
    held = [
        Held(f"projector {name}", mark)
        for name, marks in readers.items()
        for mark in marks
        if mark >= first
    ]
    held += [
        Held(f"settler to partition {target}", fence)
        for target, fence in enumerate(fences)
        if fence >= first or fence == START
    ]
    return held


class Trimming:
    """Trims one partition's log.

    retention      seconds that events stay in Redis, where there is room
    look_seconds   between two looks at who holds it back
    again_seconds  until the same is told again
    """

    def __init__(
        self,
        log: Log,
        readers: Readers,
        retention: float,
        partition: int,
        *,
        look_seconds: float = LOOK_SECONDS,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._log = log
        self._readers = readers
        self._retention = retention
        self._partition = partition
        self._key = log.keys.events(partition)
        self._look_seconds = look_seconds
        self._again_seconds = again_seconds
        self._told = ("", 0.0)
        self._looked_at = float("-inf")

    async def frees(self, archived: Position) -> bool:
        """Whether nobody needs what stands in front of the event at `archived`."""
        here = await stretch(self._log, self._partition)
        return all(each.position > archived for each in await self._held(here.first))

    async def trim(self, archived: Position, now: int, *, pressed: bool) -> None:
        """Take off what nobody needs; say who holds the rest back.

        archived  the last event that is; it stays
        now       of the log's clock, milliseconds
        pressed   there is no room for the retention
        """
        floor, first = archived, (await stretch(self._log, self._partition)).first
        if not pressed:
            floor = min(floor, Position(max(0, now - round(self._retention * 1000)), 0))
        if floor <= first:
            await self._tell(None, floor)
            return
        last = min(await self._held(first), key=_position, default=None)
        await self._tell(last if last and last.position < floor else None, floor)
        if last is not None:
            floor = min(floor, last.position)
        if trimmed := await trim(self._log, self._partition, floor):
            logger.info("trimmed", partition=self._partition, events=trimmed, floor=str(floor))

    async def _tell(self, holder: Held | None, wanted: Position) -> None:
        """Say who holds the trim back: when that changes, and after a while."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < self._look_seconds:
            return
        self._looked_at = now
        before, said_at = self._told
        if holder is not None:
            page = await self._log.read(
                "XRANGE", self._key, f"({holder.position}", str(wanted), "COUNT", BEHIND
            )
            holder = holder if len(page) == BEHIND else None
        if holder is None:
            if before:
                logger.info("trim_goes_on", partition=self._partition)
            self._told = ("", now)
        elif holder.by != before or now - said_at >= self._again_seconds:
            logger.warning(
                "trim_held_back",
                partition=self._partition,
                by=holder.by,
                position=str(holder.position),
                seconds=round((wanted.ms - holder.position.ms) / 1000),
            )
            self._told = (holder.by, now)

    async def _held(self, first: Position) -> list[Held]:
        readers = await self._readers.readers(self._partition)
        return holders(readers, await fences_of(self._log, self._partition), first)


def _position(held: Held) -> Position:
    return held.position
