"""A log that is read ahead tells what the log tells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from events.base import START, Position, Recorded
from events.keys import Keys
from events.types import Submitted
from projections import ahead
from projections.ahead import Ahead
from projections.log import Log, asked_for
from projections.node import Nodes
from tests.projections.histories import append, random_story


@pytest.fixture
def keys() -> Keys:
    return Keys(1)


@pytest.fixture
def reader(redis_url: str, keys: Keys) -> Iterator[Ahead]:
    with ahead.connect(Nodes(redis_url), keys, 0, None) as made:
        yield made


def test_pages_follow_one_another_to_the_end(clean_redis: redis.Redis, keys: Keys, reader: Ahead):
    append(clean_redis, random_story(3, 100).events, keys)
    pages: list[list[Recorded]] = []

    while page := reader.read(pages[-1][-1].position if pages else START, count=30):
        pages.append(page)

    assert [len(page) for page in pages[:-1]] == [30] * (len(pages) - 1)
    assert [each for page in pages for each in page] == _plainly(clean_redis, keys, START)


def test_what_comes_behind_the_end_is_read_when_it_came(
    clean_redis: redis.Redis, keys: Keys, reader: Ahead
):
    """By then it was read ahead that there is nothing."""
    story = random_story(3, 20)
    append(clean_redis, story.events[:10], keys)
    end = story.events[9][0]
    assert len(reader.read(START, count=500)) == 10
    assert reader.read(end, count=500) == []

    append(clean_redis, story.events[10:], keys)

    assert reader.read(end, count=500) == _plainly(clean_redis, keys, end)


@pytest.mark.parametrize(
    "other", [{"after": START}, {"count": 3}, {"wanted": {Submitted}}, {"block_ms": 1}]
)
def test_who_asks_for_something_else_gets_that(
    clean_redis: redis.Redis, keys: Keys, reader: Ahead, other: dict[str, object]
):
    append(clean_redis, random_story(3, 100).events, keys)
    first = reader.read(START, count=10)
    asked = {"after": first[-1].position, "count": 10} | other

    page = reader.read(**asked)

    assert page == Log(clean_redis, keys, 0).read(**asked)
    if "wanted" in asked:
        assert {type(each.event) for each in asked_for(page)} <= {Submitted}


def _plainly(client: redis.Redis, keys: Keys, after: Position) -> list[Recorded]:
    return Log(client, keys, 0).read(after, count=500)
