"""`hordechat ledger` on real servers."""

from __future__ import annotations

import asyncio
import json

import psycopg
import pytest
from click.testing import CliRunner, Result

from events.base import KUDOS
from events.keys import Keys
from handlers.grants import grant
from handlers.limits import Limits
from handlers.log import Log
from hordechat.cli import main
from lua.link import Link
from projections.rebuild import rebuild
from tests.handlers.pool import Pool
from tests.spec import spec


@pytest.fixture
def client(redis_url: str, migrated_url: str) -> int:
    """An account that submitted a request, was served and got a grant; all of it is projected."""

    async def work() -> int:
        pool = await Pool.opened(Log(Link(redis_url, timeout=20), Keys(1)), Limits())
        job = await pool.assign(await pool.submit())
        assert job is not None
        await pool.reply(job.generation_id)
        await pool.settle()
        await grant(pool.log, pool.client.id, -2 * KUDOS, grant_id="once")
        await pool.log.close()
        return pool.client.id

    user_id = asyncio.run(work())
    rebuild("accounts", redis_url=redis_url, database_url=migrated_url, partitions=1)
    return user_id


@pytest.fixture
def run(redis_url: str, migrated_url: str):
    def invoke(*args: str) -> Result:
        servers = {"REDIS_URL": redis_url, "DATABASE_URL": migrated_url, "HORDE_SECRET": "x"}
        return CliRunner().invoke(main, ["ledger", *args], env=servers)

    return invoke


@spec("Kudos", 26)
def test_an_account_s_ledger_is_a_table(run, client: int) -> None:
    result = run(f"client#{client}")

    assert result.exit_code == 0, result.output
    heading, *lines = result.stdout.splitlines()
    assert heading.split() == ["time", "cause", "amount", "escrow", "balance", "for"]
    told = [line.split() for line in lines]
    assert [cells[1] for cells in told] == ["admin", "generation", "tax", "opened"]
    assert told[0][2:] == ["-2.0000", told[0][3], "as", "once"]
    assert told[2][2:5] == ["-1.0000", "99.0000", "request"]


def test_its_newest_lines_are_json_where_that_is_asked_for(run, client: int) -> None:
    result = run(str(client), "--limit", "3", "--json")

    granted, charged, taxed = map(json.loads, result.stdout.splitlines())
    assert (granted["cause"], granted["amount"], granted["reference"]) == ("admin", -2.0, "once")
    assert charged["burn"] == 1.0
    assert charged["request_id"] == taxed["request_id"]
    assert charged["balance"] == taxed["balance"] + charged["amount"]
    assert granted["balance"] == charged["balance"] - 2.0


def test_an_account_that_is_none_is_told_in_a_sentence(run, client: int) -> None:
    result = run("99")

    assert result.exit_code == 1
    assert result.stderr.strip() == "Error: The read model knows of no account 99."


@spec("Kudos", 25)
def test_books_that_are_right_are_exit_0(run, client: int) -> None:
    result = run("check")

    assert result.exit_code == 0, result.output
    first, *_, last = result.stdout.splitlines()
    assert first.startswith("partition 0: 3 accounts have ")
    assert first.endswith("with clearing 0.0000")
    assert last == "no differences"


def test_each_difference_is_a_line_and_exit_1(run, client: int, migrated_url: str) -> None:
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        connection.execute("UPDATE accounts SET escrow = 5 WHERE user_id = %s", (client,))

    result = run("check")

    assert result.exit_code == 1
    *_, told, count = result.stdout.splitlines()
    assert told == f"account {client} escrow: log 0, Redis 0, Postgres 5"
    assert count == "1 difference"
