"""A query has an answer, or DatabaseUnavailable, in time; a Postgres that comes back is found."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from projections.database import Database, DatabaseUnavailable
from projections.session import Session

TIMEOUT = 3.0
LATE = 30
"""Seconds. Far from both, the timeout and what the queries that hang would take."""


@pytest.fixture
async def hasty(url: str) -> AsyncIterator[Database]:
    made = Database(url, timeout=TIMEOUT, connections=3)
    yield made
    await made.close()


@pytest.fixture
async def patient(url: str) -> AsyncIterator[Database]:
    """For what has no outage in it."""
    made = Database(url, timeout=20, connections=3)
    yield made
    await made.close()


def end_sessions(connected: Session) -> None:
    connected.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'web' AND datname = current_database()"
    )


async def test_a_query_that_hangs_ends_in_time_and_the_next_one_works(hasty: Database):
    started = time.monotonic()

    with pytest.raises(DatabaseUnavailable):
        await hasty.fetch(b"SELECT pg_sleep(60)")

    assert TIMEOUT - 0.1 < time.monotonic() - started < LATE
    assert await hasty.fetch(b"SELECT 1") == [(1,)]


async def test_a_restart_of_postgres_costs_no_query(patient: Database, connected: Session):
    """C-129."""
    await asyncio.gather(*(patient.fetch(b"SELECT pg_sleep(0.05)") for _ in range(3)))
    end_sessions(connected)
    await asyncio.sleep(0.05)

    assert await patient.fetch(b"SELECT 1") == [(1,)]


async def test_sessions_that_postgres_ends_for_idleness_cost_no_query(url: str, connected: Session):
    """C-129."""
    made = Database(url, timeout=20, connections=1)
    await made.fetch(b"SELECT set_config('idle_session_timeout', '1', false)")
    async with asyncio.timeout(20):
        while connected.execute(
            "SELECT FROM pg_stat_activity WHERE application_name = 'web'"
            " AND datname = current_database()"
        ).fetchall():
            await asyncio.sleep(0.01)

    assert await made.fetch(b"SELECT 1") == [(1,)]
    await made.close()


@contextmanager
def hung(connected: Session) -> Iterator[None]:
    """Every process of the server stopped: it accepts connections and answers nothing."""
    (backend,) = connected.execute("SELECT pg_backend_pid()").fetchone() or (0,)
    postmaster = int(Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()[1])
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    pids = [postmaster, *map(int, children)]

    def send(number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):  # a session that was ending when it was listed
                os.kill(pid, number)

    try:
        send(signal.SIGSTOP)
        yield
    finally:
        send(signal.SIGCONT)


async def test_a_postgres_that_hangs_is_an_outage_in_time_and_found_when_it_goes_on(
    hasty: Database, connected: Session
):
    await hasty.fetch(b"SELECT 1")

    with hung(connected):
        for _ in range(2):  # with an open connection, and with none
            started = time.monotonic()
            with pytest.raises(DatabaseUnavailable):
                await hasty.fetch(b"SELECT 1")
            assert time.monotonic() - started < LATE

    assert await hasty.fetch(b"SELECT 1") == [(1,)]


async def test_more_callers_than_connections_take_turns(patient: Database):
    answers = await asyncio.gather(*(patient.fetch(b"SELECT %s", (n,)) for n in range(60)))

    assert [rows[0][0] for rows in answers] == list(range(60))


async def test_those_who_wait_behind_a_hang_end_in_time_too(hasty: Database):
    started = time.monotonic()

    answers = await asyncio.gather(
        *(hasty.fetch(b"SELECT pg_sleep(60)") for _ in range(9)), return_exceptions=True
    )

    assert {type(answer) for answer in answers} == {DatabaseUnavailable}
    assert time.monotonic() - started < LATE
    assert await hasty.fetch(b"SELECT 1") == [(1,)]


async def test_callers_that_go_away_take_no_connection_with_them(patient: Database):
    for _ in range(5):
        tasks = [asyncio.create_task(patient.fetch(b"SELECT pg_sleep(0.02)")) for _ in range(9)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert await patient.fetch(b"SELECT 1") == [(1,)]


async def test_a_mistake_in_a_query_is_not_an_outage(patient: Database):
    with pytest.raises(psycopg.errors.UndefinedTable):
        await patient.fetch(b"SELECT * FROM nothing")

    assert await patient.fetch(b"SELECT 1") == [(1,)]


async def test_no_postgres_at_all_is_an_outage():
    nowhere = Database("postgresql://nobody@127.0.0.1:1/none", timeout=0.4)

    with pytest.raises(DatabaseUnavailable):
        await nowhere.fetch(b"SELECT 1")
