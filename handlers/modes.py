"""The modes of the whole deployment: maintenance.

In maintenance no new requests are taken (the routes refuse them) and what waits is cancelled; jobs
that a worker holds may be finished (spec, Completion signal; text_path_reference.md 2.7).
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import structlog

from events import codec
from events.types import ModesChanged
from handlers.cancel import cancel
from handlers.errors import RequestNotFound
from handlers.limits import Limits
from handlers.log import Log

logger = structlog.get_logger()

PAGE = 100
"""Requests looked at at once: enough to share round trips, too few to hold up anyone else."""


class State(NamedTuple):
    """The modes that are on."""

    maintenance: bool


class Modes:
    """The modes as a busy process asks for them: read once in `keep_seconds`.

    Under the test setting they are read each time.
    """

    def __init__(self, log: Log, *, keep_seconds: float = 1.0) -> None:
        self._log = log
        self._keep_seconds = 0.0 if log.test else keep_seconds
        self._known = State(maintenance=False)
        self._known_until = float("-inf")

    async def current(self) -> State:
        """The modes of a moment ago. Raise RedisUnavailable."""
        now = asyncio.get_running_loop().time()
        if now >= self._known_until:
            self._known = await read_modes(self._log)
            self._known_until = now + self._keep_seconds
        return self._known


async def read_modes(log: Log) -> State:
    """The modes as they are now."""
    return State(await log.read("HGET", log.keys.modes(), "maintenance") == b"1")


async def set_modes(log: Log, limits: Limits, *, maintenance: bool) -> bool:
    """Switch the modes; return whether that changed anything.

    Switching maintenance on cancels what waits. Where that is cut short, and for what a process
    lets in that has not heard of it, the janitor does it again.
    """
    (changed,) = await log.run(
        "set_modes",
        0,
        {"modes": log.keys.modes()},
        {
            "maintenance": int(maintenance),
            "event": codec.encode(ModesChanged(maintenance=maintenance)),
        },
    )
    if changed == b"1":
        logger.info("modes_changed", maintenance=maintenance)
    if maintenance:
        for partition in log.keys.all():
            await cancel_waiting(log, limits, partition)
    return changed == b"1"


async def cancel_waiting(log: Log, limits: Limits, partition: int) -> int:
    """Cancel every request of which a job waits, for maintenance; return how many.

    Every open request is in the due-set, and moves up in it with each hand-out: those that do so
    while this runs are left to the next run.
    """
    due = log.keys.due(partition, "request")
    last = await log.read("ZRANGE", due, 0, 0, "REV", "WITHSCORES")
    at, skip, cancelled = b"-inf", 0, 0
    while last:
        page = await log.read(
            "ZRANGE", due, at, last[1], "BYSCORE", "LIMIT", skip, PAGE, "WITHSCORES"
        )
        if not page:
            break
        ids, scores = page[::2], page[1::2]
        cancelled += sum(
            await asyncio.gather(*(_cancel(log, limits, each.decode()) for each in ids))
        )
        skip = scores.count(scores[-1]) + (skip if scores[-1] == at else 0)
        at = scores[-1]
    return cancelled


async def _cancel(log: Log, limits: Limits, request_id: str) -> bool:
    state, waiting = await log.read("HMGET", log.keys.request(request_id), "state", "waiting")
    if state != b"open" or waiting == b"0":
        return False
    try:
        return (await cancel(log, limits, None, request_id, "maintenance")).changed
    except RequestNotFound:  # it expired meanwhile
        return False
