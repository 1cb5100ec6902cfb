"""Snapshots in time and at once, and rebuilds of the state, as operators run them."""

from __future__ import annotations

import asyncio
import json

import pytest
import redis
from click.testing import CliRunner, Result

from archive import snapshots
from archive.archive import Archive
from events.keys import Keys
from handlers.limits import Limits
from handlers.log import Log
from hordechat.cli import main
from hordechat.process import Service
from hordechat.snapshotting import Snapshots
from lua.link import Link
from projections import session
from tests.handlers.pool import Pool
from tests.handlers.shelf import archive_in, put_away


@pytest.fixture
def archive(s3_server: Service) -> Archive:
    return archive_in(s3_server, 1)


@pytest.fixture
def environ(
    redis_url: str, migrated_url: str, s3_server: Service, archive: Archive
) -> dict[str, str]:
    return {
        "REDIS_URL": redis_url,
        "DATABASE_URL": migrated_url,
        "S3_ENDPOINT_URL": s3_server.url,
        "HORDE_ARCHIVE_BUCKET": archive.bucket._bucket,
        "HORDE_SECRET": "x",
        **s3_server.settings,
    }


async def _archived(redis_url: str, archive: Archive) -> int:
    """Some accounts and a request, all of it archived; how many events that are."""
    pool = await Pool.opened(Log(Link(redis_url, timeout=20), Keys(1)), Limits())
    await pool.submit()
    await pool.settle()
    await put_away(archive, pool.log, 0)
    await pool.log.close()
    end = archive.end(0)
    assert end is not None
    return end.beyond - 1


def _run(environ: dict[str, str], *args: str) -> Result:
    return CliRunner().invoke(main, list(args), env=environ)


async def test_a_snapshot_is_taken_each_so_many_events(redis_url: str, archive: Archive) -> None:
    events = await _archived(redis_url, archive)
    log = Log(Link(redis_url, timeout=20), Keys(1))
    never = Snapshots(log, archive, 0, 0, asyncio.Lock())
    rarely = Snapshots(log, archive, 0, events + 1, asyncio.Lock())
    often = Snapshots(log, archive, 0, events, asyncio.Lock())

    await never.in_time(events)
    await rarely.in_time(events)
    assert snapshots.listed(archive, 0) == []
    await often.in_time(events)
    (taken,) = snapshots.listed(archive, 0)
    await often.in_time(events)
    await log.close()

    assert taken.events == events
    assert snapshots.listed(archive, 0) == [taken]


def test_a_wiped_redis_is_rebuilt_and_told_of(
    environ: dict[str, str], clean_redis: redis.Redis, redis_url: str, archive: Archive
) -> None:
    assert _run(environ, "migrate").exit_code == 0
    events = asyncio.run(_archived(redis_url, archive))
    end = archive.end(0)
    assert end is not None
    told = _run(environ, "archive", "snapshot")
    assert told.stdout == f"partition 0: snapshot of {events} events, at {end.last}\n"
    clean_redis.flushall()

    refused = _run(environ, "user", "list")
    assert refused.exit_code == 1
    assert "partition 0, of which the archive holds events" in refused.output
    assert _run(environ, "migrate").exit_code == 0  # `up` may start: its processes wait
    rebuilt = _run(environ, "rebuild", "state")

    assert rebuilt.exit_code == 0, rebuilt.output
    first, lost, ended, gone = rebuilt.stdout.splitlines()
    folded = f"partition 0: 0 events folded behind the snapshot of {events} at {end.last}, up to "
    assert first.startswith(folded)
    assert lost.startswith(f"partition 0: lost what came behind {end.last} (")
    assert lost.endswith("): how much that was is not known")
    assert ended == "1 waiting request without content ended as expired"
    assert gone.startswith("not in the log, and gone with what Redis held: content of requests, ")
    for whole in ((), ("--whole",)):
        assert _run(environ, "verify", *whole).stdout == "no difference\n"
    again = json.loads(_run(environ, "rebuild", "state", "--json").stdout)
    assert (again["requests_expired"], again["gone"]) == (0, [])
    assert again["partitions"][0]["lost"] is None
    assert again["partitions"][0]["snapshot_events"] == events


def test_an_archive_of_another_deployment_is_no_base_for_a_rebuild(
    environ: dict[str, str], redis_url: str, archive: Archive
) -> None:
    asyncio.run(_archived(redis_url, archive))

    result = _run(environ | {"HORDE_PARTITIONS": "4"}, "rebuild", "state")

    assert result.exit_code == 1
    assert "partitions, HORDE_PARTITIONS says 4" in result.output


def test_two_rebuilds_of_the_state_are_not_at_work_at_once(
    environ: dict[str, str], redis_url: str, archive: Archive
) -> None:
    assert _run(environ, "migrate").exit_code == 0
    asyncio.run(_archived(redis_url, archive))
    with session.connect(environ["DATABASE_URL"], "another") as another:
        assert session.try_lock(another, "rebuild state", 0)

        refused = _run(environ, "rebuild", "state")

    assert refused.exit_code == 1
    assert "Another `hordechat rebuild state` is at work." in refused.output
    assert _run(environ, "rebuild", "state").exit_code == 0
