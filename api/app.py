"""The ASGI app, from parts that someone else built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import falcon.asgi
import msgspec

from api import errors, health
from api.availability import Availability, Queue
from api.body import BODY_SECONDS, Bodies
from api.chat import ChatAsync, ChatStatus
from api.clock import Clock
from api.disconnect import App, CancelOnDisconnect
from api.guard import MemoryGuard
from api.matcher import Matcher
from api.status import StatusReader
from api.text import Pop, Progress, Submit
from api.wait import Drain, Watches
from handlers.accounts import Accounts
from handlers.errors import RedisUnavailable
from handlers.limits import Limits
from handlers.log import Log
from handlers.pop import Workers
from projections.database import Database
from projections.follow import Follower
from projections.status import StatusLoader


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What the routes are made of. Built by the composition root, or by a test."""

    log: Log
    limits: Limits
    accounts: Accounts
    workers: Workers
    database: Database
    loader: StatusLoader
    follower: Follower
    clock: Clock
    matcher: Matcher
    availability: Availability
    queue: Queue
    watches: Watches
    drain: Drain
    guard: MemoryGuard
    optional: Mapping[str, health.Check] = {}
    """Checks of what the service can do without for a while, by name."""
    max_body: int  # bytes, of a chat request
    max_messages: int
    max_text_bytes: int
    wait_limit: int  # seconds
    stale_seconds: float
    body_seconds: float = BODY_SECONDS


def create_app(parts: Parts) -> App:
    """Every route, wrapped so that no handler outlives its client."""
    app: falcon.asgi.App[Any, Any] = falcon.asgi.App()
    errors.install(app)
    log, limits, accounts = parts.log, parts.limits, parts.accounts
    reader = StatusReader(
        log,
        parts.loader,
        parts.follower,
        parts.availability,
        parts.queue,
        parts.clock,
        stale_seconds=parts.stale_seconds,
    )
    # Clients and workers do not wait for each other's large bodies.
    asked = {"bodies": Bodies(seconds=parts.body_seconds)}
    worked = {"bodies": Bodies(seconds=parts.body_seconds)}
    app.add_route(
        "/v2/generate/chat/async",
        ChatAsync(
            log,
            limits,
            accounts,
            parts.availability,
            parts.guard,
            max_body=parts.max_body,
            max_messages=parts.max_messages,
            max_text_bytes=parts.max_text_bytes,
            **asked,
        ),
    )
    app.add_route(
        "/v2/generate/chat/status/{request_id}",
        ChatStatus(log, limits, reader, parts.watches, parts.drain, wait_limit=parts.wait_limit),
    )
    app.add_route(
        "/v2/generate/text/pop",
        Pop(
            log,
            limits,
            accounts,
            parts.workers,
            parts.matcher,
            wait_limit=parts.wait_limit,
            **worked,
        ),
    )
    app.add_route("/v2/generate/text/submit", Submit(log, limits, accounts, **worked))
    app.add_route("/v2/generate/text/progress", Progress(log, limits, accounts, **worked))
    app.add_route("/health/live", health.Live())
    needed = {
        "redis": health.redis_check(log),
        "postgres": health.postgres_check(parts.database),
    }
    app.add_route("/health/ready", health.Ready(needed, parts.optional, parts.drain))
    return CancelOnDisconnect(app)


def create_starting_app() -> App:
    """What answers while Redis has never answered yet: alive, not ready, and 503 on every route."""

    async def away() -> None:
        raise RedisUnavailable

    async def refuse(req: Any, resp: Any, **kwargs: Any) -> None:
        raise RedisUnavailable

    app: falcon.asgi.App[Any, Any] = falcon.asgi.App()
    errors.install(app)
    app.add_route("/health/live", health.Live())
    app.add_route("/health/ready", health.Ready({"redis": away}, {}, Drain()))
    app.add_sink(refuse)
    return CancelOnDisconnect(app)
