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


def test_requests_for_certain_workers_that_wait_meanwhile_are_found_by_these(
    database_url: str, tmp_path: Path
):
    for path in HERE.glob("*.sql"):
        if path.name < "0010":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    migrate(database_url, tmp_path)
    with psycopg.connect(database_url, autocommit=True) as connection:
        for number, only in enumerate(("{}", "{a,b,a}")):
            connection.execute(
                """
                INSERT INTO queue (request_id, model, partition, rank, waiting, chat, max_length,
                    max_context_length, features, images, only_workers, ignore_workers,
                    trusted_workers, validated_backends, slow_workers, class, user_id,
                    holdoff_worker, holdoff_ms, ttl, created_ms, touched_ms)
                SELECT gen_random_uuid(), 'm', 3, %s, 1, true, 1, 1, '{}', false, %s, '{}', false,
                    false, true, 'c', 1, '', 0, 1, 1, 1
                """,
                (number, only),
            )

        migrate(database_url)

        classes = connection.execute("SELECT class FROM queue ORDER BY rank").fetchall()
        listed = connection.execute(
            "SELECT l.worker, l.partition, l.class FROM queue_listed l JOIN queue q"
            " USING (request_id, model, rank, chat) ORDER BY 1"
        ).fetchall()
    assert classes == [("c",), ("~c",)]
    assert listed == [("a", 3, "~c"), ("b", 3, "~c")]
