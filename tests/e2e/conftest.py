"""A running service that several tests share, on servers that the tests can stop and pause."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from archive.archive import Archive
from events import types
from events.base import Event
from events.keys import Keys
from handlers.log import Log
from handlers.replay import read_log
from hordechat import settings
from hordechat.datadir import DataDir, free_port
from hordechat.embedded import postgres, s3, valkey
from hordechat.opening import archive_of
from hordechat.process import Child, Service, wait_ready
from lua.link import connect
from tests.cluster import Cluster
from tests.conftest import database_named
from tests.e2e.harness import (
    POP,
    Up,
    declaration,
    eventually,
    family,
    known,
    programs,
    serving,
)
from tests.e2e.wire import Http, NoAnswer, hang_up
from tests.orphans import leave_none

PARTITIONS = 4
ANSWERED = {"HORDE_REDIS_TIMEOUT_SECONDS": "5", "HORDE_DATABASE_TIMEOUT_SECONDS": "5"}
"""Servers that are there answer, on a busy machine too. tests/e2e/test_outages.py has a web process
that gives up as in life."""
PROCFILE = """\
release: hordechat migrate
web: hordechat web
projector_status: hordechat projector status --take 2
projector_eligibility: hordechat projector eligibility
projector_statistics: hordechat projector statistics
projector_accounts: hordechat projector accounts
settler: hordechat settler
janitor: hordechat janitor
"""


class Server:
    """A server under our control: stopped, started again, paused."""

    def __init__(self, service: Service, log: Path) -> None:
        self.service = service
        self._log = log
        self._child: Child | None = None
        self._paused: list[int] = []

    @property
    def url(self) -> str:
        """Where it is."""
        return self.service.url

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.service.prepare()
        with self._log.open("ab") as output:
            self._child = Child(self.service.command, output)
        leave_none(self._child.pid, self.service.command.crash_signal)
        wait_ready(self._child, self.service.probe, 30)

    def stop(self) -> None:
        """Stop it in order."""
        self.resume()
        if self._child is not None:
            self._child.stop()
            self._child = None

    def kill(self) -> None:
        """It is no more, from one moment to the next."""
        assert self._child is not None
        self._child.kill()
        self._child.stop()
        self._child = None

    def pause(self) -> None:
        """It hangs: every process of it stands still."""
        assert self._child is not None
        self._paused = family(self._child.pid)
        for pid in self._paused:
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on."""
        for pid in reversed(self._paused):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._paused = []


@dataclass
class Pool:
    """The service, two accounts, and its servers."""

    up: Up
    client: str
    owner: str
    redis: Server | Cluster
    postgres: Server
    s3: Server
    keys: Keys
    killed: set[int] = field(default_factory=set)
    """Web workers that a test killed: their master says so."""

    @property
    def redis_url(self) -> str:
        """Where Redis is, for whoever looks at it from outside."""
        return self.redis.url

    def archive(self) -> Archive | None:
        """Where the log goes on before Redis' part of it."""
        return archive_of(settings.load(DataDir(self.up.data).read_environment()))

    @contextlib.asynccontextmanager
    async def log(self) -> AsyncIterator[Log]:
        """The event log, for a look."""
        opened = Log(
            await connect(self.redis_url, timeout=10), self.keys, test=True, archive=self.archive()
        )
        try:
            yield opened
        finally:
            await opened.close()

    async def events(self) -> list[Event]:
        """Every event, partition by partition."""
        async with self.log() as log:
            return [
                entry.recorded.event
                for partition in log.keys.all()
                async for page in read_log(log, partition)
                for entry in page
            ]

    async def unended(self) -> set[str]:
        """Requests that are not done, and jobs that a worker holds."""
        requests: set[str] = set()
        jobs: set[str] = set()
        for event in await self.events():
            match event:
                case types.Submitted():
                    requests.add(event.request_id)
                case types.Assigned():
                    jobs.add(event.generation_id)
                case types.Returned() | types.Faulted() | types.SubmittedReply():
                    jobs.discard(event.generation_id)
                case types.Cancelled():
                    jobs -= set(event.settled)
                case types.Expired():
                    jobs -= set(event.generations)
            if getattr(event, "done", False):
                requests.discard(event.request_id)
        return requests | jobs

    async def pass_time(self, seconds: float) -> None:
        """Move every partition's clock forward through its seam."""
        async with self.log() as log:
            for partition in self.keys.all():
                control = self.keys.control(partition)
                await log.read("HINCRBY", control, "clock_ms", int(seconds * 1000))


@pytest.fixture(scope="session")
def e2e_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Postgres that only these tests use."""
    folder = tmp_path_factory.mktemp("e2e-postgres")
    service = postgres.service(folder / "data", free_port(), password="test", durable=False)
    server = Server(service, folder / "log")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session", params=["plain", pytest.param("cluster", marks=pytest.mark.soak)])
def session_pool(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    e2e_postgres: Server,
) -> Iterator[Pool]:
    """The service with four partitions and two web processes, on a single Valkey or a cluster of
    one node (tests/e2e/test_cluster.py has one of three)."""
    kind = request.param
    folder = tmp_path_factory.mktemp(f"e2e-{kind}")
    redis = Server(
        valkey.service(folder / "valkey", free_port(), cluster=kind == "cluster"),
        folder / "valkey.log",
    )
    with serving_pool(folder, redis, e2e_postgres, **ANSWERED) as pool:
        yield pool


@contextlib.contextmanager
def serving_pool(
    folder: Path,
    redis: Server | Cluster,
    e2e_postgres: Server,
    *,
    procfile: str = PROCFILE,
    **env: str,
) -> Iterator[Pool]:
    """The service on this Redis, which is started and stopped with it.

    When all tests are done with it, its log has to fold to its state, and no process may have left
    a word of a bug.
    """
    database = f"{folder.name.replace('-', '_')}_{secrets.token_hex(4)}"
    with psycopg.connect(e2e_postgres.service.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    store = Server(
        s3.service(
            folder / "s3",
            free_port(),
            access_key=secrets.token_hex(10),
            secret_key=secrets.token_hex(20),
        ),
        folder / "s3.log",
    )
    up = Up(
        folder / "up",
        *("--web-workers", "2", "--partitions", str(PARTITIONS)),
        env={
            "REDIS_URL": redis.url,
            "DATABASE_URL": database_named(e2e_postgres.service.url, database),
            "S3_ENDPOINT_URL": store.service.url,
            "HORDE_TEST": "true",
            # Longer requests need their kudos upfront, whatever the queue.
            "HORDE_TEXT_FREE_OUTPUT_CEILING": "512",
            # Messages with more than one small image become an object.
            "HORDE_CHAT_MESSAGES_OFFLOAD_ENABLED": "true",
            "HORDE_CHAT_MESSAGES_OFFLOAD_BYTES": "30000",
        }
        | store.service.settings
        | env,
        procfile=procfile,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(redis.stop)
        redis.start()
        stack.callback(store.stop)
        store.start()
        stack.callback(up.end)
        up.start()
        client, owner = asyncio.run(_peopled(up))
        made = Pool(up, client, owner, redis, e2e_postgres, store, Keys(PARTITIONS))
        yield made
        assert "no orphans, none missing" in up.cli("objects", "check")
        assert "no difference" in up.cli("verify")
        assert "no difference" in up.cli("ledger", "check")
        assert up.end() == 0, up.program.tail()
        killed = {
            f"Worker (pid:{pid}) was sent SIGKILL! Perhaps out of memory?" for pid in made.killed
        }
        assert [line for line in up.bugs() if line["event"] not in killed] == []


async def _peopled(up: Up) -> list[str]:
    keys = await up.users("client", "owner")
    await known(up.url, keys[1], keys[0])
    # `--take 2` takes the other two only when nobody else did for a while.
    await serving(up.url, keys[0], Keys(PARTITIONS), 60)
    await hang_up()
    return keys


@pytest.fixture(autouse=True)
def no_program_is_left() -> Iterator[None]:
    """A test that fails ends what it started, too."""
    before = len(programs)
    yield
    for program in reversed(programs[before:]):
        if program.running():
            program.end()


@pytest.fixture(autouse=True)
async def connections() -> AsyncIterator[None]:
    """Every connection of a test ends with it."""
    yield
    await hang_up()


@pytest.fixture
async def pool(session_pool: Pool) -> AsyncIterator[Pool]:
    """The shared service, and a worker that was just seen, for a test before may have let time
    pass; a test that passes has brought to an end whatever it began."""
    before = await session_pool.unended()  # by a test that failed

    async def seen() -> bool:
        async with Http(session_pool.up.url, session_pool.owner) as owner:
            try:
                return (await owner.call("POST", POP, declaration("first"))).status == 200
            except NoAnswer:
                return False

    await eventually(seen, 60, "a worker that is seen")
    yield session_pool

    async def at_rest() -> bool:
        return await session_pool.unended() <= before

    await eventually(at_rest, 60, "requests that nobody ended")


only_plain = pytest.mark.parametrize("session_pool", ["plain"], indirect=True)
"""For what a cluster does not change."""
