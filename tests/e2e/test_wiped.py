"""Redis comes back without anything in the middle of work: nobody is told a falsehood, no row is
dropped, and what was archived comes back."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from archive.archive import Archive
from archive.segments import Raw
from events.base import START, Position
from events.keys import Keys
from handlers.ledger import check
from handlers.log import Log
from handlers.replay import read_raw
from handlers.stream import stretch
from hordechat import settings
from hordechat.datadir import DataDir, free_port
from hordechat.embedded import valkey
from hordechat.opening import archive_of
from hordechat.process import Service, running
from lua.link import Link
from projections import accounts
from projections.migrate import migrate
from projections.models import PROJECTIONS
from projections.rebuild import rebuild
from tests.conftest import database_named
from tests.e2e.conftest import Server
from tests.e2e.harness import (
    CHAT,
    POP,
    SUBMIT,
    Book,
    Client,
    Up,
    Worker,
    chat,
    declaration,
    eventually,
    known,
    reply,
    status_of,
    working,
)
from tests.e2e.wire import Http
from tests.handlers.shelf import stream_of

pytestmark = pytest.mark.e2e

ENV = {
    "HORDE_TEST": "true",
    "HORDE_ARCHIVER_SECONDS": "0.1",
    "HORDE_SEGMENT_BYTES": "20000",
    "HORDE_SEGMENT_SECONDS": "1",
    "HORDE_SNAPSHOT_EVENTS": "200",
    "HORDE_LOG_RETENTION_SECONDS": "0",
}


class Scene(NamedTuple):
    """A service whose Redis and database are at hand."""

    up: Up
    redis: Server
    folder: Path
    postgres_url: str
    database_url: str
    keys: Keys

    def archive(self) -> Archive:
        """Of the service's log."""
        found = archive_of(settings.load(DataDir(self.up.data).read_environment()))
        assert found is not None
        return found

    def log(self, url: str | None = None, archive: Archive | None = None) -> Log:
        """The log at this Redis, for a look."""
        return Log(Link(url or self.redis.url, timeout=10), self.keys, archive=archive)

    def wipe(self) -> Path:
        """Redis is killed, and comes back without its append-only file, which is kept."""
        self.redis.kill()
        kept = self.folder / "kept"
        shutil.move(self.folder / "valkey", kept)
        self.redis.start()
        return kept

    async def copy(self, kept: Path) -> list[list[Raw]]:
        """Every event that the Redis had acknowledged, or the archive took from it, by partition:
        from its append-only file."""
        service = valkey.service(kept, free_port(), fsync="no")
        with running(service, self.folder / "kept.log"):
            log = self.log(service.url, self.archive())
            try:
                return [
                    [each async for page in read_raw(log, partition) for each in page]
                    for partition in self.keys.all()
                ]
            finally:
                await log.close()

    def rows(self, url: str) -> dict[str, list[str]]:
        """All that each read model has, and how far it is."""
        found: dict[str, list[str]] = {}
        with psycopg.connect(url) as connection:
            for model in PROJECTIONS.values():
                for table in model.tables:
                    query = f"SELECT to_jsonb(t)::text FROM {table} t".encode()  # noqa: S608
                    found[table] = sorted(row[0] for row in connection.execute(query))
        return found

    def checkpoints(self, url: str) -> dict[tuple[str, int], Position]:
        """Of every read model."""
        with psycopg.connect(url) as connection:
            rows = connection.execute(
                "SELECT name, partition, position_ms, position_seq FROM checkpoints"
            ).fetchall()
        return {(name, at): Position(ms, seq) for name, at, ms, seq in rows if name in PROJECTIONS}


@pytest.fixture(params=[1, pytest.param(4, marks=pytest.mark.soak)])
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, e2e_postgres: Server, s3_server: Service
) -> Iterator[Scene]:
    database = f"wiped_{secrets.token_hex(4)}"
    with psycopg.connect(e2e_postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    url = database_named(e2e_postgres.url, database)
    redis = Server(valkey.service(tmp_path / "valkey", free_port()), tmp_path / "valkey.log")
    up = Up(
        tmp_path / "up",
        *("--partitions", str(request.param)),
        env={
            "REDIS_URL": redis.url,
            "DATABASE_URL": url,
            "S3_ENDPOINT_URL": s3_server.url,
            "HORDE_ARCHIVE_BUCKET": f"archive-{secrets.token_hex(4)}",
        }
        | s3_server.settings
        | ENV,
    )
    redis.start()
    try:
        up.start()
        yield Scene(up, redis, tmp_path, e2e_postgres.url, url, Keys(request.param))
    finally:
        up.end()
        redis.stop()


async def test_a_wiped_redis_is_rebuilt_and_what_is_lost_is_what_was_not_archived(
    scene: Scene,
) -> None:
    up, keys = scene.up, scene.keys
    client_key, owner_key = await up.users("client", "owner")
    await known(up.url, owner_key, client_key)
    book = Book()
    clients = [Client(up.url, client_key, book, f"c{n}") for n in range(4)]
    workers = [Worker(up.url, owner_key, book, f"w{n}") for n in range(2)]
    waiting, held = await _in_the_middle(scene, book, clients, workers)

    kept = scene.wipe()
    rows = scene.rows(scene.database_url)
    await _nobody_is_told_a_falsehood(scene, client_key, owner_key, waiting, held)
    said = up.cli("user", "list", code=1, seconds=20)
    assert said == ""
    ends = [scene.archive().end(partition) for partition in keys.all()]
    copy = await scene.copy(kept)
    now = scene.rows(scene.database_url)
    assert [table for table in rows if rows[table] != now[table]] == [], "what is left was dropped"

    told = json.loads(up.cli("rebuild", "state", "--json"))

    for each, end, entries in zip(told["partitions"], ends, copy, strict=True):
        behind = end.last if end else START
        lost = [raw.position for raw in entries if raw.position > behind]
        print(f"partition {each['partition']}: {len(entries)} events, {len(lost)} of them lost")
        assert each["forgotten"]
        assert each["lost"]["behind"] == (str(behind) if end else None)
        heard = each["lost"]["known"]
        assert heard is None or Position.parse(heard) <= entries[-1].position
    assert "profiles" in told["gone"]

    async def ready() -> bool:
        async with Http(up.url) as http:
            return (await http.call("GET", "/health/ready")).status == 200

    await eventually(ready, 60, "a service that goes on")
    await _goes_on(scene, client_key, owner_key)
    await _is_right(scene, copy, ends)
    await _balances(scene, copy, ends)
    assert up.end() == 0, up.program.tail()


async def _in_the_middle(
    scene: Scene, book: Book, clients: list[Client], workers: list[Worker]
) -> tuple[str, str]:
    """Work until some of it is archived, and snapshots are taken; then stop in the middle: a
    request waits, and a worker holds a job."""
    archive = scene.archive()

    def archived() -> bool:
        ends = [archive.end(partition) for partition in scene.keys.all()]
        return len(book.ended) > 30 and all(end and end.number > 1 for end in ends)

    enough = asyncio.Event()
    async with working(workers):
        runs = [asyncio.ensure_future(each.run(enough.is_set)) for each in clients]
        await eventually(archived, 60, "segments")
        enough.set()
        await asyncio.gather(*runs)
    early = await clients[0].submit()
    later = await clients[0].submit()
    job = await workers[0].serve(book.accepted[early])
    await _until_archived(scene, archive)
    async with working(workers[1:]):  # and some more, of which the end is lost
        for each in clients:
            await each.follow(await each.submit())
    for each in (*clients, *workers):
        each.close()
    return later, job.generation_id


async def _until_archived(scene: Scene, archive: Archive) -> None:
    log = scene.log()
    try:
        heads = [await log.head(partition) for partition in scene.keys.all()]
    finally:
        await log.close()

    def archived() -> bool:
        ends = [archive.end(partition) for partition in scene.keys.all()]
        return all(end and end.last >= head for end, head in zip(ends, heads, strict=True))

    await eventually(archived, 60, "the requests in the archive")


async def _nobody_is_told_a_falsehood(
    scene: Scene, client_key: str, owner_key: str, waiting: str, held: str
) -> None:
    url = scene.up.url
    async with Http(url, client_key) as client, Http(url, owner_key) as owner, Http(url, "x") as x:
        calls: list[tuple[Http, str, str, Any]] = [
            (client, "GET", "/health/ready", None),
            (client, "POST", CHAT, chat("is anybody there")),
            (client, "GET", status_of(waiting), None),
            (client, "DELETE", status_of(waiting), None),
            (client, "GET", "/v2/find_user", None),
            (owner, "POST", POP, declaration("w0")),
            (owner, "POST", SUBMIT, reply(held, "late")),
            (x, "POST", CHAT, chat("who am I")),
            (x, "GET", "/v2/find_user", None),
        ]
        for _ in range(3):
            for http, method, path, body in calls:
                answer = await http.call(method, path, body)
                assert answer.status == 503, (method, path, answer)
                assert "retry-after" in answer.headers
        assert (await client.call("GET", "/health/live")).status == 200


async def _goes_on(scene: Scene, client_key: str, owner_key: str) -> None:
    await known(scene.up.url, owner_key, client_key)
    book = Book()
    client = Client(scene.up.url, client_key, book, "again")
    async with working([Worker(scene.up.url, owner_key, book, "again")]):
        for _ in range(8):
            await client.follow(await client.submit())
    client.close()
    book.check()


async def _is_right(scene: Scene, copy: list[list[Raw]], ends: list[Any]) -> None:
    """The log is the copy up to where the archive ended, and what came since; state and rows are
    its fold."""
    await eventually(lambda: _caught_up(scene), 60, "the read models")
    log = scene.log(archive=scene.archive())
    try:
        for partition, (entries, end) in enumerate(zip(copy, ends, strict=True)):
            behind = end.last if end else START
            kept = [raw for raw in entries if raw.position <= behind]
            now = [raw async for page in read_raw(log, partition) for raw in page]
            assert now[: len(kept)] == kept
            assert all(raw.position > entries[-1].position for raw in now[len(kept) :])
            assert (await stretch(log, partition)).added == len(now)
            assert await stream_of(log, partition) == now[-len(await stream_of(log, partition)) :]
    finally:
        await log.close()
    assert "no difference" in scene.up.cli("verify")
    database = f"rebuilt_{secrets.token_hex(4)}"
    with psycopg.connect(scene.postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    other = database_named(scene.postgres_url, database)
    migrate(other)
    for name in PROJECTIONS:
        await asyncio.to_thread(
            rebuild,
            name,
            redis_url=scene.redis.url,
            database_url=other,
            partitions=scene.keys.partitions,
            archive=scene.archive(),
        )
    live, rebuilt = scene.rows(scene.database_url), scene.rows(other)
    assert [table for table in live if live[table] != rebuilt[table]] == []


async def _balances(scene: Scene, copy: list[list[Raw]], ends: list[Any]) -> None:
    """The books are right but for effects of lost events that another partition has kept."""
    log = scene.log(archive=scene.archive())
    try:
        report = await check(log, partial(accounts.stored, scene.database_url))
    finally:
        await log.close()
    lost = b" ".join(
        value
        for entries, end in zip(copy, ends, strict=True)
        for raw in entries
        if raw.position > (end.last if end else START)
        for value in raw.fields
    ).decode()
    assert [each for each in report.differences if each.field.split()[-1] not in lost] == []
    assert scene.keys.partitions > 1 or report.differences == []


async def _caught_up(scene: Scene) -> bool:
    log = scene.log()
    try:
        heads = {each: await log.head(each) for each in scene.keys.all()}
    finally:
        await log.close()
    found = scene.checkpoints(scene.database_url)
    return all(found.get((name, at)) == heads[at] for name in PROJECTIONS for at in heads)
