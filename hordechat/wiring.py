"""From settings to the parts of a web process: the composition root of the API."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Sequence
from urllib.parse import urlsplit

from api.app import Parts
from api.availability import Availability, Queue
from api.clock import Clock
from api.guard import MemoryGuard
from api.health import Check
from api.matcher import Matcher
from api.wait import Drain, Watches
from events.base import Position
from events.keys import Keys
from handlers.accounts import Accounts
from handlers.log import Log
from handlers.pop import Workers
from hordechat.opening import limits_of
from hordechat.settings import Settings
from projections import eligibility
from projections.database import Database
from projections.follow import Follower
from projections.status import StatusLoader

_MOST_SPREAD = 8


def build(settings: Settings, log: Log, drain: Drain | None = None) -> Parts:
    """Build the parts, nothing running yet."""
    limits = limits_of(settings)
    database = Database(settings.database_url, timeout=settings.database_timeout_seconds)
    follower = Follower(settings.redis_url, database, log.keys)
    clock, drain = Clock(log), drain or Drain()
    watches = Watches(drain)

    def find(
        offer: eligibility.Offer,
        *,
        now_ms: int,
        limit: int,
        after: eligibility.Place,
        workers: Sequence[str],
    ) -> Awaitable[list[eligibility.Candidate]]:
        return eligibility.candidates(
            database, offer, now_ms=now_ms, limit=limit, after=after, workers=workers
        )

    matcher = Matcher(
        find,
        _Eligibility(follower, log.keys),
        clock,
        drain,
        spread=min(settings.web_workers, _MOST_SPREAD),
    )
    follower.on_status(watches.changed)
    follower.on_queue(matcher.hinted)
    return Parts(
        log=log,
        limits=limits,
        accounts=Accounts(log, settings.secret),
        workers=Workers(log, limits),
        database=database,
        loader=StatusLoader(database, log.keys),
        follower=follower,
        clock=clock,
        matcher=matcher,
        availability=Availability(
            log,
            database,
            follower,
            clock,
            online_window=settings.online_window_seconds,
            keep_seconds=settings.availability_cache_seconds,
        ),
        queue=Queue(database, clock),
        watches=watches,
        drain=drain,
        guard=MemoryGuard(log, settings.memory_limit_bytes),
        optional={"object_store": s3_check(settings.s3_endpoint_url)}
        if settings.s3_endpoint_url
        else {},
        max_body=settings.max_chat_body_bytes,
        max_messages=settings.max_chat_message_count,
        max_text_bytes=settings.max_chat_text_bytes,
        wait_limit=settings.wait_limit_seconds,
        stale_seconds=settings.stale_seconds,
    )


class _Eligibility:
    """How far the eligibility model has come, for the matcher."""

    def __init__(self, follower: Follower, keys: Keys) -> None:
        self._follower = follower
        self._partitions = keys.all()
        self.partition = keys.of

    def shown(self) -> list[Position]:
        return [self._follower.position("eligibility", each) for each in self._partitions]


@contextlib.asynccontextmanager
async def running(parts: Parts) -> AsyncIterator[Parts]:
    """What has to run beside the routes: following the read models, watching Redis' memory."""
    tasks = [
        asyncio.create_task(parts.follower.run(), name="follower"),
        asyncio.create_task(parts.guard.run(), name="memory guard"),
    ]
    try:
        yield parts
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await parts.log.close()
        await parts.database.close()


def s3_check(endpoint_url: str) -> Check:
    """The object store answers HTTP. What it holds is tried by those who store there."""
    parts = urlsplit(endpoint_url)
    host = parts.hostname or "localhost"
    context = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if context else 80)
    question = f"HEAD / HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()

    async def check() -> None:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        try:
            writer.write(question)
            answer = await reader.readline()
        finally:
            writer.close()
        if not answer.startswith(b"HTTP/1.") or answer.split()[1:2] >= [b"500"]:
            raise ConnectionError(f"answered {answer[:40]!r}")

    return check
