"""The janitor's pass over one partition: lapsed leases, expired requests, abandoned admissions,
monthly kudos that are due, in maintenance what still waits, and the objects of what is gone.

The due-sets only propose; every script judges the deadline again by Redis' clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from events.keys import Due
from handlers.admission import opened
from handlers.cancel import expire
from handlers.deletes import delete_objects
from handlers.grants import give_monthly
from handlers.limits import Limits
from handlers.log import Log
from handlers.modes import cancel_waiting, read_modes
from handlers.reply import lapse
from handlers.store import Store
from handlers.submit import abandon

logger = structlog.get_logger()

PAGE = 100
"""Due entries worked on at once: enough to share round trips, too few to hold up anyone else."""

PATIENCE = 3.0
"""Seconds that a pass waits for the store."""


class Swept(NamedTuple):
    """What one pass ended."""

    lapsed: int
    expired: int
    abandoned: int
    cancelled: int
    given: int = 0
    """Monthly kudos."""

    deleted: int = 0
    """Objects of requests that are gone."""


class Janitor:
    """Cleans up after one partition.

    patience  seconds that a pass waits for the store
    """

    def __init__(
        self,
        log: Log,
        limits: Limits,
        partition: int,
        store: Store | None = None,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self._log = log
        self._store = store
        self._limits = limits
        self._partition = partition
        self._patience = patience
        self._deleting: asyncio.Future[int] | None = None
        self._judged: set[str] = set()
        """Admissions past their deadline that came, or were given up: the settler releases them."""

    async def sweep(self) -> Swept:
        """Make one pass.

        Whatever it could not do is still due in the next.
        """
        # Admissions first: a request that is about to expire still shows that it came.
        abandoned = await self._abandon()
        lapsed = await self._each("lease", self._lapse)
        expired = await self._each(
            "request", lambda request_id: expire(self._log, self._limits, request_id)
        )
        cancelled = 0
        if (await read_modes(self._log)).maintenance:  # what came while it was switched on, too
            cancelled = await cancel_waiting(self._log, self._limits, self._partition)
        given = await self._give_monthly()
        deleted = await self._delete()  # last: what was just ended goes in the same pass
        swept = Swept(lapsed, expired, abandoned, cancelled, given, deleted)
        if any(swept):
            logger.info("swept", partition=self._partition, **swept._asdict())
        return swept

    async def close(self) -> None:
        """Stop what goes on behind the passes."""
        if self._deleting is not None:
            self._deleting.cancel()
            await asyncio.wait({self._deleting})

    async def _delete(self) -> int:
        """Delete objects; count those of which it is known by now.

        A store that hangs holds up the pass for a moment only: the calls go on behind it, and
        behind the next ones.
        """
        if self._store is None:
            return 0
        if self._deleting is None:
            self._deleting = asyncio.ensure_future(
                delete_objects(self._log, self._store, self._partition)
            )
            await asyncio.wait({self._deleting}, timeout=self._patience)
        if not self._deleting.done():
            return 0
        deleting, self._deleting = self._deleting, None
        return deleting.result()

    async def _each(self, what: Due, act: Callable[[str], Awaitable[bool]]) -> int:
        """Act on all that was due when the pass began, page by page; count what ended by it."""
        now = await self._log.now_ms(self._partition)
        ended = stayed = 0
        while page := await self._page(what, now, stayed):
            done = sum(await asyncio.gather(*(act(member) for member, _ in page)))
            ended += done
            stayed += len(page) - done
        return ended

    async def _abandon(self) -> int:
        """Give up what never came; count it. An entry stays due until the settler releases it."""
        now = await self._log.now_ms(self._partition)
        seen: set[str] = set()
        abandoned = 0
        while page := await self._page("admission", now, len(seen)):
            fresh = [(member, due) for member, due in page if member not in self._judged]
            for (member, _), verdict in zip(
                fresh, await asyncio.gather(*(self._judge(*each) for each in fresh)), strict=True
            ):
                if verdict is not None:
                    self._judged.add(member)
                    abandoned += verdict
            seen.update(member for member, _ in page)
        self._judged &= seen
        return abandoned

    async def _give_monthly(self) -> int:
        """Give the monthly kudos that are due; count them. Each grant moves its entry a month on,
        and another janitor's is told by its time."""
        now = await self._log.now_ms(self._partition)
        given = 0
        while page := await self._page("recurring", now, 0):
            done = await asyncio.gather(
                *(give_monthly(self._log, int(user_id), due) for user_id, due in page)
            )
            given += sum(done)
            if not all(done):  # somebody else is at it
                break
        return given

    async def _page(self, what: Due, now: int, skip: int) -> list[tuple[str, int]]:
        flat = await self._log.read(
            "ZRANGE", self._log.keys.due(self._partition, what), "-inf", now, "BYSCORE",
            "LIMIT", skip, PAGE, "WITHSCORES",
        )  # fmt: skip
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [(member.decode(), int(float(score))) for member, score in pairs]

    async def _judge(self, member: str, deadline_ms: int) -> bool | None:
        user_id, request_id = member.split(":", 1)
        named = await opened(self._log, int(user_id), request_id)
        if named is None:  # the settler was quicker
            return False
        return await abandon(self._log, self._limits, int(user_id), request_id, deadline_ms, *named)

    async def _lapse(self, generation_id: str) -> bool:
        request = await self._log.read("HGET", self._log.keys.generation(generation_id), "request")
        if request is None:
            return False
        return await lapse(self._log, self._limits, request.decode(), generation_id)
