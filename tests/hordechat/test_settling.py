"""The settler at work beside web processes: what it says lets them refuse, or not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from archive.archive import Archive, ArchiveUnavailable
from archive.bucket import Bucket, Place
from archive.s3 import Access
from events import codec
from events.base import Position
from events.keys import Keys
from events.types import Settled
from handlers.admission import check_concurrency
from handlers.errors import SettlerBehind, TooManyPrompts
from handlers.limits import Limits
from handlers.log import Log
from hordechat.datadir import free_port
from hordechat.process import Service
from hordechat.settling import settle
from lua.link import ClusterLink, Link, Tail
from projections.database import Database
from projections.follow import SETTLER, Follower
from tests.handlers.pool import MODEL, Pool
from tests.handlers.shelf import archive_in, put_away


@pytest.fixture(params=["one partition", "four on a cluster"])
def keys(request: pytest.FixtureRequest) -> Keys:
    return Keys(1 if request.param == "one partition" else 4)


@pytest.fixture
def url(keys: Keys, request: pytest.FixtureRequest) -> str:
    """Where the log is."""
    fixture = "redis_url" if keys.partitions == 1 else "cluster_url"
    return str(request.getfixturevalue(fixture))


@pytest.fixture
async def pool(url: str, keys: Keys) -> AsyncIterator[Pool]:
    """A pool in which one job of an account may wait."""
    kind = Link if keys.partitions == 1 else ClusterLink
    link = kind(url, timeout=20)
    log = Log(link, keys, test=True)
    yield await Pool.opened(log, Limits(concurrency=1, anonymous_concurrency=1))
    await log.close()


@contextlib.asynccontextmanager
async def settling(pool: Pool, url: str) -> AsyncIterator[None]:
    """A settler of every partition."""
    tails = [Tail(url, pool.log.redis) for _ in pool.log.keys.all()]
    tasks = [
        asyncio.create_task(settle(pool.log, pool.limits, tail, partition))
        for partition, tail in enumerate(tails)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for tail in tails:
            await tail.close()


@contextlib.asynccontextmanager
async def following(pool: Pool, url: str) -> AsyncIterator[Follower]:
    """A web process's follower; nothing of this needs its database."""
    database = Database("postgresql://nobody@127.0.0.1:1/none", timeout=0.1)
    follower = Follower(url, database, pool.log.keys, (SETTLER,))
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await database.close()


async def _heads(pool: Pool) -> list[Position]:
    return [await pool.log.head(partition) for partition in pool.log.keys.all()]


async def _reached(follower: Follower, heads: Sequence[Position], seconds: float) -> bool:
    arrived = [
        follower.reached(SETTLER, partition, head, seconds) for partition, head in enumerate(heads)
    ]
    return all(await asyncio.gather(*arrived))


async def test_a_newcomer_hears_how_far_an_idle_settler_came(pool: Pool, url: str) -> None:
    await pool.submit()
    heads = await _heads(pool)
    async with settling(pool, url):
        async with following(pool, url) as early:
            assert await _reached(early, heads, 60)

        async with following(pool, url) as newcomer:
            assert await _reached(newcomer, heads, 60)


async def test_too_many_is_said_only_behind_the_settler(pool: Pool, url: str) -> None:
    request_id = await pool.submit()
    async with following(pool, url) as follower:
        patience = 0.1  # for a settler that is not there; later, for one that may be slow

        async def settled(heads: Sequence[Position]) -> bool:
            return await _reached(follower, heads, patience)

        async def check() -> None:
            await check_concurrency(pool.log, pool.limits, pool.client, 1, (MODEL,), settled)

        with pytest.raises(SettlerBehind):
            await check()
        patience = 60
        async with settling(pool, url):
            assert await _reached(follower, await _heads(pool), 60)
            with pytest.raises(TooManyPrompts):
                await check()

            assert await pool.assign(request_id) is not None
            await check()

            assert await pool.waiting() == 0


async def test_what_was_trimmed_is_settled_from_the_archive(
    pool: Pool, url: str, s3_server: Service
) -> None:
    """It begins at the lowest fence of all targets, which may be in front of the stream; and it
    may be trimmed past its place at any time."""
    log = pool.log
    log.archive = archive = archive_in(s3_server, log.keys.partitions)
    job = await pool.assign(await pool.submit())
    assert job is not None
    await pool.reply(job.generation_id)
    for partition in log.keys.all():
        key = log.keys.events(partition)
        last = codec.encode(Settled(source=partition, source_position="0-0"))
        await log.read("XADD", key, "*", *last)  # of which nothing follows
        await put_away(archive, log, partition, pieces=2)
        await log.read("XTRIM", key, "MAXLEN", "=", 1)
    assert await pool.waiting() == 1

    async with following(pool, url) as follower, settling(pool, url):
        assert await _reached(follower, await _heads(pool), 60)
        assert await pool.waiting() == 0
        await pool.submit()
        assert await _reached(follower, await _heads(pool), 60)
        assert await pool.waiting() == 1


async def test_an_archive_that_is_away_is_told_where_it_is_needed(pool: Pool, url: str) -> None:
    """And nothing is passed over meanwhile."""
    log, source = pool.log, 0
    key, event = log.keys.events(source), codec.encode(Settled(source=0, source_position="0-0"))
    for _ in range(3):
        await log.read("XADD", key, "*", *event)
    await log.read("XTRIM", key, "MAXLEN", "=", 1)
    nowhere = Place(f"http://127.0.0.1:{free_port()}", Access("a", "b", "c"), "archive")
    log.archive = Archive(Bucket(nowhere), log.keys.partitions)
    tail = Tail(url, log.redis)

    with pytest.raises(ArchiveUnavailable, match="refused"):
        await settle(log, pool.limits, tail, source)

    await tail.close()
