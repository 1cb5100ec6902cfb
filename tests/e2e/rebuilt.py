"""Read models as they are, beside what the log gives an empty database."""

from __future__ import annotations

import secrets
from typing import Any

import psycopg
from psycopg import sql

from projections.accounts import ACCOUNTS
from projections.eligibility import ELIGIBILITY
from projections.migrate import migrate
from projections.rebuild import rebuild
from projections.statistics import STATISTICS
from projections.status import STATUS
from tests.conftest import database_named
from tests.e2e.conftest import PARTITIONS, Pool

# `checkpoints` says how far they are.
TABLES = {each.name: each.tables for each in (STATUS, ELIGIBILITY, STATISTICS, ACCOUNTS)}


def _checkpoints(url: str) -> dict[tuple[str, int], tuple[int, int]]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT name, partition, position_ms, position_seq FROM checkpoints"
        ).fetchall()
    return {(name, partition): (ms, seq) for name, partition, ms, seq in rows}


async def caught_up(pool: Pool) -> bool:
    """Whether the models stand at the heads of the logs, and those stand still."""
    found = _checkpoints(_url(pool))
    async with pool.log() as log:
        heads = [await log.head(partition) for partition in range(PARTITIONS)]
    return all(
        found[name, partition] == (head.ms, head.seq)
        for name in TABLES
        for partition, head in enumerate(heads)
    )


def _url(pool: Pool) -> str:
    return pool.up.run()["database_url"]


def _rows(url: str, name: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    with psycopg.connect(url) as connection:
        for table in TABLES[name]:
            query = sql.SQL("SELECT to_jsonb(t) FROM {} t").format(sql.Identifier(table))
            cursor = connection.execute(query)
            found[table] = sorted((row[0] for row in cursor), key=repr)
        found["checkpoints"] = sorted(
            (key, at) for key, at in _checkpoints(url).items() if key[0] == name
        )
    return found


def differences(live: dict[str, list[Any]], rebuilt: dict[str, list[Any]]) -> list[Any]:
    """The first few rows that only one side has: pytest would compare whole tables for minutes."""
    return [
        (side, table, row)
        for table in live
        for side, rows, others in (
            ("live", live[table], rebuilt[table]),
            ("rebuilt", rebuilt[table], live[table]),
        )
        for row in rows
        if row not in others
    ][:4]


def live_and_rebuilt(pool: Pool, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows as they are, and as the log gives them to an empty database."""
    server, database = pool.postgres.service.url, f"rebuilt_{secrets.token_hex(4)}"
    other = database_named(server, database)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    migrate(other)
    rebuild(
        name,
        redis_url=pool.redis_url,
        database_url=other,
        partitions=PARTITIONS,
        archive=pool.archive(),
    )
    return _rows(_url(pool), name), _rows(other, name)
