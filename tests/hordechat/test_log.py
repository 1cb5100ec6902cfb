"""`hordechat log` on real servers."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from hordechat.cli import main

ID = "b23f5d2e-2fd6-4a90-ab0c-9e9e18d362ee"
NOON = 1_777_636_800_000
"""2026-05-01T12:00Z."""


@pytest.fixture
def environ(begun_url: str) -> dict[str, str]:
    return {"REDIS_URL": begun_url, "DATABASE_URL": "postgresql://unused", "HORDE_SECRET": "x"}


@pytest.fixture
def log(environ: dict[str, str], clean_redis: redis.Redis) -> dict[str, str]:
    """Five events, a minute apart from each other; one is of a later build."""
    events = (
        {"type": "promoted", "v": "1", "user_id": "1", "amount": "5"},
        {"type": "unclaimed", "v": "1", "user_id": "2", "operation_key": "k", "request_id": ID,
         "source": "0", "source_position": "1-0"},
        {"type": "settled", "v": "1", "source": "0", "source_position": "1-0"},
        {"type": "invented", "v": "3", "what": ID},
        {"type": "promoted", "v": "1", "user_id": "1", "amount": "6"},
    )  # fmt: skip
    for minute, event in enumerate(events):
        clean_redis.xadd("horde:events", event, f"{NOON + 60_000 * minute}-0")
    return environ


def run(environ: dict[str, str], *args: str) -> Result:
    return CliRunner().invoke(main, ["log", *args], env=environ)


def words(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [line.split()[3] for line in result.stdout.splitlines()]


def test_a_log_is_a_line_an_event(log: dict[str, str]) -> None:
    result = run(log)

    assert words(result) == ["promoted", "unclaimed", "settled", "invented", "promoted"]
    first = result.stdout.splitlines()[0]
    assert first.split() == [
        *("2026-05-01T12:00:00.000+00:00", "0", f"{NOON}-0", "promoted", "user_id=1", "amount=5")
    ]


def test_a_span_holds_its_beginning_and_not_its_end(log: dict[str, str]) -> None:
    since, until = "2026-05-01T12:01", "2026-05-01T14:03+02:00"

    assert words(run(log, "--since", since, "--until", until)) == ["unclaimed", "settled"]
    assert words(run(log, "--since", f"{NOON + 180_000}-0")) == ["invented", "promoted"]
    assert words(run(log, "--since", "1s")) == []


def test_events_are_of_the_types_and_the_request_that_were_asked_for(log: dict[str, str]) -> None:
    assert words(run(log, "--type", "promoted", "--type", "settled")) == [
        *("promoted", "settled", "promoted")
    ]
    assert words(run(log, "--request", ID)) == ["unclaimed", "invented"]
    assert words(run(log, "--request", ID, "--type", "unclaimed")) == ["unclaimed"]
    assert words(run(log, "--partition", "0", "--type", "assigned")) == []


def test_json_lines_are_an_object_each(log: dict[str, str]) -> None:
    result = run(log, "--format", "jsonl", "--since", "2026-05-01T12:03")

    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {
            "time": "2026-05-01T12:03:00.000+00:00",
            "partition": 0,
            "position": f"{NOON + 180_000}-0",
            "type": "invented",
            "v": 3,
            "raw": {"what": ID},
        },
        {
            "time": "2026-05-01T12:04:00.000+00:00",
            "partition": 0,
            "position": f"{NOON + 240_000}-0",
            "type": "promoted",
            "v": 1,
            "user_id": 1,
            "amount": 6,
        },
    ]


def test_csv_has_a_heading_also_where_nothing_is_found(log: dict[str, str]) -> None:
    rows = list(csv.DictReader(io.StringIO(run(log, "--format", "csv").stdout)))

    assert [row["type"] for row in rows] == words(run(log))
    assert rows[1]["request_id"] == ID
    empty = run(log, "--format", "csv", "--type", "assigned")
    assert (empty.exit_code, len(empty.stdout_bytes.splitlines())) == (0, 1)
    assert empty.stdout_bytes.startswith(b"time,partition,position,type,v,request_id,")


def test_an_empty_log_is_no_lines(environ: dict[str, str]) -> None:
    result = run(environ)

    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--since", "2026-05-02", "--until", "2026-05-01"), "for --since: later than --until"),
        (("--since", "1m", "--until", "2m"), "for --since: later than --until"),
        (("--until", "tomorrow"), "for '--until': not a time (2026-05-01T12:30, UTC unless"),
        (("--partition", "1"), "for --partition: the last one is 0"),
        (("--type", "assined"), "'assined' is none of abandoned, account-changed,"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    log: dict[str, str], args: tuple[str, ...], sentence: str
) -> None:
    result = run(log, *args)

    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stdout == ""


def test_a_reader_that_has_enough_ends_it_quietly(
    environ: dict[str, str], clean_redis: redis.Redis, tmp_path: Path
) -> None:
    pipeline = clean_redis.pipeline()
    for number in range(3000):
        fields = {"type": "promoted", "v": "1", "user_id": str(number), "amount": "5"}
        pipeline.xadd("horde:events", fields, f"{NOON + number}-0")
    pipeline.execute()
    command = [sys.executable, "-P", "-m", "hordechat", "log", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(
        command, env=os.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None

    first = process.stdout.readline()
    process.stdout.close()

    assert b" promoted " in first
    assert process.wait(20) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_disk_that_is_full_is_said_in_a_sentence(log: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "hordechat", "log", "--data-dir", str(tmp_path)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, env=os.environ | log, stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert done.returncode == 1
    assert done.stderr == b"Error: The events cannot be written: No space left on device.\n"
