"""What Postgres knows of the logs, whatever Redis still holds of them: for who looks after a Redis
that lost something.
"""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg

from events.base import START, Position

_PARTITIONS = (
    "SELECT DISTINCT partition FROM checkpoints WHERE greatest(position_ms, signalled_ms) > 0"
)
_FARTHEST = (
    "SELECT position_ms AS ms, position_seq AS seq FROM checkpoints WHERE partition = %(p)s"
    " UNION SELECT signalled_ms, signalled_seq FROM checkpoints WHERE partition = %(p)s"
    " ORDER BY ms DESC, seq DESC LIMIT 1"
)
_LINES = (
    "SELECT count(*) FROM ledger WHERE partition = %s AND (position_ms, position_seq) > (%s, %s)"
    " AND (position_ms, position_seq) < (%s, %s)"
)
_NEVER = Position(2**63 - 1, 0)


class Known:
    """Asks a database. Raise psycopg.OperationalError; tables that were never made know nothing."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url

    async def partitions(self) -> set[int]:
        """Those of whose logs any model, or the archiver, has read an event."""
        return {int(partition) for (partition,) in await self._rows(_PARTITIONS, ())}

    async def farthest(self, partition: int) -> Position:
        """The last event of a log that any of them came to; START where there is none."""
        rows = await self._rows(_FARTHEST, {"p": partition})
        return Position(*rows[0]) if rows else START

    async def ledger_lines(
        self, partition: int, after: Position, until: Position | None = None
    ) -> int:
        """How many lines of the ledger are of events behind `after`, and in front of `until`."""
        rows = await self._rows(_LINES, (partition, *after, *(until or _NEVER)))
        return int(rows[0][0]) if rows else 0

    async def _rows(self, query: LiteralString, values: Any) -> list[tuple[Any, ...]]:
        try:
            async with await psycopg.AsyncConnection.connect(
                self._url, connect_timeout=5
            ) as connection:
                return await (await connection.execute(query, values)).fetchall()
        except psycopg.errors.UndefinedTable:
            return []
