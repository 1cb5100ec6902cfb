"""Migrations run once, in order, whoever starts them."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

from projections.migrate import HERE, migrate


def test_every_file_is_applied_once_in_order(database_url: str):
    assert migrate(database_url) == sorted(path.name for path in HERE.glob("*.sql"))
    assert migrate(database_url) == []


def test_several_at_once_apply_each_file_once(database_url: str):
    applied: list[list[str]] = []
    gate = threading.Barrier(4)

    def run() -> None:
        gate.wait()
        applied.append(migrate(database_url))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(map(len, applied)) == [0, 0, 0, len(list(HERE.glob("*.sql")))]


def test_a_file_that_fails_leaves_nothing_of_itself_and_is_tried_again(
    database_url: str, tmp_path: Path
):
    (tmp_path / "0001_good.sql").write_text("CREATE TABLE good (a int);")
    bad = tmp_path / "0002_bad.sql"
    bad.write_text("CREATE TABLE half (a int); CREATE TABLE half (a int);")

    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate(database_url, tmp_path)
    bad.write_text("CREATE TABLE half (a int);")

    assert migrate(database_url, tmp_path) == ["0002_bad.sql"]
