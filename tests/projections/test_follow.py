"""A web process knows how far the models are, with messages and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis

from events.base import START, Position
from events.keys import Keys
from hordechat.datadir import free_port
from projections import checkpoint
from projections.checkpoint import Checkpoint
from projections.database import Database
from projections.follow import Follower
from projections.log import Log
from projections.session import Session
from projections.status import STATUS
from tests.projections.conftest import Given, catch_up
from tests.projections.histories import Story


class Ticking:
    """A clock that is moved by hand: how long a test takes is no matter of it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def ticks() -> Ticking:
    return Ticking()


@pytest.fixture
async def follower(
    redis_url: str, database: Database, keys: Keys, ticks: Ticking
) -> AsyncIterator[Follower]:
    made = Follower(redis_url, database, keys, ticks=ticks)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Held:
    """A database whose answers, as of when it was asked, are held back while they are to be."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._flows = asyncio.Event()
        self._flows.set()
        self.held = 0
        self.given = 0

    def hold(self) -> None:
        self._flows.clear()

    def let_go(self) -> None:
        self._flows.set()

    async def fetch(self, query: bytes) -> list[tuple[Any, ...]]:
        rows = await self._database.fetch(query)
        self.held += 1
        await self._flows.wait()
        self.held -= 1
        self.given += 1
        return rows


async def eventually(done: Callable[[], bool | Awaitable[bool]], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.01)


async def listening(client: redis.Redis) -> None:
    await eventually(lambda: len(client.pubsub_channels("horde:projected:*")) == 2)


def subscribers(client: redis.Redis) -> set[str]:
    """The connections on which somebody listens."""
    return {each["id"] for each in client.client_list(_type="pubsub")}


async def test_a_message_moves_the_position_and_wakes_who_waits(
    given: Given, follower: Follower, client: redis.Redis
):
    await listening(client)
    story = Story()
    story.submit()
    waiting = asyncio.create_task(follower.reached("status", 0, story.head, 20))
    await asyncio.sleep(0.01)
    assert not waiting.done()

    await asyncio.to_thread(given, story)

    assert await waiting
    await eventually(lambda: follower.position("eligibility", 0) == story.head)
    assert await follower.reached("status", 0, story.head, 0)


async def test_a_reading_that_comes_late_takes_no_position_back(
    given: Given, redis_url: str, database: Database, keys: Keys, client: redis.Redis
):
    held = Held(database)
    follower = Follower(redis_url, held, keys)
    task = asyncio.create_task(follower.run())
    try:
        await listening(client)
        story = Story()
        story.submit()
        await asyncio.to_thread(given, story)
        await eventually(lambda: follower.position("status", 0) == story.head)
        await eventually(lambda: held.given >= 1)  # from here on messages are heard
        story.submit()
        held.hold()
        waiting = asyncio.create_task(follower.reached("status", 0, story.head, 20))
        await eventually(lambda: held.held == 1)
        await asyncio.to_thread(given, story)
        assert await waiting
        given_before = held.given

        held.let_go()

        await eventually(lambda: held.given > given_before)
        assert await follower.reached("status", 0, story.head, 0)
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_without_a_message_the_checkpoint_is_read(
    follower: Follower, connected: Session, client: redis.Redis
):
    await listening(client)
    checkpoint.ensure(connected, "status", 0)
    checkpoint.move(connected, "status", 0, START, Checkpoint(Position(7, 1), START))

    assert await follower.reached("status", 0, Position(7, 1), 20)


async def test_what_does_not_come_in_time_is_not_reached(follower: Follower):
    assert not await follower.reached("status", 0, Position(7, 1), 0.15)


async def test_a_model_stands_still_when_it_is_behind_and_does_not_move(
    follower: Follower, connected: Session, ticks: Ticking
):
    head = Position(9, 0)
    assert not follower.stands_still("status", 0, head, 0.2)
    ticks.seconds += 0.25
    assert follower.stands_still("status", 0, head, 0.2)
    assert not follower.stands_still("eligibility", 0, head, 0.2)

    checkpoint.ensure(connected, "status", 0)
    checkpoint.move(connected, "status", 0, START, Checkpoint(Position(8, 0), START))
    await eventually(lambda: follower.position("status", 0) == Position(8, 0))
    assert not follower.stands_still("status", 0, head, 0.2)
    ticks.seconds += 0.25
    assert follower.stands_still("status", 0, head, 0.2)

    checkpoint.move(connected, "status", 0, Position(8, 0), Checkpoint(head, START))
    await eventually(lambda: follower.position("status", 0) == head)
    assert not follower.stands_still("status", 0, head, 0)


async def test_a_long_idle_model_does_not_stand_still_when_a_new_event_comes(
    given: Given, follower: Follower, client: redis.Redis, ticks: Ticking
):
    await listening(client)
    story = Story()
    story.submit()
    await asyncio.to_thread(given, story)
    await eventually(lambda: follower.position("status", 0) == story.head)
    ticks.seconds += 0.3

    assert not follower.stands_still("status", 0, Position(story.ms + 1, 0), 0.2)


async def test_hints_go_to_those_who_asked_for_them(
    given: Given, follower: Follower, client: redis.Redis
):
    requests: list[str] = []
    models: list[str] = []
    follower.on_status(requests.extend)
    follower.on_queue(models.extend)
    await listening(client)
    story = Story()
    request = story.submit(models=("alpha", "beta"))

    await asyncio.to_thread(given, story)
    await eventually(lambda: bool(models))
    assert models == ["alpha", "beta"]
    assert requests == []

    story.cancel(request)
    await asyncio.to_thread(given, story)
    await eventually(lambda: bool(requests))
    assert requests == [request]
    assert models == ["alpha", "beta"]


async def test_a_lost_subscription_is_made_again(
    given: Given, follower: Follower, client: redis.Redis
):
    await listening(client)
    before = subscribers(client)
    client.client_kill_filter(_type="pubsub")
    await eventually(lambda: not before & subscribers(client))
    await listening(client)
    story = Story()
    story.submit()

    await asyncio.to_thread(given, story)

    await eventually(lambda: follower.position("eligibility", 0) == story.head)


async def test_a_rebuild_takes_the_position_back(
    given: Given,
    follower: Follower,
    client: redis.Redis,
    connected: Session,
    reader: Log,
):
    await listening(client)
    story = Story()
    story.submit()
    await asyncio.to_thread(given, story)
    await eventually(lambda: follower.position("status", 0) == story.head)

    checkpoint.reset(connected, "status", 0, STATUS.tables)
    assert not await follower.reached("status", 0, Position(story.ms + 1, 0), 0.2)
    await eventually(lambda: follower.position("status", 0) == START)

    await asyncio.to_thread(catch_up, reader, connected)
    await eventually(lambda: follower.position("status", 0) == story.head)


async def test_where_one_node_is_away_another_is_listened_to(
    database: Database, keys: Keys, cluster_url: str
):
    there = cluster_url.removeprefix("redis://")
    url = f"redis://127.0.0.1:{free_port()},{there}"
    task = asyncio.create_task(Follower(url, database, keys).run())
    try:
        with redis.Redis.from_url(cluster_url) as client:
            await listening(client)
    finally:
        task.cancel()
        await asyncio.wait((task,))
