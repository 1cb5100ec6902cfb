"""Redis or Postgres away, refused or hung: every route answers within a second, and recovers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import httpx
import pytest

from api import health
from api.patience import Patience
from hordechat.datadir import free_port
from lua.link import Link
from projections.database import Database
from tests.api.site import MESSAGE, MODEL, Site, opened
from tests.logged import logged
from tests.proxy import Proxy
from tests.pulse import BEAT_SECONDS, Pulse
from tests.spec import spec

TEXT = "/v2/generate/text/async"

SECOND = 1.5
"""What "within a second" is on a slow machine; what it was held up by comes to that."""


class Outage(NamedTuple):
    """A site behind two proxies, with a request that is done, one that runs, and one that waits."""

    site: Site
    redis: Proxy
    postgres: Proxy
    done: str
    running: dict[str, Any]
    waiting: str
    asks: tuple[Callable[[], Awaitable[object]], ...]
    """Ask the servers themselves, past the proxies."""

    async def within_a_second(self, asked: Awaitable[httpx.Response]) -> httpx.Response:
        """The answer; what the servers were held up by counts as the machine's, too."""
        return await within_a_second(asked, *self.asks)

    async def fails(self, *parts: str) -> None:
        """Readiness names these, and no other; a server that is there may be late for once."""
        async with asyncio.timeout(60):
            while True:
                ready = await self.within_a_second(self.site.http.get("/health/ready"))
                assert ready.status_code == 503
                if ready.json()["failing"] == [*parts]:
                    return

    async def is_away(self, asked: Awaitable[httpx.Response], rc: str) -> None:
        """It is refused in time."""
        await is_away(asked, rc, *self.asks)


Opens = Callable[..., contextlib.AbstractAsyncContextManager[Outage]]


@pytest.fixture
def opens(redis_url: str, migrated_url: str) -> Opens:
    """Opens one; of servers that stay there calls may be told to wait for longer than in life."""
    return lambda **changed: _outage(redis_url, migrated_url, **changed)


@contextlib.asynccontextmanager
async def _outage(redis_url: str, migrated_url: str, **changed: Any) -> AsyncIterator[Outage]:
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(Proxy.before(redis_url))
        postgres = await stack.enter_async_context(Proxy.before(migrated_url))
        site = await stack.enter_async_context(
            opened(redis.url, postgres.url, around=(redis_url, migrated_url), **changed)
        )
        done = await site.queued()
        await site.project()
        await site.reply((await site.popped())["id"])
        await site.queued(stream=True)
        await site.project()
        running = await site.popped()
        waiting = await site.queued()
        await site.project()
        link, database = Link(redis_url, timeout=20), Database(migrated_url, timeout=20)
        stack.push_async_callback(link.close)
        stack.push_async_callback(database.close)
        asks = (lambda: link.call("PING"), lambda: database.fetch(b"SELECT 1"))
        yield Outage(site, redis, postgres, done, running, waiting, asks)
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


async def within_a_second(
    asked: Awaitable[httpx.Response], *asks: Callable[[], Awaitable[object]]
) -> httpx.Response:
    now = asyncio.get_running_loop().time
    async with Pulse.of(*asks) as pulse, asyncio.timeout(60):
        started = now()
        answer = await asked
        took = now() - started
        await asyncio.sleep(2 * BEAT_SECONDS)  # the beat that was held up ends, too
    told = f"{answer.request.url.path} took {took:.2f} s, {pulse.late:.2f} s of them held up"
    assert took < SECOND + pulse.late, told
    return answer


async def is_away(
    asked: Awaitable[httpx.Response], rc: str, *asks: Callable[[], Awaitable[object]]
) -> None:
    answer = await within_a_second(asked, *asks)
    assert (answer.status_code, answer.json()["rc"]) == (503, rc), answer.text
    assert answer.headers["retry-after"]


@spec("Streaming progress", 11)
@ways
async def test_redis_away(opens: Opens, away: Way) -> None:
    """C-121."""
    async with opens(database_timeout_seconds=20.0, patience=Patience(shown=20)) as outage:
        site, target = outage.site, outage.redis._target
        away(outage.redis)

        await outage.is_away(site.submit(), "RedisUnavailable")
        await outage.is_away(site.pop(), "RedisUnavailable")
        await outage.is_away(site.pop(wait=10), "RedisUnavailable")
        await outage.is_away(site.progress(outage.running["id"], 1, "x"), "ChatProgressUnavailable")
        await outage.is_away(site.reply(outage.running["id"]), "RedisUnavailable")
        await outage.is_away(site.cancel(outage.waiting), "RedisUnavailable")
        await outage.is_away(site.http.get("/v2/users/1"), "RedisUnavailable")
        nobodys = "00000000-0000-4000-8000-000000000000"
        await outage.is_away(site.status(nobodys), "RedisUnavailable")

        await outage.fails("redis")
        assert (await site.http.get("/health/live")).status_code == 200

        # What was read before is still told, but for the replies.
        status = await outage.within_a_second(site.status(outage.done))
        assert (status.status_code, status.json()["done"], status.json()["finished"]) == (
            200,
            True,
            1,
        )
        assert status.json()["generations"][0]["message"] is None
        assert status.json()["message"]

        outage.redis._target = target
        outage.redis.flow()
        await recovered(outage)


@ways
async def test_postgres_away(opens: Opens, away: Way) -> None:
    async with opens(redis_timeout_seconds=20.0) as outage:
        site, target = outage.site, outage.postgres._target
        site.parts.availability._known.clear()
        away(outage.postgres)

        await outage.is_away(site.status(outage.done), "DatabaseUnavailable")
        await outage.is_away(site.pop(), "DatabaseUnavailable")
        await outage.is_away(site.pop(wait=10), "DatabaseUnavailable")
        await outage.is_away(site.http.get("/v2/users/1"), "DatabaseUnavailable")
        await outage.fails("postgres")

        # What needs Redis alone goes on.
        queued = await outage.within_a_second(site.submit())
        assert queued.status_code == 202
        free = {"prompt": "hi", "models": [MODEL], "params": {"max_length": 512}}
        assert (
            await outage.within_a_second(site.post(TEXT, free, site.owner_key))
        ).status_code == 202
        # What is free above the floor cannot be found out: who has the kudos need not wait for it.
        more = free | {"params": {"max_length": 513}}
        assert (
            await outage.within_a_second(site.post(TEXT, more, site.client_key))
        ).status_code == 202
        await site.settle()
        short = await outage.within_a_second(site.post(TEXT, more, site.owner_key))
        assert (short.status_code, short.json()["rc"]) in {
            (503, "DatabaseUnavailable"),
            (503, "ReadModelBehind"),
        }
        assert (
            await outage.within_a_second(site.progress(outage.running["id"], 1, "x"))
        ).status_code == 200
        replied = await outage.within_a_second(site.reply(outage.running["id"]))
        assert replied.status_code == 200
        await outage.is_away(site.cancel(outage.waiting), "DatabaseUnavailable")

        outage.postgres._target = target
        outage.postgres.flow()
        await recovered(outage)
        status = await site.status(outage.waiting)
        assert (status.json()["done"], status.json()["generations"]) == (True, [])


@ways
async def test_both_away(opens: Opens, away: Way) -> None:
    """C-131."""
    async with opens() as outage:
        away(outage.redis)
        away(outage.postgres)

        await outage.is_away(outage.site.status(outage.done), "RedisUnavailable")
        await outage.is_away(outage.site.pop(), "RedisUnavailable")
        await outage.fails("redis", "postgres")


@ways
async def test_a_waiting_pop_does_not_hang_on_a_dead_database(opens: Opens, away: Way) -> None:
    async with opens(redis_timeout_seconds=20.0) as outage:
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
