"""The archiver as a process: its books in Postgres, what it says while something is away, and how
operators are told."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from click.testing import CliRunner

from archive.archive import ArchiveUnavailable, Damaged
from events.base import START, Position
from events.keys import Keys
from handlers import stream
from handlers.archiver import ArchiveAhead, Interrupted
from handlers.errors import RedisUnavailable
from handlers.limits import Limits
from handlers.log import Log
from handlers.trimming import Marks
from hordechat import archiving
from hordechat.archiving import Checkpoints, LogMemory, archive
from hordechat.cli import main
from hordechat.process import Service
from lua.link import Link
from projections.database import Database, DatabaseUnavailable
from tests.handlers.pool import Pool
from tests.logged import logged


@pytest.fixture
async def checkpoints(migrated_url: str) -> AsyncIterator[Checkpoints]:
    database = Database(migrated_url, timeout=10)
    yield Checkpoints(database)
    await database.close()


async def test_the_archivers_place_is_moved_only_from_where_it_is(checkpoints: Checkpoints) -> None:
    assert await checkpoints.place(3) == START

    assert await checkpoints.move(3, START, Position(5, 1))
    assert not await checkpoints.move(3, START, Position(9, 0))
    assert await checkpoints.move(3, Position(5, 1), Position(7, 2))

    assert await checkpoints.place(3) == Position(7, 2)
    assert await checkpoints.place(2) == START


async def test_readers_are_the_models_that_have_a_checkpoint(
    checkpoints: Checkpoints, migrated_url: str
) -> None:
    await checkpoints.place(1)
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO checkpoints VALUES ('status', 1, 5, 6, 3, 4), ('status', 0, 1, 1, 1, 1),"
            " ('accounts', 1, 7, 8, 7, 8), ('accounts beside', 1, 1, 1, 1, 1),"
            " ('old', 1, 1, 1, 1, 1)"
        )

    assert await checkpoints.readers(1) == {
        "status": Marks(Position(5, 6), Position(3, 4)),
        "accounts": Marks(Position(7, 8), Position(7, 8)),
    }
    assert await checkpoints.readers(2) == {}


class Scripted:
    """An archiver whose passes end as they are told to."""

    def __init__(self, *ends: BaseException | bool) -> None:
        self._ends = list(ends)
        self.over = asyncio.Event()
        self.archived = 0
        self.pressed: list[bool] = []

    async def step(self, *, pressed: bool) -> bool:
        self.pressed.append(pressed)
        if not self._ends:
            self.over.set()
            await asyncio.Event().wait()
        end = self._ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end


class NoPressure:
    async def passed(self) -> bool:
        return False


class Taken:
    """Snapshots that end as they are told to."""

    def __init__(self, *ends: Exception) -> None:
        self._ends = list(ends)
        self.asked = 0

    async def in_time(self, _archived: int) -> None:
        self.asked += 1
        if self._ends:
            raise self._ends.pop(0)


async def _lines(*ends: BaseException | bool, taken: Taken | None = None) -> list[Any]:
    scripted = Scripted(*ends)
    with logged(archiving.logger) as lines:
        running = asyncio.ensure_future(
            archive(
                scripted,
                taken or Taken(),
                NoPressure(),
                asyncio.Semaphore(1),
                pause=0.0,
                partition=0,
                first_pause=0.001,
            )
        )
        await asyncio.wait_for(scripted.over.wait(), 60)
        running.cancel()
    return lines


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ArchiveUnavailable("it hangs"), "archive_away"),
        (Damaged("log/1"), "archive_damages"),
        (DatabaseUnavailable("gone"), "waits_for_postgres"),
        (RedisUnavailable("gone"), "waits_for_redis"),
    ],
    ids=str,
)
async def test_what_is_away_is_said_once_and_once_that_it_is_back(
    error: Exception, word: str
) -> None:
    lines = await _lines(error, error, error, False, True)

    assert [(line["event"], line["log_level"]) for line in lines] == [
        (word, "warning"),
        ("archives_again", "info"),
    ]


async def test_what_somebody_has_to_look_at_is_an_error_that_says_what_to_do() -> None:
    error = ArchiveAhead("the archive ends at 5-0")

    lines = await _lines(error, error, RedisUnavailable("gone"), error, False)

    words = ["archive_ahead", "waits_for_redis", "archive_ahead", "archives_again"]
    assert [line["event"] for line in lines] == words
    assert lines[0]["log_level"] == "error"
    assert "hordechat rebuild state" in lines[0]["meaning"]
    assert lines[0]["reason"] == "the archive ends at 5-0"


async def test_who_was_overtaken_goes_on_without_a_word() -> None:
    assert await _lines(Interrupted(), False) == []


async def test_a_store_that_was_away_when_snapshots_were_listed_is_asked_again() -> None:
    taken = Taken(ArchiveUnavailable("it hangs"))

    lines = await _lines(False, False, False, False, taken=taken)

    assert [line["event"] for line in lines] == ["archive_away", "archives_again"]
    assert taken.asked == 3


async def test_memory_is_sampled_for_all_partitions_at_once(redis_url: str) -> None:
    log = Log(Link(redis_url, timeout=10), Keys(4))
    memory = LogMemory(log, 50_000, every=0)
    assert not await memory.passed()
    for partition in log.keys.all():
        await log.read("XADD", log.keys.events(partition), "*", "type", "x" * 20_000)

    with logged(archiving.logger) as lines:
        assert await memory.passed()
        assert await memory.passed()

    assert [(line["event"], line["passed"]) for line in lines] == [("log_memory", True)]
    await log.read("XADD", log.keys.events(0), "*", "type", "x" * 60_000)
    await log.read("DEL", log.keys.events(3))
    await log.read("XADD", log.keys.events(3), "*", "type", "x")
    near = LogMemory(log, await stream.memory(log) - 1, every=0)
    assert await near.passed()
    await log.read("DEL", log.keys.events(3))
    assert await near.passed()  # a twentieth is not reached
    await log.read("DEL", log.keys.events(2))
    assert not await near.passed()
    rarely = LogMemory(log, 1, every=3600)
    assert await rarely.passed()
    await log.redis.call("FLUSHDB")
    assert await rarely.passed()
    await log.close()


# the program


def _environ(redis_url: str, database_url: str, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "REDIS_URL": redis_url,
        "DATABASE_URL": database_url,
        "HORDE_SECRET": "x",
        **more,
    }


def _until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.02)


def test_without_a_store_it_says_so_and_stays(
    redis_url: str, migrated_url: str, tmp_path: Path
) -> None:
    said = tmp_path / "stderr"
    command = [sys.executable, "-m", "hordechat", "archiver"]
    environ = _environ(redis_url, migrated_url)
    with (
        said.open("wb") as errors,
        subprocess.Popen(command, env=environ, stderr=errors, cwd=tmp_path) as program,
    ):
        _until(lambda: b"archives_nothing" in said.read_bytes())
        program.send_signal(signal.SIGTERM)
        assert program.wait(20) == 0


def test_it_ends_at_once_whatever_the_store_does(
    redis_url: str, migrated_url: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.settimeout(20)
        url = f"http://127.0.0.1:{store.getsockname()[1]}"
        keys = {"S3_ACCESS_KEY": "a", "S3_SECRET_KEY": secrets.token_hex()}
        environ = _environ(redis_url, migrated_url, S3_ENDPOINT_URL=url, **keys)
        command = [sys.executable, "-m", "hordechat", "archiver"]
        with subprocess.Popen(
            command, env=environ, stderr=subprocess.DEVNULL, cwd=tmp_path
        ) as program:
            waiting, _ = store.accept()
            with waiting:
                waiting.recv(1)
                program.send_signal(signal.SIGTERM)
                told = time.monotonic()
                assert program.wait(20) == 0
                assert time.monotonic() - told < 8  # a call to the store may take 10 s


@pytest.fixture
def environ(redis_url: str, migrated_url: str, s3_server: Service) -> dict[str, str]:
    return _environ(
        redis_url,
        migrated_url,
        S3_ENDPOINT_URL=s3_server.url,
        HORDE_ARCHIVE_BUCKET=f"archive-{secrets.token_hex(6)}",
        **s3_server.settings,
    )


def _status(environ: dict[str, str], *args: str) -> str:
    result = CliRunner().invoke(main, ["archive", "status", *args], env=environ)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_operators_are_told_how_far_everyone_is(
    environ: dict[str, str], redis_url: str, migrated_url: str
) -> None:
    async def work() -> int:
        pool = await Pool.opened(Log(Link(redis_url, timeout=20), Keys(1), test=True), Limits())
        await pool.log.begin()
        await pool.submit()
        await pool.settle()
        count = len(await pool.events())
        await pool.log.close()
        return count

    count = asyncio.run(work())
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        connection.execute("INSERT INTO checkpoints VALUES ('status', 0, 1000, 0, 1000, 0)")

    (told,) = msgspec.json.decode(_status(environ, "--json"))

    assert (told["events"], told["events_ever"], told["segments"]) == (count, count, 0)
    assert told["bytes"] > 1000
    assert told["archived"]["position"] == "0-0"
    assert told["held_by"] == "archiver"
    readers = {each["name"]: each for each in told["readers"]}
    assert readers["projector status"]["position"] == "1000-0"
    assert readers["projector status"]["seconds_behind"] > 1_000_000
    assert readers["settler to partition 0"]["seconds_behind"] < 60
    text = _status(environ)
    assert f"{count} of {count} events in Redis" in text
    assert "archived: 0 events in 0 segments" in text
    away = environ | {"S3_ENDPOINT_URL": "http://127.0.0.1:1"}
    assert "the archive cannot be asked: " in _status(away)
