"""Where a projection stands in a partition's log; moved only by compare-and-set."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from events.base import START, Position

_MOVED = "HC001"  # raised by move_checkpoint


class Stop(Exception):
    """A projector cannot go on by itself: its process ends, and says why."""


class CheckpointMoved(Stop):
    """Someone else moved this checkpoint: another runner works here, or a rebuild began."""


class Checkpoint(NamedTuple):
    """How far rows were written, and how far what they tell was announced."""

    position: Position
    signalled: Position


def read(connection: psycopg.Connection[Any], name: str, partition: int) -> Checkpoint:
    """The checkpoint as it stands; the start of the log where there is none yet."""
    row = connection.execute(
        "SELECT position_ms, position_seq, signalled_ms, signalled_seq FROM checkpoints"
        " WHERE name = %s AND partition = %s",
        (name, partition),
    ).fetchone()
    if row is None:
        return Checkpoint(START, START)
    return Checkpoint(Position(row[0], row[1]), Position(row[2], row[3]))


def ensure(connection: psycopg.Connection[Any], name: str, partition: int) -> None:
    """Make the checkpoint exist, at the start of the log."""
    connection.execute(
        "INSERT INTO checkpoints (name, partition) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        (name, partition),
    )


def move(
    connection: psycopg.Connection[Any],
    name: str,
    partition: int,
    before: Position,
    after: Checkpoint,
    write: str = "",
    changes: str = "",
) -> list[str]:
    """Move the checkpoint and write a batch's changes with it, in one statement and one round trip.

    `write` names the SQL function that takes `changes` (JSON text). Returns the models that it says
    came free. Raise CheckpointMoved, and write nothing, where the checkpoint does not stand at
    `before`.
    """
    (position, signalled) = after
    arguments = (name, partition, *before, *position, *signalled)
    move_only = "SELECT move_checkpoint(%s, %s, %s, %s, %s, %s, %s, %s)"
    try:
        if not write:
            connection.execute(move_only, arguments, prepare=True)
            return []
        statement = f"{move_only}, {write}(%s::jsonb)"  # a name of ours, never anyone's input
        row = connection.execute(statement.encode(), (*arguments, changes), prepare=True).fetchone()
    except psycopg.Error as error:
        if error.sqlstate == _MOVED:
            raise CheckpointMoved(f"{name} of partition {partition}") from error
        raise
    return (row[1] if row else None) or []


def reset(
    connection: psycopg.Connection[Any],
    name: str,
    partition: int,
    tables: tuple[str, ...],
    before: Position | None = None,
) -> None:
    """Back to the start of the log, and no row of this partition left, in one transaction.

    `signalled` stays: folding old events again must not announce them again. With `before`, raise
    CheckpointMoved unless the checkpoint stands there.
    """
    with connection.transaction():
        ensure(connection, name, partition)
        now = read(connection, name, partition)
        move(
            connection,
            name,
            partition,
            now.position if before is None else before,
            Checkpoint(START, now.signalled),
        )
        for table in tables:
            statement = sql.SQL("DELETE FROM {} WHERE partition = %s").format(sql.Identifier(table))
            connection.execute(statement, (partition,))
