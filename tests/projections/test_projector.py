"""Each event takes effect once, whatever the batches, the crashes and the runners."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import psycopg
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archive.archive import HistoryLost
from events.base import START, Position
from events.codec import UnknownType
from events.keys import CHANNEL_PROJECTED, Keys, channel
from events.types import Settled
from projections import checkpoint, session
from projections.checkpoint import CheckpointMoved
from projections.log import Log
from projections.projector import Projector, step
from projections.session import Session
from projections.status import STATUS
from tests.projections.conftest import Given, catch_up, rows, wipe
from tests.projections.histories import Story, append, random_story
from tests.spec import spec


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 100))
def test_batches_of_1_2_and_500_give_the_same_rows(
    client: redis.Redis, keys: Keys, reader: Log, connected: Session, seed: int, length: int
):
    client.flushall()
    append(client, random_story(seed, length).events, keys)
    seen = []

    for count in (500, 1, 2):
        wipe(connected)
        catch_up(reader, connected, count)
        seen.append(rows(connected))

    assert seen[0] == seen[1] == seen[2]


def test_a_request_that_begins_and_ends_in_one_batch_comes_out_right(
    given: Given, connected: Session
):
    story = Story()
    request = story.submit()
    generation = story.assign(request)
    story.reply(request, generation)

    given(story)

    assert connected.execute("SELECT done FROM waiting_prompts").fetchall() == [(True,)]
    assert connected.execute("SELECT state FROM processing_gens").fetchall() == [("finished",)]
    assert connected.execute("SELECT * FROM queue").fetchall() == []


def test_of_two_runners_only_one_applies_a_batch(
    client: redis.Redis, keys: Keys, reader: Log, url: str
):
    """C-127."""
    story = random_story(7, 400)
    append(client, story.events, keys)
    moved = []
    gate = threading.Barrier(2)

    def run() -> None:
        with session.connect(url, "racer") as connected:
            gate.wait()
            while True:
                try:
                    if not step(STATUS, reader_of(client, keys), connected, count=5):
                        return
                except CheckpointMoved as error:
                    moved.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with session.connect(url, "test") as connected:
        raced = rows(connected)
        wipe(connected)
        while step(STATUS, reader, connected):
            pass
        assert raced == rows(connected)
    assert moved


def reader_of(client: redis.Redis, keys: Keys) -> Log:
    return Log(client, keys, 0)


def test_a_runner_that_dies_while_it_writes_leaves_nothing(
    client: redis.Redis, keys: Keys, reader: Log, connected: Session, url: str
):
    """C-127: between its upserts and its commit."""
    story = random_story(3, 60)
    append(client, story.events, keys)
    step(STATUS, reader, connected, count=10)
    before = rows(connected)
    died: list[BaseException] = []

    def run() -> None:
        with (
            pytest.raises(psycopg.OperationalError) as caught,
            session.connect(url, "dying") as own,
        ):
            step(STATUS, reader, own)
        died.append(caught.value)

    with psycopg.connect(url) as blocker:
        # It has moved the checkpoint and written some rows when it comes to this table.
        blocker.execute("LOCK processing_gens IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=run)
        thread.start()
        _kill_when_it_waits(connected, "dying")
        thread.join()

    assert len(died) == 1
    assert rows(connected) == before
    while step(STATUS, reader, connected):
        pass
    after = rows(connected)
    wipe(connected)
    while step(STATUS, reader, connected):
        pass
    assert after == rows(connected)


def _kill_when_it_waits(connected: Session, name: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        killed = connected.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = %s AND wait_event_type = 'Lock'"
            " AND datname = current_database()",
            (name,),
        ).fetchall()
        if killed:
            return
        time.sleep(0.005)
    raise AssertionError("it never waited")


def test_an_unknown_event_stops_the_reader_and_is_not_skipped(
    client: redis.Redis, keys: Keys, reader: Log, given: Given, connected: Session
):
    story = Story()
    story.submit()
    given(story)
    before = checkpoint.read(connected, "status", 0).position
    client.xadd(keys.events(0), {"type": "from-the-future", "v": "1"})

    for _ in range(2):
        with pytest.raises(UnknownType):
            step(STATUS, reader, connected)

    assert checkpoint.read(connected, "status", 0).position == before


def test_a_log_that_lost_its_tail_is_folded_anew(
    client: redis.Redis, keys: Keys, given: Given, connected: Session, reader: Log
):
    story = Story()
    kept = story.submit()
    story.submit()
    given(story)
    client.delete(keys.events(0))
    append(client, story.events[:1], keys)

    catch_up(reader, connected)

    assert connected.execute("SELECT id::text FROM waiting_prompts").fetchall() == [(kept,)]
    assert connected.execute("SELECT request_id::text FROM queue").fetchall() == [(kept,)]


def test_a_log_that_grew_past_its_lost_tail_is_folded_anew(
    client: redis.Redis, keys: Keys, given: Given, connected: Session, reader: Log
):
    """The checkpoint is not ahead of such a log; only its missing entry tells."""
    story = Story()
    story.submit()
    story.submit()
    given(story)
    lost = story.events.pop()
    later = story.submit()
    client.delete(keys.events(0))
    append(client, story.events, keys)
    assert story.head > lost[0]

    catch_up(reader, connected)

    ids = connected.execute("SELECT id::text FROM waiting_prompts ORDER BY created_ms").fetchall()
    assert [id_ for (id_,) in ids] == [story.events[0][1].request_id, later]


def test_an_empty_log_empties_the_model(
    client: redis.Redis, given: Given, connected: Session, reader: Log
):
    given(random_story(1, 30))
    client.flushall()

    catch_up(reader, connected)

    assert not any(rows(connected).values())


@pytest.mark.parametrize("projected", [0, 2])
def test_a_log_that_was_trimmed_past_the_checkpoint_stops_the_reader(
    client: redis.Redis, keys: Keys, reader: Log, connected: Session, projected: int
):
    story = random_story(5, 20)
    append(client, story.events[:projected], keys)
    while step(STATUS, reader, connected):
        pass
    append(client, story.events[projected:], keys)
    before = rows(connected)
    client.xtrim(keys.events(0), maxlen=5, approximate=False)

    with pytest.raises(HistoryLost):
        step(STATUS, reader, connected)

    assert rows(connected) == before


def test_a_log_trimmed_behind_the_checkpoint_is_whole_enough(
    client: redis.Redis, keys: Keys, reader: Log, connected: Session
):
    story = random_story(5, 20)
    append(client, story.events[:15], keys)
    while step(STATUS, reader, connected):
        pass
    client.xtrim(keys.events(0), maxlen=1, approximate=False)
    append(client, story.events[15:], keys)

    assert step(STATUS, reader, connected) == 5


# announcing


class Ear:
    """Hears what is published to the channels of one pattern."""

    def __init__(self, client: redis.Redis, pattern: str) -> None:
        self._client = client
        self._end = pattern.replace("*", "end")
        self._subscription = client.pubsub()
        self._subscription.psubscribe(pattern)
        assert self._next()["type"] == "psubscribe"

    def heard(self) -> list[dict[str, object]]:
        """What came since it was asked last: all in front of a message of its own."""
        self._client.publish(self._end, b"")
        messages = []
        while (message := self._next())["channel"] != self._end.encode():
            messages.append(json.loads(message["data"]))
        return messages

    def _next(self) -> dict[str, Any]:
        message = self._subscription.get_message(timeout=20)
        assert message is not None
        return dict(message)


@spec("Completion signal", 1, 2, 3, 4)
def test_signals_come_in_order_and_after_the_commit(
    client: redis.Redis, given: Given, connected: Session
):
    ear = Ear(client, "horde:chat:*")
    story = Story()
    answered = story.submit(jobs=2)
    first, second = story.assign(answered), story.assign(answered)
    story.reply(answered, first)
    story.reply(answered, second)
    cancelled = story.submit()
    story.cancel(cancelled)
    faulted = story.submit(jobs=2)
    story.reply(faulted, story.assign(faulted))
    for _ in range(3):
        story.fault(faulted, story.assign(faulted))
    expired = story.submit()
    story.expire(expired)
    story.expire(answered)

    given(story)

    assert ear.heard() == [
        {"id": answered, "event": "generation", "generations": 1},
        {"id": answered, "event": "generation", "generations": 2},
        {"id": answered, "event": "done", "generations": 2},
        {"id": cancelled, "event": "cancelled", "generations": 0},
        {"id": faulted, "event": "generation", "generations": 1},
        {"id": faulted, "event": "faulted", "generations": 1},
        {"id": expired, "event": "faulted", "generations": 0},
    ]
    assert channel(answered) == f"horde:chat:{answered}"


def test_hints_say_what_became_readable(client: redis.Redis, given: Given):
    names = ("status", "eligibility", "statistics")
    ears = [Ear(client, f"{CHANNEL_PROJECTED}{name}:*") for name in names]
    story = Story()
    request = story.submit(models=("alpha", "beta"))
    story.submit(chat=False, models=())
    at_submit = str(story.head)
    given(story)
    generation = story.assign(request)
    given(story)
    story.fault(request, generation)
    given(story)
    story.cancel(request)
    given(story)

    status, eligibility, statistics = (ear.heard() for ear in ears)

    assert [message.get("requests") for message in status] == [None, None, None, [request]]
    assert eligibility[0] == {"position": at_submit, "models": ["alpha", "beta", ""]}
    assert "models" not in eligibility[1]
    assert not any(message.get("requests") for message in (*eligibility, *statistics))
    assert eligibility[2]["models"] == ["alpha", "beta"]


def test_signals_of_a_runner_that_died_before_it_could_announce_are_sent_at_takeover(
    client: redis.Redis, keys: Keys, reader: Log, connected: Session
):
    story = Story()
    request = story.submit()
    story.reply(request, story.assign(request))
    append(client, story.events, keys)
    ear = Ear(client, "horde:chat:*")

    class Mute(Log):
        def publish(self, messages: object) -> None:
            raise redis.ConnectionError("gone")

    dying = Projector(STATUS, Mute(client, keys, 0), connected)
    dying.resume()
    with pytest.raises(redis.ConnectionError):
        dying.step()
    assert dying.position == story.head
    assert ear.heard() == []

    heir = Projector(STATUS, reader, connected)
    heir.resume()
    heir.rest()

    assert [message["event"] for message in ear.heard()] == ["generation", "done"]
    assert checkpoint.read(connected, "status", 0).signalled == story.head
    Projector(STATUS, reader, connected).resume()
    assert ear.heard() == []


def test_a_rebuild_announces_nothing_old(
    client: redis.Redis, given: Given, connected: Session, reader: Log
):
    story = Story()
    request = story.submit()
    story.reply(request, story.assign(request))
    given(story)
    last = Projector(STATUS, reader, connected)
    last.resume()
    last.rest()
    ear = Ear(client, "horde:chat:*")

    checkpoint.reset(connected, "status", 0, STATUS.tables)
    catch_up(reader, connected)

    assert connected.execute("SELECT done FROM waiting_prompts").fetchall() == [(True,)]
    assert ear.heard() == []


def test_a_checkpoint_that_was_moved_while_the_runner_rested_ends_it(
    given: Given, connected: Session, reader: Log
):
    given(random_story(2, 10))
    projector = Projector(STATUS, reader, connected)
    projector.resume()
    projector.rest()
    checkpoint.reset(connected, "status", 0, STATUS.tables)

    with pytest.raises(CheckpointMoved):
        projector.rest()


def test_nul_and_huge_numbers_of_others_do_not_stop_the_reader(given: Given, connected: Session):
    story = Story()
    story.check_in(models=("al\0pha",), max_length=10**30, threads=10**30)
    story.submit(models=("al\0pha",), max_length=10**30)

    given(story)

    assert connected.execute("SELECT model FROM queue").fetchall() == [("al\ufffdpha",)]
    assert connected.execute("SELECT max_length FROM workers").fetchall() == [(2**63 - 1,)]
    assert checkpoint.read(connected, "eligibility", 0).position > Position(0, 0)


def test_events_without_a_row_cost_no_transaction_and_are_carried_past(
    client: redis.Redis, keys: Keys, reader: Log, connected: Session
):
    """An admission comes before each request: its request must not wait behind its commit."""
    append(client, [(Position(5, 0), Settled(source=0, source_position="1-0"))], keys)
    projector = Projector(STATUS, reader, connected)
    projector.resume()

    assert projector.step() == 1
    assert (projector.unwritten, projector.position) == (True, START)
    projector.rest()

    assert (projector.unwritten, projector.position) == (False, Position(5, 0))
    assert checkpoint.read(connected, "status", 0).position == Position(5, 0)
