"""A model folded anew equals the live one; what cannot be folded is not dropped."""

from __future__ import annotations

import threading

import pytest
import redis

from archive.archive import HistoryLost
from events.base import Position
from events.keys import Keys
from events.types import Settled
from projections import checkpoint
from projections.rebuild import rebuild
from projections.session import Session
from tests.projections.conftest import Given, rows
from tests.projections.histories import append, random_story


@pytest.mark.parametrize("name", ["status", "eligibility", "accounts"])
def test_it_equals_the_live_model(
    redis_url: str, url: str, given: Given, connected: Session, name: str
):
    story = random_story(31, 300)
    given(story, 7)
    live = rows(connected)

    rebuild(name, redis_url=redis_url, database_url=url, partitions=1)

    assert rows(connected) == live


def test_a_log_that_ends_with_events_without_a_row_is_folded_to_its_end(
    redis_url: str, url: str, client: redis.Redis, keys: Keys, connected: Session
):
    """As mostly: what the settler carries over comes last."""
    append(client, [(Position(5, 0), Settled(source=0, source_position="1-0"))], keys)
    folding = threading.Thread(
        target=rebuild,
        args=("status",),
        kwargs={"redis_url": redis_url, "database_url": url, "partitions": 1},
        daemon=True,
    )

    folding.start()
    folding.join(10)

    assert not folding.is_alive()
    assert checkpoint.read(connected, "status", 0).position == Position(5, 0)


def test_a_log_without_its_beginning_costs_no_rows(
    redis_url: str,
    url: str,
    given: Given,
    client: redis.Redis,
    keys: Keys,
    connected: Session,
):
    story = random_story(32, 50)
    given(story)
    live = rows(connected)
    client.xtrim(keys.events(0), maxlen=10, approximate=False)

    with pytest.raises(HistoryLost):
        rebuild("status", redis_url=redis_url, database_url=url, partitions=1)

    assert rows(connected) == live
