"""A projector's session with Postgres: plain, autocommit, dead soon after its server."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import psycopg

# Every statement of a projector is an index look-up. A plan made while tables were empty would scan
# them for ever. A read model is rebuilt from the log, so its commits need not wait for the disk.
_OPTIONS = (
    "-c synchronous_commit=off -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c enable_bitmapscan=off"
    # The server, too, must learn that we are gone: our locks last as long as it thinks we live.
    " -c tcp_keepalives_idle=3 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3"
)

Session = psycopg.Connection[Any]


def connect(database_url: str, application_name: str) -> Session:
    """A session of its own. Raise psycopg.OperationalError where there is no server."""
    return psycopg.connect(
        database_url,
        autocommit=True,
        application_name=application_name,
        options=_OPTIONS,
        connect_timeout=5,
        keepalives_idle=3,
        keepalives_interval=1,
        keepalives_count=3,
        tcp_user_timeout=5000,
    )


def _key(what: str) -> int:
    """A lock's first number: the name as a signed 32-bit integer."""
    number = crc32(what.encode())
    return number - 2**32 if number >= 2**31 else number


def try_lock(session: Session, name: str, partition: int) -> bool:
    """Take the right to project this partition; False if another session has it.

    It ends with the session.
    """
    return _flag(session, "SELECT pg_try_advisory_lock(%s, %s)", _key(name), partition)


def unlock(session: Session, name: str, partition: int) -> None:
    """Give that right back."""
    session.execute("SELECT pg_advisory_unlock(%s, %s)", (_key(name), partition))


def is_free(session: Session, name: str, partition: int) -> bool:
    """Whether no session has the right, without touching it."""
    return not _held(session, _key(name), partition)


def ask(session: Session, name: str) -> None:
    """Let everyone know that this process has room for more partitions."""
    session.execute("SELECT pg_advisory_lock_shared(%s, 0)", (_key(f"{name} wanted"),))


def ask_no_more(session: Session, name: str) -> None:
    """Take that back."""
    session.execute("SELECT pg_advisory_unlock_shared(%s, 0)", (_key(f"{name} wanted"),))


def is_asked(session: Session, name: str) -> bool:
    """Whether some process has room for more partitions."""
    return _held(session, _key(f"{name} wanted"), 0)


def _held(session: Session, first: int, second: int) -> bool:
    return _flag(
        session,
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND classid::bigint = %s AND objid::bigint = %s AND objsubid = 2 AND database ="
        " (SELECT oid FROM pg_database WHERE datname = current_database()))",
        first % 2**32,
        second,
    )


def _flag(session: Session, statement: str, *arguments: int) -> bool:
    row = session.execute(statement.encode(), arguments).fetchone()
    return bool(row and row[0])
