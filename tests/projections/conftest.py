"""A migrated database, a log of one partition, and the rows that projections left."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import redis
from psycopg import sql

from events.keys import Keys
from projections import session
from projections.accounts import ACCOUNTS
from projections.database import Database
from projections.eligibility import ELIGIBILITY
from projections.log import Log
from projections.node import Client, Nodes, Waits
from projections.projector import Projector
from projections.session import Session
from projections.statistics import STATISTICS
from projections.status import STATUS
from tests.orphans import leave_none
from tests.projections.histories import Story, append

PATIENCE = 20.0
"""Seconds that an answer may take: how soon a server that hangs is given up is no matter of most
tests, and machines are busy."""
TABLES = (*STATUS.tables, *ELIGIBILITY.tables, *STATISTICS.tables, *ACCOUNTS.tables)


def connect(redis_url: str, key: str | None = None) -> AbstractContextManager[Client]:
    """As `log.connect` does, but patient."""
    return Nodes(redis_url, Waits(ask=PATIENCE)).connect(key, block_s=PATIENCE)


@pytest.fixture
def keys() -> Keys:
    return Keys(1)


@pytest.fixture
def url(migrated_url: str) -> str:
    """A database of this test's own with all tables and no rows."""
    return migrated_url


@pytest.fixture
def connected(url: str) -> Iterator[Session]:
    with session.connect(url, "test") as connection:
        yield connection


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with Client.from_url(redis_url) as made:
        yield made


@pytest.fixture
def reader(redis_url: str, keys: Keys) -> Iterator[Log]:
    with connect(redis_url) as made:
        yield Log(made, keys, 0)


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    made = Database(url, timeout=PATIENCE)  # for what has no outage in it
    yield made
    await made.close()


Given = Callable[..., None]


@pytest.fixture
def given(client: redis.Redis, keys: Keys, reader: Log, connected: Session) -> Given:
    """Write what of a story is not in the log yet, and project all of it."""
    written = 0

    def project(story: Story, count: int = 500) -> None:
        nonlocal written
        append(client, story.events[written:], keys)
        written = len(story.events)
        catch_up(reader, connected, count)

    return project


def catch_up(reader: Log, connected: Session, count: int = 500) -> None:
    for projection in (STATUS, ELIGIBILITY, STATISTICS, ACCOUNTS):
        projector = Projector(projection, reader, connected)
        projector.resume()
        while projector.step(count=count):
            pass
        projector.rest()


def rows(connected: Session) -> dict[str, list[Any]]:
    """Every row of every table of the read models, in a fixed order."""
    return {
        table: connected.execute(
            sql.SQL("SELECT t::text FROM {} t ORDER BY 1").format(sql.Identifier(table))
        ).fetchall()
        for table in TABLES
    }


def wipe(connected: Session) -> None:
    connected.execute(f"TRUNCATE checkpoints, {', '.join(TABLES)}")


def eventually(done: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until it is so. The seconds are there for what never comes, so they are many."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def start_process(module: str, name: str, redis_url: str, url: str) -> subprocess.Popen[bytes]:
    """A process that calls this function of that module, for the status."""
    code = (
        f"import sys; from {module} import {name};"
        f"{name}('status', redis_url=sys.argv[1], database_url=sys.argv[2], partitions=1)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, redis_url, url], stdout=subprocess.DEVNULL
    )
    leave_none(process.pid)
    return process
