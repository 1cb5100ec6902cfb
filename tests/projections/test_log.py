"""Reading a log, and telling a lost tail from a lost head."""

from __future__ import annotations

import socket
import time

import pytest
import redis

from archive.archive import HistoryLost
from events.base import START, Position
from events.keys import Keys
from projections.log import Log
from projections.node import Nodes, Waits
from tests.projections.conftest import connect
from tests.projections.histories import Story, append, random_story


def test_it_reads_on_from_a_position(client: redis.Redis, keys: Keys, reader: Log):
    story = random_story(4, 20)
    append(client, story.events, keys)
    positions = [position for position, _ in story.events]

    assert [each.position for each in reader.read(START, count=3)] == positions[:3]
    assert [each.position for each in reader.read(positions[2], count=99)] == positions[3:]
    assert reader.read(positions[-1], count=1) == []
    between = reader.between(positions[2], positions[5], count=99)
    assert [each.position for each in between] == positions[3:6]
    assert reader.head() == positions[-1]
    assert [each.event for each in reader.read(START, count=99)] == [
        event for _, event in story.events
    ]


def test_an_empty_log_has_its_head_at_the_start(reader: Log):
    assert reader.head() == START
    assert reader.holds(START)
    assert not reader.holds(Position(5, 0))


def test_a_trimmed_log_has_lost_its_beginning_but_not_what_it_holds(
    client: redis.Redis, keys: Keys, reader: Log
):
    story = Story()
    for _ in range(3):
        story.submit()
    append(client, story.events, keys)
    client.xtrim(keys.events(0), maxlen=2, approximate=False)

    assert reader.holds(story.events[1][0])
    for position in (START, story.events[0][0], Position(story.ms + 1, 0)):
        with pytest.raises(HistoryLost):
            reader.holds(position)


def test_a_silent_server_is_waited_for_where_there_is_no_other():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        asked_at = time.monotonic()
        with pytest.raises(redis.TimeoutError), Nodes(url, Waits(ask=0.01)).connect():
            pass

    assert time.monotonic() - asked_at > 1


def test_it_reads_and_publishes_on_a_cluster(cluster_url: str):
    keys = Keys(4)
    stories = [Story(tail) for tail in range(4)]
    for partition, story in enumerate(stories):
        story.submit()
        with connect(cluster_url, keys.events(partition)) as client:
            append(client, story.events, keys, partition)
            reader = Log(client, keys, partition)
            assert reader.head() == story.head
            assert reader.holds(story.head)
            assert [each.event for each in reader.read(START, count=9, block_ms=100)] == [
                story.events[0][1]
            ]
            reader.publish([("a", b"1"), ("b", b"2")])
