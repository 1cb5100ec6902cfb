"""A log whose beginning is in the archive is read as one: whoever stands where, whatever is trimmed
meanwhile, each event once, or the reader stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from archive.archive import Archive, ArchiveUnavailable, Gap, HistoryLost
from archive.bucket import Bucket, Place
from archive.s3 import Access
from archive.segments import Damaged, Segment
from events.base import START, Event, Position
from events.keys import Keys
from hordechat.datadir import free_port
from hordechat.process import Service
from projections import checkpoint, runner
from projections.log import Log, TailLost
from projections.models import PROJECTIONS
from projections.projector import Projector, step
from projections.rebuild import rebuild
from projections.session import Session
from projections.status import STATUS
from tests.handlers.shelf import archive_in, place_in
from tests.logged import logged
from tests.projections.conftest import catch_up, connect, eventually, rows
from tests.projections.cut import Cut, cut
from tests.projections.histories import Story, append, random_story
from tests.projections.test_projector import Ear
from tests.projections.test_runner import reached, running


@pytest.fixture
def archive(s3_server: Service) -> Archive:
    return archive_in(s3_server, 1)


@pytest.fixture
def split(client: redis.Redis, keys: Keys, archive: Archive) -> Cut:
    """The log of partition 0."""
    return Cut(client, keys, archive)


@pytest.fixture
def spliced(client: redis.Redis, redis_url: str, keys: Keys, archive: Archive) -> Any:
    """A reader of it."""
    with connect(redis_url) as made:
        yield Log(made, keys, 0, archive)


def written(client: redis.Redis, keys: Keys, length: int = 24, seed: int = 41) -> list[Position]:
    """A story in the log; its positions."""
    story = random_story(seed, length)
    append(client, story.events, keys)
    return [position for position, _ in story.events]


def read_on(reader: Log, after: Position, count: int = 3) -> list[Position]:
    found: list[Position] = []
    while page := reader.read(found[-1] if found else after, count=count):
        found += [each.position for each in page]
    return found


def test_it_is_read_on_from_anywhere(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log
) -> None:
    """At the start, in a segment, at its end, at the archive's end, in the stream, at the head."""
    positions = written(client, keys)
    end = split.put_away(5, 4, 3)
    split.trim(positions[9])  # some of what is archived is in the stream as well
    assert end == positions[11]

    for index in (0, 1, 4, 5, 6, 9, 10, 11, 12, 13, 20, len(positions)):
        after = positions[index - 1] if index else START
        assert spliced.holds(after)
        assert read_on(spliced, after) == positions[index:]


def test_events_are_those_that_were_written(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log
) -> None:
    positions = written(client, keys)
    before = Log(client, keys, 0).read(START, count=99)
    cut(split, (7, 7))

    found = spliced.read(START, count=99)
    assert found + spliced.read(positions[6], count=7) + spliced.read(positions[13], count=99) == (
        before
    )


def test_who_goes_back_is_told_the_same_again(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log
) -> None:
    positions = written(client, keys)
    cut(split, (12,))

    for after in (START, positions[2], START, positions[4]):
        behind = [each for each in positions if each > after]
        assert [each.position for each in spliced.read(after, count=2)] == behind[:2]


def test_a_log_that_was_begun_anew_is_not_read_for_what_was_archived(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log
) -> None:
    positions = written(client, keys)
    split.put_away(12)
    kept = client.xrange(keys.events(0), f"({positions[11]}")
    client.delete(keys.events(0))
    for position, fields in kept:  # nothing was ever trimmed, as far as Redis knows
        client.xadd(keys.events(0), fields, id=position)

    with pytest.raises(HistoryLost):
        spliced.read(START, count=3)


def test_what_is_trimmed_between_two_pages_comes_from_the_archive(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log
) -> None:
    positions = written(client, keys)
    found = [each.position for each in spliced.read(START, count=4)]

    cut(split, (6, 6))
    found += [each.position for each in spliced.read(found[-1], count=4)]
    assert found == positions[:6]  # a page ends where its segment does
    cut(split, (3, 5))  # while it reads the archive: what it has listed is not all
    found += read_on(spliced, found[-1])

    assert found == positions


def test_a_trim_that_comes_before_the_first_page_is_seen(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log
) -> None:
    positions = written(client, keys)
    assert spliced.holds(START)

    cut(split, (8,))

    assert read_on(spliced, START) == positions


def test_segments_that_overlap_tell_each_event_once(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log
) -> None:
    positions = written(client, keys)
    entries = split.stream()
    split.archive.add(0, 1, entries[:6])
    split.archive.add(0, 4, entries[3:9])
    split.archive.add(0, 2, entries[1:12])
    split.trim(positions[11])

    for index in (0, 2, 4, 6, 8, 9, 11, 12, 13):
        assert read_on(spliced, positions[index - 1] if index else START, 7) == positions[index:]


@pytest.mark.parametrize("stands", [0, 4, 9, 12])
def test_an_event_that_was_trimmed_by_hand_and_is_not_archived_stops_the_reader(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log, connected: Session, stands: int
) -> None:
    positions = written(client, keys)
    projector = Projector(STATUS, spliced, connected)
    projector.resume()
    if stands:
        projector.step(count=stands)
        projector.rest()
    before = rows(connected)
    split.put_away(5, 4)

    split.trim(positions[15])

    for go_on in (projector.step, Projector(STATUS, spliced, connected).resume):
        with pytest.raises(HistoryLost):
            go_on()
    told = checkpoint.read(connected, "status", 0).position
    assert told == (positions[stands - 1] if stands else START)
    assert rows(connected) == before
    assert spliced.holds(positions[15])


def test_a_hole_in_the_archive_and_an_object_that_was_changed_stop_the_reader(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log
) -> None:
    positions = written(client, keys)
    cut(split, (5, 4, 3))
    segments = list(split.archive.listed(0))
    body = split.archive.bucket.get(segments[1].key)

    split.archive.bucket.put(segments[1].key, body[:-9] + bytes([body[-9] ^ 1]) + body[-8:])
    with pytest.raises(Damaged):
        read_on(spliced, START)
    split.archive.bucket.delete([segments[1].key])
    for after in (START, positions[2]):
        with pytest.raises(Gap):
            read_on(spliced, after)
    assert read_on(spliced, positions[9]) == positions[10:]


class Joined:
    """An archive whose stream is begun anew behind its end while it is looked at, as `rebuild
    state` does: between a look for a position and one for the beginning."""

    def __init__(self, archive: Archive, join: Callable[[], object]) -> None:
        self._archive = archive
        self._join = join

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def end(self, partition: int, after: Position = START) -> Segment | None:
        """Where it ends."""
        if after == START:
            self._join()
        return self._archive.end(partition, after)


def test_a_log_that_is_joined_while_it_is_looked_at_lost_nothing(
    client: redis.Redis, keys: Keys, split: Cut
) -> None:
    positions = written(client, keys)
    split.put_away(len(positions))
    last = split.stream(positions[-2])[0]
    client.delete(keys.events(0))

    def join() -> None:
        pairs = dict(zip(last.fields[::2], last.fields[1::2], strict=True))
        client.xadd(keys.events(0), pairs, id=last.id)

    joined: Any = Joined(split.archive, join)

    assert Log(client, keys, 0, joined).holds(positions[-1])


def test_an_archive_that_is_away_is_asked_only_where_it_is_needed(
    client: redis.Redis, redis_url: str, keys: Keys, split: Cut
) -> None:
    positions = written(client, keys)
    away = Archive(
        Bucket(Place(f"http://127.0.0.1:{free_port()}", Access("a", "b", "c"), "archive")), 1
    )
    with connect(redis_url) as made:
        reader = Log(made, keys, 0, away)
        cut(split, (5, 4))

        assert reader.holds(positions[8])
        assert read_on(reader, positions[8]) == positions[9:]
        for after in (START, positions[3]):
            with pytest.raises(ArchiveUnavailable, match="refused"):
                reader.read(after, count=3)
            with pytest.raises(ArchiveUnavailable, match="refused"):
                reader.holds(after)


@pytest.mark.parametrize("stands", [0, 3, 12])
def test_an_archiver_that_is_always_a_step_ahead_loses_nothing(
    client: redis.Redis, redis_url: str, keys: Keys, split: Cut, stands: int
) -> None:
    """Each time somebody looks at the archive, more was archived and trimmed just before or behind
    that."""
    positions = written(client, keys, 36)
    split.put_away(5, 5)

    class Busy(Archive):
        asked = 0

        def listed(self, partition: int, since: Position = START) -> Iterator[Segment]:
            self.asked += 1
            if self.asked % 2:
                cut(split, (2,))
            found = list(super().listed(partition, since))
            cut(split, (1,))
            return iter(found)

    with connect(redis_url) as made:
        reader = Log(made, keys, 0, Busy(split.archive.bucket, 1))
        after = positions[stands - 1] if stands else START
        assert reader.holds(after)
        assert read_on(reader, after, 2) == positions[stands:]


# what Redis lost


def test_a_lost_tail_is_folded_anew_from_the_archive_on(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log, connected: Session
) -> None:
    story = random_story(43, 60)
    append(client, story.events[:50], keys)
    end = cut(split, (10, 20))
    left = split.stream()
    catch_up(spliced, connected)
    live = rows(connected)
    append(client, story.events[50:], keys)
    catch_up(spliced, connected)

    _hold_only(client, keys, left)
    assert left[0].position == end

    catch_up(spliced, connected)
    assert rows(connected) == live


def test_a_tail_that_is_lost_while_its_reader_follows_is_noticed(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log, connected: Session
) -> None:
    """It may be behind its checkpoint, and the log grown past it."""
    story = random_story(44, 60)
    append(client, story.events[:40], keys)
    cut(split, (30,))
    left = split.stream()
    append(client, story.events[40:50], keys)
    projector = Projector(STATUS, spliced, connected)
    projector.resume()
    while projector.step():
        pass
    projector.rest()
    _hold_only(client, keys, left)
    with pytest.raises(TailLost):
        spliced.read(story.events[49][0], count=3)
    append(client, story.events[50:], keys)

    while projector.step() or projector.position != story.head:
        pass

    other = random_story(44, 60)
    del other.events[40:50]
    assert checkpoint.read(connected, "status", 0).position == story.head
    found = rows(connected)
    client.flushall()
    append(client, other.events, keys)
    connected.execute("TRUNCATE checkpoints")
    for table in STATUS.tables:
        connected.execute(f"TRUNCATE {table}")
    while step(STATUS, Log(client, keys, 0), connected):
        pass
    assert found == rows(connected)


@pytest.mark.parametrize(
    ("stands", "grown"), [(0, False), (0, True), (20, False), (22, True), (28, False), (30, True)]
)
def test_a_redis_that_lost_all_costs_no_rows(
    client: redis.Redis,
    keys: Keys,
    split: Cut,
    spliced: Log,
    connected: Session,
    stands: int,
    grown: bool,
) -> None:
    """What the rows tell is known nowhere else. Also where something was written to it since."""
    story = random_story(45, 30)
    append(client, story.events[:stands], keys)
    catch_up(spliced, connected)
    append(client, story.events[stands:30], keys)
    cut(split, (12, 10))
    before = rows(connected)
    client.flushall()
    if grown:
        story.submit()
        append(client, story.events[-1:], keys)

    for projection in PROJECTIONS.values():
        with pytest.raises(HistoryLost):
            Projector(projection, spliced, connected).resume()

    assert rows(connected) == before


def _hold_only(client: redis.Redis, keys: Keys, left: list[Any]) -> None:
    """Redis comes back with these events, which follow others that were trimmed."""
    client.delete(keys.events(0))
    for entry in left:
        client.execute_command("XADD", keys.events(0), entry.id, *entry.fields)
    client.execute_command(
        "XSETID",
        keys.events(0),
        left[-1].id,
        "ENTRIESADDED",
        1000 + len(left),
        "MAXDELETEDID",
        "0-0",
    )


# rebuilding


@pytest.mark.parametrize(
    ("name", "partitions"),
    [
        *((name, 1) for name in PROJECTIONS),
        ("accounts", 4),
        *(
            pytest.param(name, 4, marks=pytest.mark.soak)
            for name in PROJECTIONS
            if name != "accounts"
        ),
    ],
)
def test_a_model_that_is_rebuilt_from_archive_and_stream_equals_the_live_one(
    redis_url: str,
    url: str,
    client: redis.Redis,
    s3_server: Service,
    connected: Session,
    name: str,
    partitions: int,
) -> None:
    keys, archive = Keys(partitions), archive_in(s3_server, partitions)
    for partition in keys.all():
        append(client, _of_its_own(partition, partitions), keys, partition)
        with connect(redis_url) as made:
            catch_up(Log(made, keys, partition), connected)
        cut(Cut(client, keys, archive, partition), (30, 1, 20))
    live = rows(connected)
    servers = {"redis_url": redis_url, "database_url": url, "partitions": partitions}

    rebuild(name, archive=archive, **servers)

    assert rows(connected) == live
    client.xtrim(keys.events(partitions - 1), maxlen=5, approximate=False)
    with pytest.raises(HistoryLost):
        rebuild(name, archive=archive, **servers)
    assert rows(connected) == live


def _of_its_own(partition: int, partitions: int) -> list[tuple[Position, Event]]:
    """A story whose accounts and workers are those of the partition."""

    def own(name: str, value: Any) -> Any:
        if name == "user_id":
            return value * partitions + partition
        if isinstance(value, tuple):
            return tuple(own("", each) for each in value)
        if isinstance(value, str):
            return value.replace("00000000f000", f"00000000f00{partition}")
        return value

    return [
        (
            position,
            replace(event, **{name: own(name, value) for name, value in asdict(event).items()}),
        )
        for position, event in random_story(50 + partition, 90, partition).events
    ]


def test_signals_that_a_runner_did_not_send_come_from_the_archive(
    client: redis.Redis, keys: Keys, split: Cut, spliced: Log, connected: Session
) -> None:
    story = Story()
    request = story.submit()
    story.reply(request, story.assign(request))
    story.submit()
    append(client, story.events, keys)
    ear = Ear(client, "horde:chat:*")
    checkpoint.ensure(connected, "status", 0)
    checkpoint.move(
        connected, "status", 0, START, checkpoint.Checkpoint(story.head, story.events[0][0])
    )
    assert cut(split, (2, 2)) == story.head
    assert client.xlen(keys.events(0)) == 1

    heir = Projector(STATUS, spliced, connected)
    heir.resume()
    heir.rest()

    assert [message["event"] for message in ear.heard()] == ["generation", "done"]
    assert checkpoint.read(connected, "status", 0).signalled == story.head


@pytest.mark.parametrize("signalled", [START, Position(1, 1), Position(1_700_000_000_001, 7)])
def test_signals_of_events_that_nobody_has_are_passed_over(
    client: redis.Redis,
    keys: Keys,
    split: Cut,
    spliced: Log,
    connected: Session,
    signalled: Position,
) -> None:
    positions = written(client, keys)
    checkpoint.ensure(connected, "status", 0)
    checkpoint.move(connected, "status", 0, START, checkpoint.Checkpoint(positions[20], signalled))
    cut(split, (5, 5, 5))
    split.archive.bucket.delete([next(split.archive.listed(0)).key])

    heir = Projector(STATUS, spliced, connected)
    heir.resume()
    while heir.step():
        pass
    heir.rest()  # notes what was passed over, and then what was announced
    heir.rest()

    assert checkpoint.read(connected, "status", 0) == (positions[-1], positions[-1])


# any log, cut anyhow

_ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("archive"), st.integers(1, 5)),
        st.tuples(st.just("trim"), st.integers(0, 9)),
        st.tuples(st.just("read"), st.integers(1, 6)),
        st.tuples(st.just("begin"), st.integers(0, 30)),
    ),
    max_size=30,
)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(acts=_ACTS)
def test_what_is_read_is_the_log(
    client: redis.Redis, redis_url: str, keys: Keys, s3_server: Service, acts: list[Any]
) -> None:
    """Archived, trimmed and read at any time: each event comes once and in order. A reader may
    begin anywhere at any time."""
    client.flushall()
    story = random_story(3, 120)
    split = Cut(client, keys, archive_in(s3_server, 1))
    length, archived, end = 0, 0, START
    positions = [position for position, _ in story.events]
    with connect(redis_url) as made:
        reader, begun, found = Log(made, keys, 0, split.archive), 0, list[Position]()
        for what, n in acts:
            if what == "append":
                append(client, story.events[length : length + n], keys)
                length = min(length + n, len(story.events))
            elif what == "archive":
                end = split.put_away(n)
                archived = positions.index(end) + 1 if end != START else 0
            elif what == "trim" and archived:
                split.trim(positions[max(0, archived - 1 - n)])
            elif what == "read":
                after = found[-1] if found else _at(positions, begun)
                found += [each.position for each in reader.read(after, count=n)]
            elif what == "begin":
                assert found == positions[begun : begun + len(found)]
                begun, found = min(n, length), []
                assert reader.holds(_at(positions, begun))
        after = found[-1] if found else _at(positions, begun)
        found += read_on(reader, after, 4)
    assert found == positions[begun:length]


def _at(positions: list[Position], index: int) -> Position:
    return positions[index - 1] if index else START


# a process


class Moody(Bucket):
    """A store that does not answer while it is away."""

    away = False
    refused = 0

    def _run(self, work: Callable[[], Any]) -> Any:
        if self.away:
            self.refused += 1
            raise ArchiveUnavailable("away")
        return super()._run(work)


def test_an_archive_that_is_away_is_waited_out(
    redis_url: str,
    url: str,
    client: redis.Redis,
    keys: Keys,
    s3_server: Service,
    connected: Session,
) -> None:
    store = Moody(place_in(s3_server))
    story = random_story(61, 40)
    append(client, story.events, keys)
    split = Cut(client, keys, Archive(store, 1))
    cut(split, (9, 9, 9))
    store.away = True
    with (
        logged(runner.logger) as lines,
        running(
            redis_url=redis_url, database_url=url, partitions=1, archive=split.archive
        ) as process,
    ):
        eventually(lambda: store.refused > 2)
        assert checkpoint.read(connected, "status", 0).position == START
        store.away = False
        eventually(lambda: reached(connected, story))
        assert process.failure is None
    live = rows(connected)

    told = [(each["event"], each["server"]) for each in lines if "server" in each]
    assert told == [("server is away", "archive"), ("server is back", "archive")]
    client.flushall()
    append(client, story.events, keys)
    connected.execute(f"TRUNCATE checkpoints, {', '.join(STATUS.tables)}")
    while step(STATUS, Log(client, keys, 0), connected):
        pass
    assert live == rows(connected)
