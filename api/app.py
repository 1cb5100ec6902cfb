"""The ASGI app, from parts that someone else built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import falcon.asgi
import msgspec

from api import errors, health, openapi
from api.allowance import Allowances
from api.availability import Availability, Queue
from api.body import BODY_SECONDS, Bodies
from api.chat import ChatAsync, ChatStatus
from api.client import Callers
from api.clock import Clock
from api.cors import Cors
from api.description.operations import described
from api.disconnect import App, CancelOnDisconnect
from api.gate import Gate
from api.guard import MemoryGuard
from api.kudos import TransferRoute
from api.limits import Limiter
from api.matcher import Matcher
from api.models import Models
from api.modes import ModesRoute
from api.pace import Pace
from api.patience import PATIENCE, Patience
from api.service_status import (
    Census,
    HeartbeatRoute,
    ModelRoute,
    ModelsRoute,
    PerformanceRoute,
    TotalsByModel,
    TotalsRoute,
)
from api.shared_keys import SharedKeyRoute, SharedKeysRoute
from api.status import CHAT, TEXT, StatusReader
from api.text import Pop, Progress, Submit
from api.text_requests import TextAsync, TextParameters, TextStatus
from api.timeouts import TimeoutsRoute
from api.users import FindUser, People, UserRoute, UsersRoute
from api.wait import Drain, Watches
from api.worker_messages import MessageRoute, MessagesRoute
from api.workers import Directory, WorkerByName, WorkerRoute, WorkersRoute
from handlers.accounts import Accounts
from handlers.chat.delivery import Delivery
from handlers.chat.pictures import Pictures
from handlers.chat.pricing import Tariff
from handlers.chat.schema_pool import SchemaPool
from handlers.errors import RedisUnavailable
from handlers.limits import Limits
from handlers.log import Log
from handlers.moderation import Moderation
from handlers.modes import Modes
from handlers.passkeys import Passkeys
from handlers.pop import Workers
from handlers.reference import Reference
from handlers.store import Store
from handlers.timeouts import Timeouts
from handlers.worker_addresses import WorkerAddresses
from handlers.worker_messages import Messages
from projections.database import Database
from projections.follow import Follower
from projections.rules import Rules
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
    rules: Rules
    queue: Queue
    gate: Gate
    allowances: Allowances
    store: Store | None
    """None: there is none, and requests with images are refused."""
    delivery: Delivery
    models: Models
    reference: Reference
    tariff: Tariff
    moderation: Moderation
    secret: str
    """Under which operation fingerprints are kept."""
    chat_admission: bool
    watches: Watches
    drain: Drain
    guard: MemoryGuard
    pictures: Pictures
    schemas: SchemaPool
    callers: Callers
    passkeys: Passkeys
    limiter: Limiter | None
    """None: nobody is limited."""
    timeouts: Timeouts
    modes: Modes
    directory: Directory
    messages: Messages
    addresses: WorkerAddresses
    census: Census
    version: str
    """Of the service."""
    admins: frozenset[str]
    """Who may change the modes and delete accounts over HTTP, as `name#id`."""
    node: str
    """What answers call this process: `<host>:<port>:<version>`."""
    optional: Mapping[str, health.Check] = {}
    """Checks of what the service can do without for a while, by name."""
    max_body: int  # bytes, of a chat request
    max_messages: int
    max_text_bytes: int
    wait_limit: int  # seconds
    stale_seconds: float
    body_seconds: float = BODY_SECONDS
    patience: Patience = PATIENCE


def create_app(parts: Parts) -> App:
    """Every route, wrapped so that no handler outlives its client."""
    app: falcon.asgi.App[Any, Any] = falcon.asgi.App()
    errors.install(app, parts.log.check_begun)
    if parts.limiter is not None:
        app.add_middleware(parts.limiter)
    log, limits, accounts, tariff = parts.log, parts.limits, parts.accounts, parts.tariff
    reader, text_reader = (
        StatusReader(
            family,
            log,
            parts.loader,
            parts.follower,
            parts.availability,
            parts.queue,
            parts.clock,
            stale_seconds=parts.stale_seconds,
            wait_seconds=parts.patience.shown,
        )
        for family in (CHAT, TEXT)
    )
    # Clients and workers do not wait for each other's large bodies. The loop is one.
    pace = Pace()

    def address(req: falcon.asgi.Request) -> str:
        return parts.callers.caller(req).address

    asked = {"bodies": Bodies(address, seconds=parts.body_seconds, pace=pace)}
    worked = {"bodies": Bodies(address, seconds=parts.body_seconds, pace=pace)}
    app.add_route(
        "/v2/generate/chat/async",
        ChatAsync(
            limits,
            accounts,
            parts.gate,
            parts.models,
            parts.moderation,
            tariff,
            parts.availability,
            parts.allowances,
            parts.pictures,
            secret=parts.secret,
            admission=parts.chat_admission,
            max_body=parts.max_body,
            max_messages=parts.max_messages,
            max_text_bytes=parts.max_text_bytes,
            **asked,
        ),
    )
    app.add_route(
        "/v2/generate/chat/status/{request_id}",
        ChatStatus(
            log,
            limits,
            tariff,
            reader,
            parts.watches,
            parts.drain,
            wait_limit=parts.wait_limit,
        ),
    )
    app.add_route(
        "/v2/generate/text/async",
        TextAsync(
            log,
            limits,
            parts.gate,
            parts.moderation,
            tariff,
            parts.availability,
            parts.allowances,
            **asked,
        ),
    )
    app.add_route(
        "/v2/generate/text/status/{request_id}",
        TextStatus(
            log,
            limits,
            tariff,
            text_reader,
            parts.watches,
            parts.drain,
            wait_limit=parts.wait_limit,
        ),
    )
    app.add_route(
        "/v2/generate/text/request/{request_id}", TextParameters(log, accounts, text_reader)
    )
    app.add_route(
        "/v2/generate/text/pop",
        Pop(
            log,
            limits,
            accounts,
            parts.workers,
            parts.matcher,
            parts.rules,
            tariff,
            parts.callers,
            parts.timeouts,
            parts.messages,
            parts.addresses,
            parts.delivery,
            wait_limit=parts.wait_limit,
            **worked,
        ),
    )
    app.add_route(
        "/v2/generate/text/submit",
        Submit(log, limits, accounts, parts.schemas, parts.reference, tariff, **worked),
    )
    app.add_route("/v2/generate/text/progress", Progress(log, limits, accounts, **worked))
    operated = {"bodies": Bodies(address, seconds=parts.body_seconds, pace=pace)}
    app.add_route(
        "/v2/status/modes",
        ModesRoute(log, limits, accounts, parts.modes, admins=parts.admins, **operated),
    )
    app.add_route("/v2/workers", WorkersRoute(accounts, parts.directory))
    app.add_route("/v2/workers/name/{worker_name:path}", WorkerByName(accounts, parts.directory))
    app.add_route("/v2/workers/messages", MessagesRoute(log, accounts, parts.messages, **operated))
    app.add_route("/v2/workers/messages/{message_id}", MessageRoute(accounts, parts.messages))
    app.add_route(
        "/v2/workers/{worker_id}",
        WorkerRoute(log, parts.database, accounts, parts.directory, **operated),
    )
    app.add_route(
        "/v2/kudos/transfer",
        TransferRoute(
            log,
            limits,
            accounts,
            parts.gate.settled,
            secret=parts.secret,
            bodies=Bodies(address, seconds=parts.body_seconds, pace=pace),
        ),
    )
    people = People(log, limits, parts.database)
    app.add_route("/v2/find_user", FindUser(log, accounts, people))
    app.add_route("/v2/users", UsersRoute(people))
    app.add_route(
        "/v2/users/{user_id}",
        UserRoute(
            log,
            accounts,
            people,
            parts.messages,
            secret=parts.secret,
            admins=parts.admins,
            **operated,
        ),
    )
    app.add_route("/v2/sharedkeys", SharedKeysRoute(log, accounts, **operated))
    app.add_route("/v2/sharedkeys/{shared_key}", SharedKeyRoute(log, accounts, **operated))
    census = parts.census
    app.add_route("/v2/status/models", ModelsRoute(census, parts.reference))
    app.add_route("/v2/status/models/{model_name:path}", ModelRoute(census, parts.reference))
    app.add_route("/v2/status/performance", PerformanceRoute(census))
    app.add_route(
        "/v2/status/heartbeat", HeartbeatRoute(parts.database, parts.guard, parts.version)
    )
    app.add_route("/v2/stats/text/totals", TotalsRoute(census))
    app.add_route("/v2/stats/text/models", TotalsByModel(census))
    app.add_route("/v2/operations/ipaddr", TimeoutsRoute(accounts, parts.timeouts, **operated))
    app.add_route("/health/live", health.Live())
    needed = {
        "redis": health.redis_check(log),
        "postgres": health.postgres_check(parts.database),
    }
    optional = dict(parts.optional)
    if log.keys.partitions > 1:
        optional["partitions"] = health.partitions_check(log)
    app.add_route("/health/ready", health.Ready(needed, optional, parts.drain))
    app.add_route("/v2/openapi.json", openapi.OpenApi(described()))
    app.add_route("/docs", openapi.Docs())
    app.add_route("/docs/{name}", openapi.DocsFile())
    return CancelOnDisconnect(Cors(app, node=parts.node))


def create_starting_app(node: str) -> App:
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
    return CancelOnDisconnect(Cors(app, node=node))
