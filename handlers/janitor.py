"""The janitor's pass over one partition: lapsed leases, expired requests, abandoned admissions.

The due-sets only propose; every script judges the deadline again by Redis' clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from events.keys import Due
from handlers.cancel import expire
from handlers.limits import Limits
from handlers.log import Log
from handlers.reply import lapse
from handlers.submit import abandon

logger = structlog.get_logger()

PAGE = 100
"""Due entries worked on at once: enough to share round trips, too few to hold up anyone else."""


class Swept(NamedTuple):
    """What one pass ended."""

    lapsed: int
    expired: int
    abandoned: int


class Janitor:
    """Cleans up after one partition."""

    def __init__(self, log: Log, limits: Limits, partition: int) -> None:
        self._log = log
        self._limits = limits
        self._partition = partition
        self._came: set[str] = set()
        """Admissions past their deadline whose request exists: the settler will release them,
        nobody else."""

    async def sweep(self) -> Swept:
        """Make one pass.

        Whatever it could not do is still due in the next.
        """
        lapsed = await self._each("lease", self._lapse)
        expired = await self._each(
            "request", lambda member, _: expire(self._log, self._limits, member)
        )
        abandoned = await self._each("admission", self._abandon)
        swept = Swept(lapsed, expired, abandoned)
        if any(swept):
            logger.info("swept", partition=self._partition, **swept._asdict())
        return swept

    async def _each(self, what: Due, act: Callable[[str, int], Awaitable[bool]]) -> int:
        """Act on all that was due when the pass began, page by page; count what ended."""
        now = await self._log.now_ms(self._partition)
        ended = stayed = 0
        while True:
            page = await self._log.read(
                "ZRANGE", self._log.keys.due(self._partition, what), "-inf", now, "BYSCORE",
                "LIMIT", stayed, PAGE, "WITHSCORES",
            )  # fmt: skip
            if not page:
                break
            due = [(page[i].decode(), int(float(page[i + 1]))) for i in range(0, len(page), 2)]
            done = sum(await asyncio.gather(*(act(member, score) for member, score in due)))
            ended += done
            stayed += len(due) - done
        return ended

    async def _lapse(self, generation_id: str, _: int) -> bool:
        request = await self._log.read("HGET", self._log.keys.generation(generation_id), "request")
        return request is not None and await lapse(
            self._log, self._limits, request.decode(), generation_id
        )

    async def _abandon(self, member: str, deadline_ms: int) -> bool:
        """The entry stays due until the settler releases it, so it never counts as gone from the
        page."""
        if member not in self._came:
            user_id, request_id = member.split(":", 1)
            await abandon(self._log, self._limits, int(user_id), request_id, deadline_ms)
            self._came.add(member)
        return False
