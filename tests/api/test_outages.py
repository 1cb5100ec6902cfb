"""Redis or Postgres away, refused or hung: every route answers within a second, and recovers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import httpx
import pytest

from api import health
from hordechat.datadir import free_port
from tests.api.site import MESSAGE, MODEL, Site, opened
from tests.logged import logged
from tests.proxy import Proxy
from tests.spec import spec

TEXT = "/v2/generate/text/async"

SECOND = 1.5
"""What "within a second" is on a machine that has other things to do."""


class Outage(NamedTuple):
    """A site behind two proxies, with a request that is done, one that runs, and one that waits."""

    site: Site
    redis: Proxy
    postgres: Proxy
    done: str
    running: dict[str, Any]
    waiting: str


@pytest.fixture
async def outage(redis_url: str, migrated_url: str) -> AsyncIterator[Outage]:
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(Proxy.before(redis_url))
        postgres = await stack.enter_async_context(Proxy.before(migrated_url))
        site = await stack.enter_async_context(
            opened(redis.url, postgres.url, around=(redis_url, migrated_url))
        )
        done = await site.queued()
        await site.project()
        await site.reply((await site.popped())["id"])
        await site.queued(stream=True)
        await site.project()
        running = await site.popped()
        waiting = await site.queued()
        await site.project()
        yield Outage(site, redis, postgres, done, running, waiting)
        redis.flow()
        postgres.flow()


def hang(proxy: Proxy) -> None:
    """As under SIGSTOP: connections stay, nothing moves."""
    proxy.stall()


def stop(proxy: Proxy) -> None:
    """As without a process: connections break, and new ones fail."""
    proxy._target = ("127.0.0.1", free_port())
    for task in list(proxy._tasks):
        task.cancel()


Way = Callable[[Proxy], None]
ways = pytest.mark.parametrize("away", [hang, stop])


async def within_a_second(asked: Awaitable[httpx.Response]) -> httpx.Response:
    started = asyncio.get_running_loop().time()
    async with asyncio.timeout(20):
        answer = await asked
    took = asyncio.get_running_loop().time() - started
    assert took < SECOND, f"{answer.request.url.path} took {took:.2f} s"
    return answer


async def is_away(asked: Awaitable[httpx.Response], rc: str) -> None:
    answer = await within_a_second(asked)
    assert (answer.status_code, answer.json()["rc"]) == (503, rc), answer.text
    assert answer.headers["retry-after"]


@spec("Streaming progress", 11)
@ways
async def test_redis_away(outage: Outage, away: Way) -> None:
    """C-121."""
    site, target = outage.site, outage.redis._target
    away(outage.redis)

    await is_away(site.submit(), "RedisUnavailable")
    await is_away(site.pop(), "RedisUnavailable")
    await is_away(site.pop(wait=10), "RedisUnavailable")
    await is_away(site.progress(outage.running["id"], 1, "x"), "ChatProgressUnavailable")
    await is_away(site.reply(outage.running["id"]), "RedisUnavailable")
    await is_away(site.cancel(outage.waiting), "RedisUnavailable")
    await is_away(site.http.get("/v2/users/1"), "RedisUnavailable")
    nobodys = "00000000-0000-4000-8000-000000000000"
    await is_away(site.status(nobodys), "RedisUnavailable")

    ready = await within_a_second(site.http.get("/health/ready"))
    assert (ready.status_code, ready.json()["failing"]) == (503, ["redis"])
    assert (await site.http.get("/health/live")).status_code == 200

    # What was read before is still told, but for the replies.
    status = await within_a_second(site.status(outage.done))
    assert (status.status_code, status.json()["done"], status.json()["finished"]) == (200, True, 1)
    assert status.json()["generations"][0]["message"] is None
    assert status.json()["message"]

    outage.redis._target = target
    outage.redis.flow()
    await recovered(outage)


@ways
async def test_postgres_away(outage: Outage, away: Way) -> None:
    site, target = outage.site, outage.postgres._target
    site.parts.availability._known.clear()
    away(outage.postgres)

    await is_away(site.status(outage.done), "DatabaseUnavailable")
    await is_away(site.pop(), "DatabaseUnavailable")
    await is_away(site.pop(wait=10), "DatabaseUnavailable")
    await is_away(site.http.get("/v2/users/1"), "DatabaseUnavailable")
    ready = await within_a_second(site.http.get("/health/ready"))
    assert (ready.status_code, ready.json()["failing"]) == (503, ["postgres"])

    # What needs Redis alone goes on.
    assert (await within_a_second(site.submit())).status_code == 202
    free = {"prompt": "hi", "models": [MODEL], "params": {"max_length": 512}}
    assert (await within_a_second(site.post(TEXT, free, site.owner_key))).status_code == 202
    # What is free above the floor cannot be found out: who has the kudos need not wait for it.
    more = free | {"params": {"max_length": 513}}
    assert (await within_a_second(site.post(TEXT, more, site.client_key))).status_code == 202
    await site.settle()
    short = await within_a_second(site.post(TEXT, more, site.owner_key))
    assert (short.status_code, short.json()["rc"]) in {
        (503, "DatabaseUnavailable"),
        (503, "ReadModelBehind"),
    }
    assert (await within_a_second(site.progress(outage.running["id"], 1, "x"))).status_code == 200
    assert (await within_a_second(site.reply(outage.running["id"]))).status_code == 200
    await is_away(site.cancel(outage.waiting), "DatabaseUnavailable")

    outage.postgres._target = target
    outage.postgres.flow()
    await recovered(outage)
    status = await site.status(outage.waiting)
    assert (status.json()["done"], status.json()["generations"]) == (True, [])


@ways
async def test_both_away(outage: Outage, away: Way) -> None:
    """C-131."""
    away(outage.redis)
    away(outage.postgres)

    await is_away(outage.site.status(outage.done), "RedisUnavailable")
    await is_away(outage.site.pop(), "RedisUnavailable")
    ready = await within_a_second(outage.site.http.get("/health/ready"))
    assert ready.json()["failing"] == ["redis", "postgres"]


@ways
async def test_a_waiting_pop_does_not_hang_on_a_dead_database(outage: Outage, away: Way) -> None:
    site = outage.site
    await site.popped()  # what waits
    waiting = asyncio.create_task(site.pop(wait=30))
    await asyncio.sleep(0.1)

    away(outage.postgres)

    async with asyncio.timeout(20):
        assert (await waiting).status_code == 503


async def recovered(outage: Outage) -> None:
    """Normal within seconds: what was accepted is served, and read back."""
    site = outage.site
    async with asyncio.timeout(20):
        while (await site.http.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.05)
    async with site.projected():
        request_id = await site.queued()
        async with asyncio.timeout(20):
            while True:
                job = (await site.pop(wait=2)).json()
                if job["id"]:
                    await site.reply(job["id"])
                status = await site.status(request_id)
                if status.status_code == 200 and status.json()["done"]:
                    break
    assert status.json()["generations"][0]["message"] == MESSAGE
    assert (await site.status(outage.done)).json()["generations"][0]["message"] == MESSAGE


async def test_a_policy_that_may_evict_is_not_ready(site: Site) -> None:
    read = site.parts.log.read
    assert (await site.http.get("/health/ready")).json() == {"status": "ok"}
    await read("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        answer = await site.http.get("/health/ready")
    finally:
        await read("CONFIG", "SET", "maxmemory-policy", "noeviction")

    assert (answer.status_code, answer.json()["failing"]) == (503, ["redis"])


async def test_what_is_not_ready_is_logged_once_however_often_it_is_asked(site: Site) -> None:
    read, ready = site.parts.log.read, "/health/ready"
    with logged(health.logger) as lines:
        await read("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            for _ in range(3):
                await site.http.get(ready)
        finally:
            await read("CONFIG", "SET", "maxmemory-policy", "noeviction")
        for _ in range(3):
            await site.http.get(ready)

    assert [line["event"] for line in lines] == ["not_ready", "ready_again"]


async def test_a_store_that_is_away_degrades_the_service(redis_url: str, migrated_url: str) -> None:
    """C-131."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with opened(redis_url, migrated_url, s3_endpoint_url=nowhere) as site:
        answer = await site.http.get("/health/ready")

    assert answer.status_code == 200
    assert answer.json() == {"status": "degraded", "degraded": ["object_store"]}


async def test_a_draining_process_is_not_ready(site: Site) -> None:
    site.parts.drain.start()

    answer = await site.http.get("/health/ready")

    assert (answer.status_code, answer.json()["failing"]) == (503, ["draining"])
