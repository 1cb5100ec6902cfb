"""The process of a projection: who has a partition, what ends it, what it waits out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
from redis.cluster import RedisCluster

from events.codec import UnknownType
from events.keys import Keys
from projections import checkpoint
from projections.checkpoint import CheckpointMoved
from projections.log import Log
from projections.projector import step
from projections.rebuild import rebuild
from projections.runner import run
from projections.session import Session
from projections.status import STATUS
from tests.projections.conftest import connect, eventually, rows, start_process, wipe
from tests.projections.histories import Story, append, random_story


class Running:
    """A runner in a thread, and how it ended."""

    def __init__(self, **given: Any) -> None:
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self._given = given
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            run("status", stop=self.stop, **self._given)
        except BaseException as error:  # noqa: BLE001 - what ended it is the question
            self.failure = error

    def ended(self, seconds: float = 30) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


@contextmanager
def running(**given: Any) -> Iterator[Running]:
    runner = Running(**given)
    try:
        yield runner
    finally:
        runner.stop.set()
        assert runner.ended()


def reached(connected: Session, story: Story, partition: int = 0) -> bool:
    return checkpoint.read(connected, "status", partition).position == story.head


def locks(connected: Session, since: Any = "-infinity") -> int:
    """How many partitions the runners hold whose sessions began after `since`."""
    found = connected.execute(
        "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted"
        " AND a.datname = current_database() AND a.application_name = 'projector_status'"
        " AND a.backend_start > %s",
        (since,),
    ).fetchone()
    return int(found[0]) if found else 0


def test_it_applies_what_comes_and_notes_what_it_announced(
    redis_url: str, url: str, client: redis.Redis, keys: Keys, connected: Session
):
    story = random_story(11, 200)
    with running(redis_url=redis_url, database_url=url, partitions=1):
        append(client, story.events[:50], keys)
        eventually(lambda: checkpoint.read(connected, "status", 0).position > (0, 0))
        append(client, story.events[50:], keys)
        eventually(lambda: reached(connected, story))
        eventually(lambda: checkpoint.read(connected, "status", 0).signalled == story.head)
        live = rows(connected)
    eventually(lambda: locks(connected) == 0)  # the server frees them in its own time

    wipe(connected)
    with_hands = Log(client, keys, 0)
    while step(STATUS, with_hands, connected):
        pass
    assert live == rows(connected)


def test_it_ends_on_an_event_that_it_does_not_know(
    redis_url: str, url: str, client: redis.Redis, keys: Keys
):
    client.xadd(keys.events(0), {"type": "from-the-future", "v": "1"})
    with running(redis_url=redis_url, database_url=url, partitions=1) as runner:
        assert runner.ended()

    assert isinstance(runner.failure, UnknownType)


def test_a_lost_postgres_session_is_waited_out(
    redis_url: str, url: str, client: redis.Redis, keys: Keys, connected: Session
):
    story = random_story(12, 300)
    with running(redis_url=redis_url, database_url=url, partitions=1, batch=10) as runner:
        for start in range(0, 300, 100):
            append(client, story.events[start : start + 100], keys)
            connected.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'projector_status' AND datname = current_database()"
            )
        append(client, story.events[300:], keys)
        eventually(lambda: reached(connected, story))
        assert runner.failure is None
        live = rows(connected)

    wipe(connected)
    with_hands = Log(client, keys, 0)
    while step(STATUS, with_hands, connected):
        pass
    assert live == rows(connected)


def test_a_lost_or_hanging_redis_is_waited_out(
    redis_url: str, url: str, client: redis.Redis, keys: Keys, connected: Session
):
    story = random_story(13, 100)
    with running(redis_url=redis_url, database_url=url, partitions=1) as runner:
        append(client, story.events[:50], keys)
        eventually(lambda: checkpoint.read(connected, "status", 0).position > (0, 0))
        client.client_kill_filter(_type="normal", skipme=True)
        append(client, story.events[50:80], keys)
        client.execute_command("CLIENT", "PAUSE", "3000", "ALL")
        append(client, story.events[80:], keys)
        eventually(lambda: reached(connected, story))
        assert runner.failure is None


def test_a_stand_by_takes_over_after_a_kill(
    redis_url: str, url: str, client: redis.Redis, keys: Keys, connected: Session
):
    story = random_story(14, 200)
    process = start_process("projections.runner", "run", redis_url, url)
    try:
        append(client, story.events[:100], keys)
        eventually(lambda: locks(connected) == 1)
        with running(redis_url=redis_url, database_url=url, partitions=1):
            append(client, story.events[100:], keys)
            os.kill(process.pid, signal.SIGKILL)
            eventually(lambda: reached(connected, story))
            live = rows(connected)
    finally:
        process.kill()
        process.wait()

    wipe(connected)
    with_hands = Log(client, keys, 0)
    while step(STATUS, with_hands, connected):
        pass
    assert live == rows(connected)


@pytest.mark.parametrize("server", ["plain", "cluster"])
def test_two_processes_share_partitions_and_one_takes_the_others(
    server: str, request: pytest.FixtureRequest, url: str, connected: Session
):
    """Takes of two: each has two; alone one has all four, and gives two back to a newcomer."""
    keys = Keys(4)
    if server == "plain":
        redis_url = request.getfixturevalue("redis_url")
        client: Any = redis.Redis.from_url(redis_url)
    else:
        redis_url = request.getfixturevalue("cluster_url")
        client = RedisCluster.from_url(redis_url)
    stories = [random_story(20 + tail, 90, tail) for tail in range(4)]
    given = {"redis_url": redis_url, "database_url": url, "partitions": 4, "take": 2}

    def write(start: int, end: int) -> None:
        for partition, story in enumerate(stories):
            append(client, story.events[start:end], keys, partition)

    with ExitStack() as stack:
        stack.callback(client.close)
        first = stack.enter_context(running(**given))
        write(0, 30)
        eventually(lambda: locks(connected) == 4)
        (now,) = connected.execute("SELECT clock_timestamp()").fetchone() or ("",)
        second = stack.enter_context(running(**given))
        eventually(lambda: locks(connected, now) == 2)
        write(30, 60)
        first.stop.set()
        assert first.ended()
        eventually(lambda: locks(connected) == 4)
        write(60, 1000)
        eventually(lambda: all(reached(connected, s, i) for i, s in enumerate(stories)))
        assert first.failure is None
        assert second.failure is None
        live = rows(connected)

        wipe(connected)
        for partition in keys.all():
            with connect(redis_url, keys.events(partition)) as made:
                reader = Log(made, keys, partition)
                while step(STATUS, reader, connected):
                    pass
        assert live == rows(connected)


# rebuild


def test_a_rebuild_ends_a_live_runner_and_gives_the_same_rows(
    redis_url: str, url: str, client: redis.Redis, keys: Keys, connected: Session
):
    story = random_story(15, 200)
    append(client, story.events, keys)
    with running(redis_url=redis_url, database_url=url, partitions=1) as runner:
        eventually(lambda: reached(connected, story))
        live = rows(connected)
        connected.execute("UPDATE waiting_prompts SET jobs = 99")

        rebuild("status", redis_url=redis_url, database_url=url, partitions=1)

        assert rows(connected) == live
        assert runner.ended()
        assert isinstance(runner.failure, CheckpointMoved)


def test_a_rebuild_of_one_partition_leaves_the_others(
    redis_url: str, url: str, client: redis.Redis, connected: Session
):
    keys = Keys(2)
    for partition in keys.all():
        append(client, random_story(16, 50, partition).events, keys, partition)
    rebuild("status", redis_url=redis_url, database_url=url, partitions=2)
    whole = rows(connected)
    connected.execute("UPDATE waiting_prompts SET jobs = 99")

    rebuild("status", redis_url=redis_url, database_url=url, partitions=2, only=[1])

    wrong = connected.execute("SELECT DISTINCT partition FROM waiting_prompts WHERE jobs = 99")
    assert wrong.fetchall() == [(0,)]
    rebuild("status", redis_url=redis_url, database_url=url, partitions=2, only=[0])
    assert rows(connected) == whole
