"""A model built beside the live one takes its place without anyone noticing, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg import sql

from archive.archive import HistoryLost
from events.base import START, Position
from events.keys import CHANNEL_PROJECTED, Keys
from hordechat.process import Service
from projections import accounts, beside, checkpoint, session, shapes, status
from projections.beside import (
    AnotherBuild,
    Built,
    CannotReplace,
    SetBack,
    TablesChanged,
    name_of,
    rebuild_beside,
)
from projections.database import Database
from projections.log import Log
from projections.migrate import HERE, migrate
from projections.models import PROJECTIONS
from projections.node import Client
from projections.projector import Projector, step
from projections.session import Session
from projections.status import STATUS
from tests.handlers.shelf import archive_in
from tests.logged import logged
from tests.projections.conftest import (
    TABLES,
    Given,
    catch_up,
    eventually,
    rows,
    start_process,
    wipe,
)
from tests.projections.cut import Cut, cut
from tests.projections.histories import Story, append, random_story
from tests.projections.test_runner import running


class Building:
    """A build in a thread, and how it ended."""

    def __init__(self, name: str, redis_url: str, url: str, partitions: int = 1) -> None:
        self._arguments = (name, redis_url, url, partitions)
        self.built: Built | None = None
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        name, redis_url, url, partitions = self._arguments
        try:
            self.built = rebuild_beside(
                name, redis_url=redis_url, database_url=url, partitions=partitions
            )
        except BaseException as error:  # noqa: BLE001 - what ended it is the question
            self.failure = error

    def end(self, seconds: float = 30) -> Building:
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        return self

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()


def build(name: str, redis_url: str, url: str, partitions: int = 1) -> Built:
    return rebuild_beside(name, redis_url=redis_url, database_url=url, partitions=partitions)


@contextmanager
def reading(url: str, table: str = "waiting_prompts") -> Iterator[Session]:
    """Somebody reads a live table for as long as this lasts, so that no switch can be."""
    with psycopg.connect(url) as reader:
        reader.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(table)))
        yield reader


def built_up_to(connected: Session, name: str = "status") -> Position:
    return checkpoint.read(connected, name_of(name), 0).position


def leftovers(connected: Session) -> list[str]:
    """Schemas and checkpoints of builds."""
    found = connected.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'beside%'"
        " UNION ALL SELECT name FROM checkpoints WHERE name LIKE '% beside'"
    ).fetchall()
    return [name for (name,) in found]


def all_shapes(connected: Session) -> dict[str, shapes.Shape]:
    return {table: shapes.shape(connected, "public", table) for table in TABLES}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_it_equals_the_live_model_in_rows_place_and_shape(
    redis_url: str, url: str, given: Given, connected: Session, name: str
):
    story = random_story(41, 300)
    given(story, 7)
    live, shaped = rows(connected), all_shapes(connected)
    places = connected.execute("SELECT * FROM checkpoints ORDER BY name").fetchall()
    for table in PROJECTIONS[name].tables:
        connected.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))

    built = build(name, redis_url, url)

    assert built.events == len(story.events)
    assert rows(connected) == live
    assert all_shapes(connected) == shaped
    assert connected.execute("SELECT * FROM checkpoints ORDER BY name").fetchall() == places
    assert leftovers(connected) == []


def test_it_announces_nothing(redis_url: str, url: str, given: Given, client: redis.Redis):
    story = Story()
    request = story.submit()
    story.reply(request, story.assign(request))
    given(story)
    with client.pubsub(ignore_subscribe_messages=True) as ear:
        ear.psubscribe("horde:chat:*", f"{CHANNEL_PROJECTED}*")
        eventually(lambda: client.pubsub_numpat() == 2)

        build("status", redis_url, url)
        client.publish("horde:chat:end", b"the first that is heard")

        def heard() -> bool:
            message = ear.get_message(timeout=0.1)
            assert message is None or message["channel"] == b"horde:chat:end"
            return message is not None

        eventually(heard)


def test_it_says_how_fast_it_is_and_what_is_left(
    redis_url: str, url: str, client: redis.Redis, keys: Keys, reader: Log, connected: Session
):
    story = random_story(58, 40)
    append(client, story.events, keys)
    step(STATUS, reader, connected, count=30)  # what the live model has not read is left, too

    with logged(beside) as lines:
        rebuild_beside("status", redis_url=redis_url, database_url=url, partitions=1, tell_s=0)

    told = [line for line in lines if line["event"] == "builds beside"]
    assert [(line["events"], line["left"]) for line in told] == [(30, 10)]
    assert told[0]["per_second"] > 0


@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_projector_goes_on_in_the_new_tables_as_if_nothing_had_been(
    redis_url: str,
    url: str,
    client: redis.Redis,
    keys: Keys,
    reader: Log,
    connected: Session,
    name: str,
):
    """It stands in the middle of the log: the new rows are those of its place, not of the head."""
    story = random_story(42, 200)
    append(client, story.events, keys)
    projector = Projector(PROJECTIONS[name], reader, connected)
    projector.resume()
    while projector.position == START:
        projector.step(count=90)
    live, stands = rows(connected), projector.position
    read = [connected.execute(every(table), prepare=True).fetchall() for table in TABLES]

    built = build(name, redis_url, url).events

    assert built == sum(position <= stands for position, _ in story.events)
    assert rows(connected) == live
    assert [connected.execute(every(table), prepare=True).fetchall() for table in TABLES] == read
    while projector.step(count=30):
        pass
    projector.rest()
    whole = rows(connected)

    wipe(connected)
    while step(PROJECTIONS[name], reader, connected):
        pass
    assert whole == rows(connected)


def every(table: str) -> sql.Composed:
    """All rows, by a statement that the session has prepared."""
    return sql.SQL("SELECT * FROM {} ORDER BY 1, 2, 3, 4").format(sql.Identifier(table))


async def test_who_reads_his_own_writes_meanwhile_finds_them_each_time(
    redis_url: str,
    url: str,
    client: redis.Redis,
    keys: Keys,
    connected: Session,
    database: Database,
):
    """A live runner, a writer, readers with connections of their own, and builds one by one."""
    story = random_story(43, 200)
    append(client, story.events, keys)
    written: list[tuple[str, Position]] = []
    over = asyncio.Event()

    async def write() -> None:
        while not over.is_set():
            request = story.submit()
            append(client, story.events[-1:], keys)
            written.append((request, story.head))
            await asyncio.sleep(0.002)

    async def read() -> int:
        looked = 0
        while not over.is_set():
            await asyncio.sleep(0.001)
            for request, position in written[-3:]:
                read = (await status.load(database, keys, [request]))[request]
                assert read.row is not None or read.checkpoint < position
                looked += read.row is not None
        return looked

    with running(redis_url=redis_url, database_url=url, partitions=1, pause_ms=2) as runner:
        tasks = [asyncio.create_task(each) for each in (write(), read(), read(), read())]
        for _ in range(3):
            await asyncio.to_thread(build, "status", redis_url, url)
            seen = len(written)
            while len(written) < seen + 5:
                await asyncio.sleep(0.01)
        over.set()
        _, *looked = await asyncio.gather(*tasks)
        assert all(looked)
        await asyncio.to_thread(
            eventually,
            lambda: checkpoint.read(connected, "status", 0).position == story.head,
        )
        assert runner.failure is None
        live = rows(connected)

    wipe(connected)
    with_hands = Log(client, keys, 0)
    while step(STATUS, with_hands, connected):
        pass
    assert live == rows(connected)


@pytest.mark.parametrize("server", ["redis_url", "cluster_url"])
def test_the_rows_of_all_partitions_are_built(
    server: str, request: pytest.FixtureRequest, url: str, connected: Session
):
    keys, redis_url = Keys(3), request.getfixturevalue(server)
    with Client.from_url(redis_url) as client:  # of the only node
        for partition in keys.all():
            append(client, random_story(44, 60, partition).events, keys, partition)
            for _ in range(partition):  # each stands elsewhere, one at the beginning
                step(STATUS, Log(client, keys, partition), connected, count=25)
    live = rows(connected)

    assert build("status", redis_url, url, partitions=3).events == 75
    assert rows(connected) == live


@pytest.mark.parametrize("name", ["status", "accounts"])
def test_what_the_stream_has_no_more_comes_from_the_archive(
    redis_url: str,
    url: str,
    client: redis.Redis,
    keys: Keys,
    given: Given,
    connected: Session,
    s3_server: Service,
    name: str,
):
    archive = archive_in(s3_server, 1)
    story = random_story(59, 120)
    given(story)
    live = rows(connected)
    cut(Cut(client, keys, archive), (40, 30, 20))

    built = rebuild_beside(
        name, redis_url=redis_url, database_url=url, partitions=1, archive=archive
    )

    assert built.events == len(story.events)
    assert rows(connected) == live


# what is in the way


def test_a_reader_holds_the_switch_up_and_not_the_others(
    redis_url: str, url: str, given: Given, connected: Session
):
    given(random_story(45, 100))
    live = rows(connected)

    with reading(url) as reader, logged(beside) as lines:
        builds = Building("status", redis_url, url)
        eventually(lambda: built_up_to(connected) > START)
        with session.connect(url, "other") as other:
            # No query waits until the reader goes; how long one waits says `_LOCK`.
            other.execute("SET statement_timeout = '20s'")
            for _ in range(60):
                other.execute("SELECT count(*) FROM waiting_prompts, processing_gens")
        pid = reader.info.backend_pid
        eventually(lambda: any(f"process {pid} (" in str(line.get("reason")) for line in lines))
        assert builds.runs

    assert builds.end().built is not None
    assert rows(connected) == live
    assert int(beside._LOCK.removesuffix("ms")) < 600  # as long as a web process waits


def test_what_comes_while_it_waits_is_folded_too(
    redis_url: str, url: str, given: Given, connected: Session
):
    story = random_story(46, 100)
    given(story)

    with reading(url):
        builds = Building("status", redis_url, url)
        eventually(lambda: built_up_to(connected) == story.head)
        story.assign(story.submit())
        given(story)
        live = rows(connected)

    assert builds.end().built is not None
    assert rows(connected) == live


def test_a_redis_that_goes_away_meanwhile_is_waited_out(
    redis_url: str,
    url: str,
    given: Given,
    connected: Session,
    client: redis.Redis,
    keys: Keys,
):
    story = random_story(47, 100)
    given(story)
    live = rows(connected)

    with reading(url):
        builds = Building("status", redis_url, url)
        eventually(lambda: built_up_to(connected) == story.head)
        client.client_kill_filter(_type="normal", skipme=True)
        story.submit()
        append(client, story.events[-1:], keys)
        catch_up(Log(client, keys, 0), connected)
    builds.end()

    assert builds.failure is None
    assert len(rows(connected)["waiting_prompts"]) == len(live["waiting_prompts"]) + 1


def test_one_that_is_killed_leaves_the_live_model_and_the_next_clears_up(
    redis_url: str, url: str, given: Given, connected: Session
):
    story = random_story(48, 100)
    given(story)
    live = rows(connected)

    with reading(url):
        process = start_process("projections.beside", "rebuild_beside", redis_url, url)
        eventually(lambda: built_up_to(connected) == story.head)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert rows(connected) == live
        assert len(leftovers(connected)) == 2
    story.submit()
    given(story)
    now = rows(connected)

    # The server frees the lock of who was killed in its own time.
    eventually(lambda: session.is_free(connected, name_of("status"), 0))
    build("status", redis_url, url)

    assert rows(connected) == now
    assert leftovers(connected) == []


@pytest.mark.soak
def test_wherever_it_is_killed_the_live_model_is_whole_and_goes_on(
    redis_url: str, url: str, given: Given, connected: Session
):
    story = random_story(60, 4000)
    given(story)
    choose = random.Random(60)

    for _ in range(20):
        story.submit()
        given(story)
        live = rows(connected)
        process = start_process("projections.beside", "rebuild_beside", redis_url, url)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(choose.uniform(0.3, 1.8))
        process.kill()
        process.wait()
        eventually(lambda: session.is_free(connected, name_of("status"), 0))
        assert rows(connected) == live

    build("status", redis_url, url)
    assert rows(connected) == live
    assert leftovers(connected) == []


def test_two_do_not_build_the_same_model(
    redis_url: str, url: str, given: Given, connected: Session
):
    story = random_story(49, 50)
    given(story)

    with reading(url):
        first = Building("status", redis_url, url)
        eventually(lambda: built_up_to(connected) == story.head)
        with pytest.raises(AnotherBuild):
            build("status", redis_url, url)
        build("accounts", redis_url, url)

    assert first.end().built is not None


def test_a_live_model_that_is_set_back_meanwhile_is_not_replaced(
    redis_url: str, url: str, given: Given, connected: Session, reader: Log
):
    story = random_story(50, 100)
    given(story)
    live = rows(connected)

    with reading(url):
        builds = Building("status", redis_url, url)
        eventually(lambda: built_up_to(connected) == story.head)
        checkpoint.reset(connected, "status", 0, STATUS.tables)
    builds.end()

    assert isinstance(builds.failure, SetBack)
    assert leftovers(connected) == []
    catch_up(reader, connected)
    assert rows(connected) == live


def test_tables_that_were_changed_meanwhile_are_not_replaced(
    redis_url: str, url: str, given: Given, connected: Session
):
    story = random_story(51, 50)
    given(story)
    live = rows(connected)

    try:
        with psycopg.connect(url) as changer:
            # A switch waits for this with its first lock, and the change needs no stronger one: so
            # neither ever waits for the other while it is waited for.
            changer.execute("LOCK TABLE waiting_prompts IN SHARE ROW EXCLUSIVE MODE")
            builds = Building("status", redis_url, url)
            eventually(lambda: built_up_to(connected) == story.head)
            changer.execute("CREATE INDEX more ON waiting_prompts (partition)")
        builds.end()
    finally:
        connected.execute("DROP INDEX more")

    assert isinstance(builds.failure, TablesChanged)
    assert leftovers(connected) == []
    assert rows(connected) == live


CHANGES = [
    "ALTER TABLE {} ADD COLUMN more int",
    "ALTER TABLE {} ALTER COLUMN worker_id TYPE text",
    'ALTER TABLE {} ALTER COLUMN model TYPE text COLLATE "C"',
    "ALTER TABLE {} ALTER COLUMN charge DROP NOT NULL",
    "ALTER TABLE {} ALTER COLUMN charge SET DEFAULT 1",
    "CREATE INDEX more ON {} (partition)",
    "ALTER INDEX processing_gens_wp RENAME TO more",
    "ALTER TABLE {} SET (fillfactor = 60)",
    "ALTER TABLE {} ADD CONSTRAINT more CHECK (partition >= 0)",
    "ALTER TABLE {} ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE {} REPLICA IDENTITY FULL",
]


def test_a_changed_table_has_another_shape(connected: Session):
    before = shapes.shape(connected, "public", "processing_gens")
    for change in CHANGES:
        with connected.transaction(force_rollback=True):
            connected.execute(change.format("processing_gens"))

            assert shapes.shape(connected, "public", "processing_gens") != before, change


STANDING = [
    "VIEW mine AS SELECT id FROM waiting_prompts",
    "TABLE mine (id uuid REFERENCES waiting_prompts)",
    "FUNCTION mine(w waiting_prompts) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "PUBLICATION mine FOR TABLE waiting_prompts",
    "TRIGGER mine BEFORE UPDATE ON waiting_prompts EXECUTE FUNCTION"
    " suppress_redundant_updates_trigger()",
    "POLICY mine ON waiting_prompts",
]


def test_what_stands_on_a_table_is_told(connected: Session):
    for table in TABLES:
        assert shapes.dependants(connected, "public", table) == []
    for made in STANDING:
        with connected.transaction(force_rollback=True):
            connected.execute(f"CREATE {made}")

            (told,) = shapes.dependants(connected, "public", "waiting_prompts")
            assert "mine" in told


def test_whatever_a_table_has_its_copy_has(connected: Session):
    with connected.transaction(force_rollback=True):
        connected.execute("CREATE SCHEMA elsewhere")
        connected.execute(
            """
            CREATE TABLE mine (
                id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT mine_key PRIMARY KEY,
                gone int,
                name varchar(9) COLLATE "C" NOT NULL DEFAULT 'a USING b',
                size int CONSTRAINT positive CHECK (size > 0),
                twice int GENERATED ALWAYS AS (2 * size) STORED,
                UNIQUE (name, size) DEFERRABLE INITIALLY DEFERRED,
                EXCLUDE USING btree (size WITH =) WHERE (name = ' USING ')
            ) WITH (fillfactor = 55, autovacuum_enabled = false);
            ALTER TABLE mine DROP COLUMN gone;
            CREATE UNIQUE INDEX sizes ON mine (lower(name) DESC, size) INCLUDE (twice)
                WITH (fillfactor = 80) WHERE name <> ' USING ';
            CREATE STATISTICS both_of_them ON name, size FROM mine;
            """
        )
        assert shapes.dependants(connected, "public", "mine") == []

        shapes.copy(connected, "mine", of="public", to="elsewhere")

        copied = shapes.shape(connected, "elsewhere", "mine")
        assert copied == shapes.shape(connected, "public", "mine")
        assert [name for name, *_ in copied.indexes] == [
            *("mine_key", "mine_name_size_key", "mine_size_excl", "sizes")
        ]
        connected.execute("DROP TABLE mine")
        connected.execute("ALTER TABLE elsewhere.mine SET SCHEMA public")
        connected.execute("INSERT INTO mine (size) VALUES (1)")
        assert connected.execute("SELECT id, twice FROM mine").fetchall() == [(1, 2)]


def test_a_number_that_old_and_new_rows_would_draw_from_one_sequence_is_told(connected: Session):
    with connected.transaction(force_rollback=True):
        connected.execute("CREATE TABLE mine (id serial)")

        assert shapes.dependants(connected, "public", "mine") == ["sequence mine_id_seq"]


def test_tables_on_which_something_stands_are_not_replaced(
    redis_url: str, url: str, connected: Session
):
    connected.execute("CREATE VIEW mine AS SELECT id FROM waiting_prompts")
    try:
        with pytest.raises(CannotReplace, match="view mine would be left"):
            build("status", redis_url, url)
    finally:
        connected.execute("DROP VIEW mine")

    assert leftovers(connected) == []


def test_what_somebody_puts_on_a_table_meanwhile_holds_the_switch_up(
    redis_url: str, url: str, given: Given, connected: Session
):
    story = random_story(52, 50)
    given(story)

    with reading(url):
        builds = Building("status", redis_url, url)
        eventually(lambda: built_up_to(connected) == story.head)
        connected.execute("CREATE VIEW mine AS SELECT id FROM waiting_prompts")
    try:
        assert connected.execute("SELECT count(*) FROM mine").fetchone() != (0,)
    finally:
        connected.execute("DROP VIEW mine")

    assert builds.end().built is not None


def test_rows_of_partitions_that_it_does_not_know_are_not_lost(
    redis_url: str, url: str, given: Given, connected: Session
):
    given(random_story(53, 50))
    checkpoint.ensure(connected, "status", 3)
    live = rows(connected)

    with pytest.raises(CannotReplace, match=r"partitions \[3\]"):
        build("status", redis_url, url)

    assert rows(connected) == live


def test_a_log_without_its_beginning_costs_no_rows(
    redis_url: str, url: str, given: Given, client: redis.Redis, keys: Keys, connected: Session
):
    given(random_story(54, 50))
    live = rows(connected)
    client.xtrim(keys.events(0), maxlen=10, approximate=False)

    with pytest.raises(HistoryLost):
        build("status", redis_url, url)

    assert rows(connected) == live
    assert leftovers(connected) == []


def test_who_may_read_the_old_table_may_read_the_new_one(
    redis_url: str, url: str, given: Given, connected: Session
):
    given(random_story(55, 20))
    connected.execute("CREATE ROLE reporter")
    try:
        connected.execute("GRANT SELECT ON waiting_prompts TO reporter WITH GRANT OPTION")
        connected.execute("GRANT SELECT, UPDATE ON processing_gens TO PUBLIC")
        granted = "SELECT relname, relacl FROM pg_class WHERE relname = ANY(%s) ORDER BY relname"
        before = connected.execute(granted, (list(STATUS.tables),)).fetchall()

        build("status", redis_url, url)

        assert connected.execute(granted, (list(STATUS.tables),)).fetchall() == before
    finally:
        connected.execute("DROP OWNED BY reporter")
        connected.execute("DROP ROLE reporter")
        connected.execute("REVOKE ALL ON processing_gens FROM PUBLIC")


async def test_a_check_of_the_books_that_waited_for_a_switch_sees_the_new_tables(
    url: str, given: Given, connected: Session
):
    given(random_story(57, 100))
    before = await accounts.stored(url, 0)
    assert before.lines
    with session.connect(url, "switch") as switching, switching.transaction():
        switching.execute("LOCK TABLE ledger")
        checking = asyncio.create_task(accounts.stored(url, 0))
        async with asyncio.timeout(20):
            while not is_waited_for(switching, connected):
                await asyncio.sleep(0.01)
        switching.execute("CREATE TEMPORARY TABLE kept ON COMMIT DROP AS SELECT * FROM ledger")
        switching.execute("TRUNCATE ledger")  # as in a new table, all is of this transaction
        switching.execute("INSERT INTO ledger SELECT * FROM kept")

    assert await checking == before


def is_waited_for(somebody: Session, connected: Session) -> bool:
    found = connected.execute(
        "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))",
        (somebody.info.backend_pid,),
    )
    return found.fetchone() is not None


# a change of shape, as CONTRIBUTING has it

EXPAND = """
ALTER TABLE waiting_prompts ADD COLUMN promised bigint NOT NULL DEFAULT 0;
CREATE INDEX waiting_prompts_promised ON waiting_prompts (promised) WHERE promised > 0;
ALTER FUNCTION status_write RENAME TO status_write_before;
CREATE FUNCTION status_write(changes jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    came_back text[] := status_write_before(changes);
BEGIN
    UPDATE waiting_prompts w SET promised = w.jobs * w.max_length
    FROM jsonb_array_elements(changes -> 'waiting_prompts' -> 'insert') AS c (change)
    WHERE w.id = (c.change ->> 'id')::uuid;
    RETURN came_back;
END
$$;
"""


def test_a_new_column_is_computed_for_old_rows_too(
    redis_url: str, database_url: str, client: redis.Redis, keys: Keys, tmp_path: Path
):
    migrate(database_url)
    story = random_story(56, 100)
    append(client, story.events, keys)
    reader = Log(client, keys, 0)
    with session.connect(database_url, "test") as connected:
        projector = Projector(STATUS, reader, connected)
        projector.resume()
        while projector.step():
            pass
        projector.rest()
        for path in HERE.glob("*.sql"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / "9999_promised.sql").write_text(EXPAND)
        migrate(database_url, tmp_path)
        story.submit(jobs=2, max_length=70)
        append(client, story.events[-1:], keys)
        while projector.step():
            pass
        wrong = "SELECT count(*) FROM waiting_prompts WHERE promised <> jobs * max_length"
        assert connected.execute(wrong).fetchone() != (0,)
        shaped = shapes.shape(connected, "public", "waiting_prompts")

        build("status", redis_url, database_url)

        assert connected.execute(wrong).fetchone() == (0,)
        assert shapes.shape(connected, "public", "waiting_prompts") == shaped
        story.submit()
        append(client, story.events[-1:], keys)
        assert projector.step() == 1
        assert connected.execute(wrong).fetchone() == (0,)
