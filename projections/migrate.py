"""Bring a database's tables up to date: each file of `migrations/` once, in order."""

from __future__ import annotations

from pathlib import Path

import psycopg
import structlog

HERE = Path(__file__).parent / "migrations"
LOCK = 4_873_211  # any number that nothing else of this database locks

logger = structlog.get_logger()


def migrate(database_url: str, folder: Path = HERE) -> list[str]:
    """Apply what is missing; return the names of the files applied, in order.

    Safe to run at any time and by several at once: one runs, the others wait for it. Each file is
    one transaction. Raise psycopg.Error where a file fails; those before it stay applied.
    """
    applied = []
    with psycopg.connect(database_url, autocommit=True) as connection:
        # Held by the session, so it spans the files' transactions and ends with the connection.
        connection.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations"
            " (name text PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())"
        )
        known = {name for (name,) in connection.execute("SELECT name FROM migrations")}
        for path in sorted(folder.glob("*.sql")):
            if path.name in known:
                continue
            with connection.transaction():
                # Our own files, without parameters: psycopg sends the whole of it at once.
                connection.execute(path.read_bytes())
                connection.execute("INSERT INTO migrations (name) VALUES (%s)", (path.name,))
            logger.info("migrated", migration=path.name)
            applied.append(path.name)
    return applied
