"""When a snapshot of a partition's state is taken: the archiver asks behind each of its passes."""

from __future__ import annotations

import asyncio

import structlog

from archive import snapshots
from archive.archive import Archive, ArchiveUnavailable, Damaged, Gap
from events.codec import UnknownType
from handlers.errors import RedisUnavailable
from handlers.log import Log
from handlers.snapshots import take
from hordechat import scratch
from hordechat.embedded.valkey import NotInstalled
from hordechat.process import StartFailed

logger = structlog.get_logger()

_FAILURES = (
    StartFailed,
    OSError,
    ArchiveUnavailable,
    Damaged,
    Gap,
    UnknownType,
    RedisUnavailable,
)
"""What keeps a snapshot from being taken, and nothing from being archived."""

AGAIN_SECONDS = 600.0
"""Until a server for the fold is started again that did not start."""


class Snapshots:
    """Takes one each `every` events of the archive (0: never).

    folding  held meanwhile: a fold takes what CPU there is, so one partition goes after the other
    """

    def __init__(
        self, log: Log, archive: Archive, partition: int, every: int, folding: asyncio.Lock
    ) -> None:
        self._log = log
        self._archive = archive
        self._partition = partition
        self._every = every
        self._folding = folding
        self._taken: int | None = None
        self._not_before = 0.0

    async def in_time(self, archived: int) -> None:
        """Take one where it is time. Raise what `take` does.

        archived  how many events are in the archive
        """
        if not self._every or asyncio.get_running_loop().time() < self._not_before:
            return
        if self._taken is None:
            found = await asyncio.to_thread(snapshots.listed, self._archive, self._partition)
            self._taken = found[0].events if found else 0
        if archived - self._taken < self._every:
            return
        try:
            async with self._folding, scratch.beside(self._log, "snapshot") as folded:
                await take(self._archive, folded, self._partition)
            self._taken = archived
        except NotInstalled as error:
            self._every = 0
            logger.warning("takes_no_snapshots", partition=self._partition, reason=str(error))
        except _FAILURES as error:
            self._not_before = asyncio.get_running_loop().time() + AGAIN_SECONDS
            logger.warning("snapshot_failed", partition=self._partition, reason=str(error))
