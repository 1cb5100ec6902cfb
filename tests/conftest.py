"""Real servers, started once a process of tests on free ports of loopback, and clean data for each
test.

A test that needs no server starts none. Nothing is flushed to disk: tests do not end by power cuts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from psycopg import sql

from hordechat.datadir import free_port
from hordechat.embedded import postgres, s3, valkey
from hordechat.process import Service, running
from projections.node import Client

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

TEMPLATE = "template_migrated"
END_TO_END = "tests/e2e/"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of whole services first, after the shuffle: they take longest, and would be what
    one process is still at when the other has nothing left.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(END_TO_END))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """With `--dist loadfile`, the tests of whole services go to one process as if they were one
    file: they share a running service, and what they measure does not suffer from one another.
    """
    from xdist.scheduler import LoadFileScheduling

    class Spread(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return END_TO_END if nodeid.startswith(END_TO_END) else super()._split_scope(nodeid)

    return Spread(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def server_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's servers keep their data and their logs."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def servers(server_dir: Path) -> Iterator[ExitStack]:
    """The session's running servers: enter `running(...)` on it."""
    with ExitStack() as stack:
        yield stack


def _run(servers: ExitStack, service: Service, server_dir: Path) -> Service:
    servers.enter_context(running(service, server_dir / f"{service.command.name}.log"))
    return service


@pytest.fixture(scope="session")
def valkey_server(servers: ExitStack, server_dir: Path) -> Service:
    """A Valkey of one node."""
    return _run(servers, valkey.service(server_dir / "valkey", free_port(), fsync="no"), server_dir)


@pytest.fixture(scope="session")
def valkey_cluster(servers: ExitStack, server_dir: Path) -> Service:
    """A Valkey cluster of one node that serves all slots. It takes 2 s to start."""
    return _run(
        servers,
        valkey.service(server_dir / "cluster", free_port(), fsync="no", cluster=True),
        server_dir,
    )


@pytest.fixture(scope="session")
def postgres_server(servers: ExitStack, server_dir: Path) -> Service:
    """A Postgres. Its own database stays empty: tests get copies."""
    service = postgres.service(server_dir / "postgres", free_port(), password="test", durable=False)
    return _run(servers, service, server_dir)


@pytest.fixture(scope="session")
def s3_server(servers: ExitStack, server_dir: Path) -> Service:
    """An S3 store; its keys are in `settings`."""
    return _run(
        servers,
        s3.service(
            server_dir / "s3",
            free_port(),
            access_key=secrets.token_hex(10),
            secret_key=secrets.token_hex(20),
        ),
        server_dir,
    )


@pytest.fixture
def redis_url(valkey_server: Service) -> str:
    """An empty Valkey."""
    _flush(valkey_server.url)
    return valkey_server.url


@pytest.fixture
def begun_url(redis_url: str) -> str:
    """A Valkey on which a deployment of one partition was begun: nobody asks Postgres whether it
    has lost anything."""
    with redis.Redis.from_url(redis_url) as client:
        client.set("horde:partitions", 1)
        client.hset("horde:control", "last_ms", 0)
    return redis_url


@pytest.fixture
def cluster_url(valkey_cluster: Service) -> str:
    """An empty cluster-enabled Valkey: the URL of its only node."""
    _flush(valkey_cluster.url)
    return valkey_cluster.url


def _flush(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.flushall()
        client.function_flush()


@pytest.fixture
def clean_redis(redis_url: str) -> Iterator[redis.Redis]:
    """A blocking client of an empty Valkey; answers are bytes."""
    with Client.from_url(redis_url) as client:
        yield client


def database_named(url: str, name: str) -> str:
    """The URL of another database of the same server."""
    return urlsplit(url)._replace(path=f"/{name}").geturl()


@contextmanager
def copied(postgres_server: Service, template: str) -> Iterator[str]:
    """Make a database like `template`, yield its URL and drop it, whoever is still connected."""
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY wal_log").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        yield database_named(postgres_server.url, name)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def database_url(postgres_server: Service) -> Iterator[str]:
    """An empty database of this test's own."""
    with copied(postgres_server, "template0") as url:
        yield url


@pytest.fixture(scope="session")
def migrated_template(postgres_server: Service) -> str:
    """Name of a database with all tables and no rows, to be copied."""
    from hordechat import commands, settings

    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
    url = database_named(postgres_server.url, TEMPLATE)
    commands.migrate(settings.load({"DATABASE_URL": url}))
    return TEMPLATE


@pytest.fixture(scope="session")
def _migrated_database(postgres_server: Service, migrated_template: str) -> Iterator[str]:
    with copied(postgres_server, migrated_template) as url:
        yield url


@pytest.fixture
def migrated_url(_migrated_database: str, postgres_server: Service) -> str:
    """A database with all tables and no rows, to which nobody else is connected.

    One for all tests of a session, emptied: that takes a seventh of the time of a copy.
    """
    name = urlsplit(_migrated_database).path[1:]
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            (name,),
        )
    with psycopg.connect(_migrated_database, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'public'::regnamespace AND relname <> 'migrations'"
        ).fetchall()
        tables = sql.SQL(", ").join(sql.Identifier(table) for (table,) in rows)
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(tables))
        connection.execute("DELETE FROM pg_statistic")  # or plans would depend on earlier tests
    return _migrated_database
