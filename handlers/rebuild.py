"""Rebuilding hot state from what is left: a snapshot, the archive, the stream, and what Postgres
knows of.

Every command is refused (503) meanwhile. The gate outlives a crash, and each step may be done
again: a run that was killed is mended by another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import structlog

from archive import snapshots
from archive.archive import Archive, HistoryLost
from archive.segments import Raw, Segment, opened
from events.base import START, Position
from handlers.cancel import expire
from handlers.limits import Limits
from handlers.log import Log
from handlers.replay import PAGE, fold, read_log
from handlers.settle import Settler
from handlers.snapshots import drop, put_newest
from handlers.stream import holds, stretch
from handlers.threads import Threads

logger = structlog.get_logger()

OUTSIDE = (
    "content of requests",
    "profiles",
    "timeouts of addresses",
    "messages to workers",
    "object deletes that are to be tried again",
)
"""What Redis holds and the log does not: gone where Redis lost what it had."""


class LostMeanwhile(Exception):
    """Redis lost what it held while state was rebuilt: run it again."""


class Elsewhere(Protocol):
    """What Postgres knows of the logs."""

    async def farthest(self, partition: int) -> Position:
        """The last event of a partition's log that any read model, or the archiver, came to."""

    async def ledger_lines(self, partition: int, after: Position, until: Position | None) -> int:
        """How many lines of the ledger are of events behind `after` (and in front of `until`)."""


class Lost(NamedTuple):
    """What is missing in a partition's log, as far as anybody knows."""

    behind: Position
    """Where the log that is left ends, or is broken off; START where nothing is left."""
    known: Position
    """The farthest lost event that Postgres knows of; `behind` where it knows of none."""
    ledger_lines: int
    """That Postgres has of lost events."""
    trimmed: int
    """Events that were trimmed before they were archived, where the stream tells."""
    added: int
    """Events that came after what was lost; they are kept."""


class Rebuilt(NamedTuple):
    """A partition's state as it is now."""

    partition: int
    snapshot: Position
    """That it was folded on; START where there was none."""
    before: int
    """Events in that snapshot."""
    folded: int
    """Events folded behind it."""
    position: Position
    """Of the last one."""
    forgotten: bool
    """Whether Redis had lost all that it had of the partition."""
    lost: Lost | None


async def rebuild_state(log: Log, elsewhere: Elsewhere | None = None) -> list[Rebuilt]:
    """Drop hot state and fold it again; say what came of each partition.

    Streams, content and whatever else is no state stay. A stream that does not hold the event at
    the archive's end is joined to it: behind that event comes what it has of later ones. Raise
    HistoryLost, and leave all as it is, where the log has no beginning; Damaged, RedisUnavailable,
    ArchiveUnavailable, LostMeanwhile and what `elsewhere` raises, after which it is to be run
    again. Not two at once: they would fold into the same state.
    """
    threads = Threads(1, waiting=1, name="rebuild")
    try:
        return await _Rebuild(log, elsewhere, threads).run()
    finally:
        threads.close()


class _Rebuild:
    def __init__(self, log: Log, elsewhere: Elsewhere | None, threads: Threads) -> None:
        self._log = log
        self._elsewhere = elsewhere
        self._threads = threads

    async def run(self) -> list[Rebuilt]:
        log, partitions = self._log, self._log.keys.all()
        await log.scripts.preload("replay_event")
        for partition in partitions:
            await self._check(partition)
        for partition in partitions:
            await log.read("HSET", log.keys.control(partition), "gate", "rebuild")
        rebuilt = [await self._one(partition) for partition in partitions]
        await self._set_clocks(rebuilt)
        await log.begin()
        await self._check_gates()
        for partition in partitions:
            await log.read("HDEL", log.keys.control(partition), "gate")
        return rebuilt

    async def _check_gates(self) -> None:
        """Raise LostMeanwhile where what was folded is gone, which takes the gate along. What we
        marked as begun since is not."""
        log = self._log
        controls = [log.keys.control(partition) for partition in log.keys.all()]
        lost = [each for each in controls if not await log.read("HEXISTS", each, "gate")]
        for each in lost:
            await log.read("HDEL", each, "last_ms")
        if lost:
            raise LostMeanwhile("Redis lost what it held while state was rebuilt: run it again")

    async def _check(self, partition: int) -> None:
        """Raise HistoryLost where there is no beginning from which to fold."""
        archived = await self._archived(partition)
        if archived is None and not (await stretch(self._log, partition)).whole:
            stream = self._log.keys.events(partition)
            raise HistoryLost(f"{stream} was trimmed, and nothing of it is archived")

    async def _one(self, partition: int) -> Rebuilt:
        log = self._log
        forgotten = not await log.has_begun(partition)
        lost = await self._join(partition)
        await drop(log, partition)
        base = await put_newest(log.archive, log, partition)
        position, folded = base.position, 0
        async for page in read_log(log, partition, base.position):
            await fold(log, page)
            position, folded = page[-1].recorded.position, folded + len(page)
        return Rebuilt(partition, base.position, base.events, folded, position, forgotten, lost)

    async def _archived(self, partition: int) -> Segment | None:
        """The archive's last segment."""
        archive = self._log.archive
        if archive is None:
            return None
        return await self._threads.run(lambda: _end(archive, partition))

    async def _join(self, partition: int) -> Lost | None:
        """Have the stream hold the event at the archive's end; say what is lost."""
        log = self._log
        end = await self._archived(partition)
        while end is not None and not await holds(log, partition, end.last):
            # An archiver that is at work may have gone on meanwhile, and trimmed behind it.
            before, end = end, await self._archived(partition)
            if end == before:
                return await self._put_in_front(partition, end)
        return await self._lost(partition, await log.head(partition))

    async def _put_in_front(self, partition: int, end: Segment) -> Lost | None:
        """Begin the stream with the event at the archive's end, under its own position. Behind it
        stays whatever came later; what came before is the archive's."""
        log, archive = self._log, self._log.archive
        assert archive is not None  # noqa: S101 - it has a segment
        entries = await self._threads.run(lambda: opened(end, archive.bucket.get(end.key)))
        was = await stretch(log, partition)
        new = log.keys.events_anew(partition)
        await log.read("UNLINK", new)
        await _append(log, new, entries[-1:])
        archived = end.beyond - 1
        await log.read("XSETID", new, str(end.last), "ENTRIESADDED", archived)
        added, position, first = 0, end.last, None
        while page := await log.read(
            "XRANGE", log.keys.events(partition), f"({position}", "+", "COUNT", PAGE
        ):
            later = [Raw(*each) for each in page]
            await _append(log, new, later)
            added, position = added + len(later), later[-1].position
            first = first or later[0].position
        await log.read("RENAME", new, log.keys.events(partition))
        # A stream that lost nothing has counted those that it has not.
        trimmed = max(0, was.added - was.events - archived) if was.events else 0
        lost = await self._lost(partition, end.last, first)
        logger.warning(
            "log_joined",
            partition=partition,
            archived=str(end.last),
            added=added,
            trimmed=trimmed,
        )
        lost = lost or Lost(end.last, end.last, 0, 0, 0)
        return lost._replace(trimmed=trimmed, added=added)

    async def _lost(
        self, partition: int, behind: Position, until: Position | None = None
    ) -> Lost | None:
        """What Postgres knows of events behind where the log ends, or is broken off."""
        if self._elsewhere is None:
            return None
        known = await self._elsewhere.farthest(partition)
        if known <= behind:
            return None
        lines = await self._elsewhere.ledger_lines(partition, behind, until)
        return Lost(behind, known, lines, 0, 0)

    async def _set_clocks(self, rebuilt: Sequence[Rebuilt]) -> None:
        """No event to come may stand in front of a lost one, of which others may still know: rows,
        fences in other partitions, clients. This also marks the partitions as begun."""
        log = self._log
        farthest = [each.position for each in rebuilt]
        farthest += [each.lost.known for each in rebuilt if each.lost]
        farthest += [at for each in rebuilt for at in await _fences(log, each.partition)]
        beyond = max(farthest).ms + 1 if any(each.lost for each in rebuilt) else 0
        for each in rebuilt:
            control = log.keys.control(each.partition)
            last_ms = int(await log.read("HGET", control, "last_ms") or 0)
            await log.read("HSET", control, "last_ms", max(last_ms, each.position.ms, beyond))


def _end(archive: Archive, partition: int) -> Segment | None:
    """The archive's last segment, from the newest snapshot on, so that not all names are listed."""
    newest = next(iter(snapshots.listed(archive, partition)), None)
    return archive.end(partition, START if newest is None else newest.position)


async def _append(log: Log, stream: str, entries: Sequence[Raw]) -> None:
    adding = [log.read("XADD", stream, each.id, *each.fields) for each in entries]
    if log.redis.ordered:
        await asyncio.gather(*adding)
    else:
        for each in adding:
            await each


async def _fences(log: Log, partition: int) -> list[Position]:
    return [Position.parse(each) for each in await log.read("HVALS", log.keys.fences(partition))]


class TakenUp(NamedTuple):
    """What was done once commands were let in again."""

    fences: int
    """That stood at a lost event."""
    expired: int
    """Requests that waited and have no content any more."""


async def take_up(log: Log, limits: Limits) -> TakenUp:
    """Mend what a loss left behind, by events as any others: to be called behind `rebuild_state`,
    and again where that was killed.

    Fences that name a lost event go back to the last one that its log has in front of it. Requests
    that wait and whose content is gone end as expired, without blame.
    """
    fences = expired = 0
    for partition in log.keys.all():
        fences += await Settler(log, limits, partition).rejoin()
    for partition in log.keys.all():
        due = await log.read("ZRANGE", log.keys.due(partition, "request"), 0, -1)
        for first in range(0, len(due), PAGE):
            ids = [each.decode() for each in due[first : first + PAGE]]
            lost = [id_ for id_ in ids if await _is_lost(log, id_)]
            expired += sum([await expire(log, limits, id_) for id_ in lost])
    return TakenUp(fences, expired)


async def _is_lost(log: Log, request_id: str) -> bool:
    (state, waiting), content = await asyncio.gather(
        log.read("HMGET", log.keys.request(request_id), "state", "waiting"),
        log.read("EXISTS", log.keys.content(request_id)),
    )
    return bool(state == b"open" and int(waiting or 0) > 0 and not content)


__all__ = ["OUTSIDE", "Elsewhere", "Lost", "Rebuilt", "TakenUp", "rebuild_state", "take_up"]
