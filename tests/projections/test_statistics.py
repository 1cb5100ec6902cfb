"""What the statistics say of a story."""

from __future__ import annotations

from projections import statistics
from projections.database import Database
from projections.session import Session
from projections.statistics import WINDOWS, Total
from tests.projections.conftest import Given
from tests.projections.histories import Story, uuid

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def replied(story: Story, **reply: object) -> None:
    """A request that gets its reply, of 25 tokens unless it says otherwise."""
    request = story.submit()
    story.reply(request, story.assign(request), **{"characters": 100} | reply)


async def test_a_reply_counts_in_every_window_that_reaches_it(given: Given, database: Database):
    story = Story()
    replied(story)
    given(story)
    was = story.ms
    within = {"minute": 30_000, "hour": HOUR // 2, "day": DAY // 2, "month": 29 * DAY}

    for name, ms in within.items():
        found = await statistics.totals(database, now_ms=was + ms)
        assert found[name] == Total(1, 25), name
        later = await statistics.totals(database, now_ms=was + WINDOWS[name].ms + 1)
        assert later[name] == Total(0, 0), name
    found = await statistics.totals(database, now_ms=was + 400 * DAY)
    assert found["total"] == Total(1, 25)


async def test_tokens_are_those_that_prices_count(given: Given, database: Database):
    story = Story()
    replied(story, characters=1)
    replied(story, characters=100_000)
    given(story)

    found = await statistics.totals(database, now_ms=story.ms)

    assert found["minute"] == Total(2, 20 + 100)


async def test_buckets_that_no_window_reaches_are_dropped(given: Given, connected: Session):
    story = Story()
    replied(story)
    given(story)
    story.ms += 40 * DAY

    replied(story)
    given(story)

    kept = connected.execute("SELECT width_ms, sum(requests) FROM text_statistics GROUP BY 1")
    assert dict(kept.fetchall()) == {
        window.width_ms: 1 if window.width_ms else 2 for window in WINDOWS.values()
    }


async def test_models_are_counted_apart(given: Given, database: Database):
    story = Story()
    replied(story, model="alpha")
    replied(story, model="alpha")
    story.ms += 2 * DAY
    replied(story, model="beta")
    given(story)

    found = await statistics.replies_by_model(database, ("day", "total"), now_ms=story.ms)

    assert found == {"day": {"beta": 1}, "total": {"alpha": 2, "beta": 1}}


async def test_a_model_s_speed_is_the_average_of_its_samples(given: Given, database: Database):
    story = Story()
    replied(story, elapsed_ms=1000)  # 25 tokens a second
    replied(story, elapsed_ms=2500)  # 10
    replied(story, elapsed_ms=0)  # not recorded
    given(story)

    assert await statistics.speeds(database, now_ms=story.ms) == {"alpha": 17.5}
    assert await statistics.speeds(database, now_ms=story.ms + HOUR + 1) == {}


async def test_a_worker_s_replies_are_counted(given: Given, connected: Session):
    story = Story()
    for worker in (1, 2, 1):
        replied(story, worker=worker)
    given(story)

    rows = connected.execute("SELECT worker_id::text, fulfilments FROM worker_fulfilments")

    assert dict(rows.fetchall()) == {uuid(1, 0xF000): 2, uuid(2, 0xF000): 1}


async def test_replies_that_came_too_fast_are_counted_for_their_worker(
    given: Given, connected: Session
):
    story = Story()
    replied(story, characters=400, elapsed_ms=1000, believable=99_000)
    replied(story, characters=400, elapsed_ms=1100, believable=99_000)
    replied(story, characters=400, elapsed_ms=1000)  # written before this was recorded
    given(story)

    counted = connected.execute("SELECT sum(fulfilments), sum(implausible) FROM worker_fulfilments")
    assert counted.fetchone() == (3, 1)
