"""What Postgres knows of the logs."""

from __future__ import annotations

import psycopg

from events.base import START, Position
from projections.known import Known


async def test_it_knows_how_far_anybody_came_and_what_the_ledger_has_behind_an_event(
    migrated_url: str, database_url: str
) -> None:
    known = Known(migrated_url)
    assert await known.partitions() == set()
    assert await known.farthest(1) == START
    with psycopg.connect(migrated_url) as connection:
        connection.execute(
            "INSERT INTO checkpoints VALUES ('status', 1, 7, 1, 7, 0), ('accounts', 1, 7, 0, 9, 2),"
            " ('archiver', 1, 3, 0, 3, 0), ('status', 0, 0, 0, 0, 0),"
            " ('status', 2, 0, 0, 4, 0)"  # just set back
        )
        for ms in (5, 6, 7):
            connection.execute("INSERT INTO ledger VALUES (1, %s, 0, 0, 1, 'x', 1, 0, 0)", (ms,))

    assert await known.partitions() == {1, 2}
    assert await known.farthest(1) == Position(9, 2)
    assert await known.ledger_lines(1, Position(5, 0)) == 2
    assert await known.ledger_lines(1, START, Position(7, 0)) == 2
    assert await known.ledger_lines(0, START) == 0
    never = Known(database_url)
    assert (await never.partitions(), await never.farthest(0)) == (set(), START)
    assert await never.ledger_lines(0, START) == 0
