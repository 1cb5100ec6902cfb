"""What an operator is told of the files of filters and models, before they are in force."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hordechat.cli import main

RULES = [
    {"regex": r"\bbad\b", "replacement": "good", "description": "a\nword"},
    {"regex": "remove me", "replacement": ""},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "filters.json"
    path.write_text(json.dumps(RULES))
    return path


def check(*args: str, **environ: str) -> Result:
    with_data = ["filters", "check", *args, "--data-dir", "none"]
    return CliRunner().invoke(main, with_data, env={"HORDE_REPLACEMENT_FILTERS": ""} | environ)


def test_every_filter_is_a_line(file: Path) -> None:
    result = check(str(file))

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        r"0: '\\bbad\\b' -> 'good' a word",
        "1: 'remove me' -> ''",
    ]


def test_the_file_in_force_is_checked_by_default(file: Path) -> None:
    result = check(HORDE_REPLACEMENT_FILTERS=str(file))

    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)


def test_a_text_is_tried(file: Path) -> None:
    assert "'Bad, remove me' becomes 'good, '" in check(str(file), "--try", "Bad, remove me").stdout
    assert "'fine' is unchanged" in check(str(file), "--try", "fine").stdout


def test_a_text_that_takes_too_long_is_told_as_its_sender_would_be(file: Path) -> None:
    file.write_text(json.dumps([{"regex": "(a|aa)+$", "replacement": ""}]))

    result = check(str(file), "--try", "a" * 5000 + "!")

    assert result.exit_code == 1
    assert "cannot be moderated in time" in result.stderr


def test_the_first_bad_entry_is_named(file: Path) -> None:
    file.write_text(json.dumps([*RULES, {"regex": "(", "replacement": ""}, {}]))

    result = check(str(file))

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {file}: filter 2: ")


def test_without_a_file_it_says_what_to_do(tmp_path: Path) -> None:
    result = check()
    assert (result.exit_code, "set HORDE_REPLACEMENT_FILTERS" in result.stderr) == (2, True)

    result = check(str(tmp_path / "missing"))
    assert (result.exit_code, "No such file" in result.stderr) == (1, True)


@pytest.mark.parametrize("name", ["HORDE_REPLACEMENT_FILTERS", "HORDE_TEXT_MODEL_REFERENCE"])
def test_the_web_process_does_not_start_with_a_bad_file(file: Path, name: str) -> None:
    file.write_text("nonsense")
    servers = {"REDIS_URL": "redis://127.0.0.1:1", "DATABASE_URL": "postgresql://x@127.0.0.1:1/x"}

    result = CliRunner().invoke(
        main, ["web", "--data-dir", "none"], env=servers | {name: str(file)}
    )

    assert result.exit_code == 1
    assert f"Error: {file}: expected a JSON " in result.stderr


@pytest.mark.parametrize("name", ["HORDE_REPLACEMENT_FILTERS", "HORDE_TEXT_MODEL_REFERENCE"])
def test_up_starts_nothing_with_a_bad_file(file: Path, tmp_path: Path, name: str) -> None:
    file.write_text("nonsense")
    data = tmp_path / "data"

    result = CliRunner().invoke(main, ["up", "--data-dir", str(data)], env={name: str(file)})

    assert result.exit_code == 1
    assert f"Error: {file}: expected a JSON " in result.stderr
    assert not data.exists()
