"""Is this process alive, and can it serve? Each part of the answer is really tried."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import falcon.asgi
import msgspec
import structlog
from msgspec import UNSET, UnsetType

from api import guard
from api.errors import JSON, RETRY_AFTER
from api.wait import Drain
from handlers.errors import RedisUnavailable
from handlers.log import FORGOTTEN, Log
from projections.database import Database

logger = structlog.get_logger()

Check = Callable[[], Awaitable[None]]
"""Raises where its part does not serve."""

CHECK_SECONDS = 0.8
ANSWER_SECONDS = 0.4
"""For a partition's answer: the node of another may hang."""
_encode = msgspec.json.Encoder().encode


class Alive(msgspec.Struct, frozen=True):
    """The body of `GET /health/live`."""

    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 200 of `GET /health/ready`."""

    status: Literal["ok", "degraded"]
    degraded: list[str] | UnsetType = UNSET
    """What the service does without for a while."""


class NotReady(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 503 of `GET /health/ready`."""

    status: Literal["failing"] = "failing"
    failing: list[str]
    """What it cannot do without, or `draining`: the process ends."""
    degraded: list[str] | UnsetType = UNSET
    message: str
    rc: Literal["NotReady"] = "NotReady"


class Live:
    """`GET /health/live`."""

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """200 while the process answers at all."""
        resp.content_type = JSON
        resp.data = _encode(Alive())


class Ready:
    """`GET /health/ready`: 503 names what fails; a 200 names what degrades the service."""

    def __init__(
        self, needed: Mapping[str, Check], optional: Mapping[str, Check], drain: Drain
    ) -> None:
        self._needed = needed
        self._optional = optional
        self._drain = drain
        self._said: set[str] = set()

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Try every part, all at once. Who asks does so often: what lasts is logged once."""
        checks = {**self._needed, **self._optional}
        reasons = await asyncio.gather(*map(_tried, checks.values()))
        away = {name: why for name, why in zip(checks, reasons, strict=True) if why is not None}
        failing = [name for name in away if name in self._needed]
        degraded = [name for name in away if name in self._optional]
        if self._drain.on:
            failing.append("draining")
        told = degraded or UNSET
        body: Readiness | NotReady
        if failing:
            message = f"Not ready: {', '.join(failing)}."
            body = NotReady(failing=failing, degraded=told, message=message)
            resp.status = falcon.HTTP_503
            resp.set_header("retry-after", RETRY_AFTER)
        else:
            body = Readiness(status="degraded" if degraded else "ok", degraded=told)
        if away.keys() - self._said:
            logger.warning("not_ready", **away)
        elif self._said and not away:
            logger.info("ready_again")
        self._said = set(away)
        resp.content_type = JSON
        resp.data = _encode(body)


async def _tried(check: Check) -> str | None:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check()
    except Exception as error:  # noqa: BLE001 - any way of failing is the answer
        return str(error) or type(error).__name__
    return None


class MayEvict(Exception):
    """Redis may throw keys away when it is full, and with them what was acknowledged."""


class PartitionsAway(Exception):
    """Nodes of the cluster do not answer."""


def redis_check(log: Log) -> Check:
    """Redis answers, has what it was given, and keeps it.

    In a cluster: the node of partition 0 does, which every call needs, and those that answer have
    what they were given.
    """

    async def check() -> None:
        begun = await _begun(log)
        if False in begun:
            raise RedisUnavailable(FORGOTTEN)
        if begun[0] is None:
            raise RedisUnavailable
        policies = (await guard.memory(log)).policies - {"noeviction"}
        if policies:
            raise MayEvict(f"maxmemory-policy is {', '.join(sorted(policies))}, not noeviction")

    return check


def partitions_check(log: Log) -> Check:
    """Every partition answers: what needs one that does not is refused, and all else goes on."""

    async def check() -> None:
        away = [str(n) for n, begun in enumerate(await _begun(log)) if begun is None]
        if away:
            raise PartitionsAway(f"no answer of partition {', '.join(away)}")

    return check


async def _begun(log: Log) -> list[bool | None]:
    """Whether each partition has what it was given; None for one that does not answer soon."""
    asked = [asyncio.ensure_future(log.has_begun(each)) for each in log.keys.all()]
    _, late = await asyncio.wait(asked, timeout=ANSWER_SECONDS)
    for each in late:
        each.cancel()
    return [None if each in late or each.exception() else each.result() for each in asked]


def postgres_check(database: Database) -> Check:
    """Postgres answers a query, and its tables are there."""

    async def check() -> None:
        await database.fetch(b"SELECT 1 FROM checkpoints LIMIT 1")

    return check
