"""`hordechat archive check` and readers of an archived log, as operators run them."""

from __future__ import annotations

import json

import pytest
import redis
from click.testing import CliRunner, Result

from archive.archive import Archive
from events.base import START
from events.keys import Keys
from hordechat import settings
from hordechat.cli import main
from hordechat.datadir import free_port
from hordechat.opening import archive_of
from hordechat.process import Service
from tests.handlers.shelf import place_in
from tests.projections.cut import Cut
from tests.projections.histories import append, random_story


@pytest.fixture
def environ(begun_url: str, migrated_url: str, s3_server: Service) -> dict[str, str]:
    place = place_in(s3_server)
    return {
        "REDIS_URL": begun_url,
        "DATABASE_URL": migrated_url,
        "HORDE_SECRET": "x",
        "S3_ENDPOINT_URL": place.endpoint,
        "S3_ACCESS_KEY": place.access.access_key,
        "S3_SECRET_KEY": place.access.secret_key,
        "S3_REGION": place.access.region,
        "HORDE_ARCHIVE_BUCKET": place.bucket,
    }


@pytest.fixture
def log(environ: dict[str, str], clean_redis: redis.Redis) -> Cut:
    """Thirty events and more, of which 20 are archived and 12 were trimmed."""
    append(clean_redis, random_story(1, 30).events, Keys(1))
    archive = archive_of(settings.load(environ))
    assert isinstance(archive, Archive)
    log = Cut(clean_redis, Keys(1), archive)
    log.put_away(10, 10)
    log.trim(log.stream()[12].position)
    return log


def run(environ: dict[str, str], *args: str) -> Result:
    return CliRunner().invoke(main, list(args), env=environ)


def test_a_log_that_is_all_there(environ: dict[str, str], log: Cut) -> None:
    left = len(log.stream(START))

    result = run(environ, "archive", "check")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        f"partition 0: 20 events in 2 segments, {left} in Redis, 8 of them in both, "
        f"{left + 12} ever\n"
    )
    (told,) = json.loads(run(environ, "archive", "check", "--json").stdout)
    assert (told["archived"], told["differences"]) == (20, [])


def test_what_is_missing_is_said_and_exits_1(environ: dict[str, str], log: Cut) -> None:
    first, _ = log.archive.listed(0)
    log.archive.bucket.delete([first.key])

    result = run(environ, "archive", "check")
    assert result.exit_code == 1
    assert "  10 events from number 1 on are missing\n" in result.stdout

    for command in (("rebuild", "status"), ("log",)):
        result = run(environ, *command)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "Error: Events are missing in the archive. (event 1 is not there" in result.stderr


def test_an_archive_that_is_not_there_is_said(environ: dict[str, str], log: Cut) -> None:
    nowhere = environ | {"S3_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    for command in (("archive", "check"), ("rebuild", "status")):
        result = run(nowhere, *command)
        assert result.exit_code == 1
        assert "Error: The archive does not answer: " in result.stderr

    result = run(environ | {"S3_ENDPOINT_URL": ""}, "archive", "check")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: There is no archive: S3_ENDPOINT_URL is not set.\n"


def test_the_log_is_told_whole(environ: dict[str, str], log: Cut) -> None:
    result = run(environ, "log", "--format", "jsonl")

    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 12 + len(log.stream(START))
