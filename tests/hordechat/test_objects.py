"""`hordechat objects check` on real servers."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from events.keys import Keys
from handlers.limits import Limits
from handlers.log import Log
from handlers.objects import image_key
from handlers.store import Object
from hordechat import settings
from hordechat.cli import main
from hordechat.datadir import free_port
from hordechat.opening import store_of
from hordechat.process import Service
from lua.link import Link
from tests.handlers.pool import Pool, request_of
from tests.spec import spec

SOMEBODY = "3f0c6a5e-7f52-4a49-8a55-6d0c9f1e2a33"
ORPHAN = image_key(SOMEBODY, 0)


@pytest.fixture
def environ(begun_url: str, s3_server: Service) -> dict[str, str]:
    return {
        "REDIS_URL": begun_url,
        "DATABASE_URL": "postgresql://unused",
        "HORDE_SECRET": "x",
        "S3_ENDPOINT_URL": s3_server.url,
        "R2_SOURCE_IMAGE_BUCKET": f"images-{secrets.token_hex(6)}",
        **s3_server.settings,
    }


@pytest.fixture
def acting(environ: dict[str, str]) -> Callable[[Callable[[Pool], Awaitable[Any]]], Any]:
    """Does something with a pool."""

    def act(what: Callable[[Pool], Awaitable[Any]]) -> Any:
        async def work() -> Any:
            pool = await Pool.opened(
                Log(Link(environ["REDIS_URL"], timeout=20), Keys(1), test=True), Limits()
            )
            pool.store = store_of(settings.load(environ))
            try:
                return await what(pool)
            finally:
                assert pool.store is not None
                pool.store.close()
                await pool.log.close()

        return asyncio.run(work())

    return act


@pytest.fixture
def request_id(acting) -> str:
    """A request of two images."""

    async def work(pool: Pool) -> str:
        return (await pool.submitted(request_of(images=2))).request_id

    return acting(work)


def _check(environ: dict[str, str], *args: str) -> Result:
    return CliRunner().invoke(main, ["objects", "check", *args], env=environ)


@spec("Images", 29)
def test_a_store_that_holds_what_it_should_is_exit_0(environ, request_id: str) -> None:
    result = _check(environ)

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "2 objects of 12 bytes: 2 of requests",
        "no orphans, none missing",
    ]


def test_each_orphan_and_each_missing_object_is_a_line_and_exit_1(
    environ, request_id: str, acting
) -> None:
    async def break_it(pool: Pool) -> None:
        assert pool.store is not None
        await pool.store.put([Object(ORPHAN, b"12345"), Object("theirs", b"not ours")])
        await pool.store.delete([image_key(request_id, 1)])

    acting(break_it)
    bucket = environ["R2_SOURCE_IMAGE_BUCKET"]

    result = _check(environ)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"orphan {bucket}/{ORPHAN} (5 bytes)",
        f"missing {bucket}/{image_key(request_id, 1)}",
        "2 objects of 11 bytes: 1 of requests",
        "1 object with other names, left alone",
        "1 orphan, 1 missing",
    ]

    told = _check(environ, "--json")
    assert told.exit_code == 1
    assert [json.loads(line) for line in told.stdout.splitlines()] == [
        {"found": "orphan", "bucket": bucket, "key": ORPHAN, "size": 5},
        {"found": "missing", "bucket": bucket, "key": image_key(request_id, 1)},
        {
            "objects": 2,
            "bytes": 11,
            "by": {"request": 1, "admission": 0, "tombstone": 0, "deletion": 0},
            "foreign": 1,
            "orphans": 1,
            "missing": 1,
        },
    ]


def test_orphans_are_deleted_by_the_janitor_where_that_is_asked_for(
    environ, request_id: str, acting
) -> None:
    async def plant(pool: Pool) -> None:
        assert pool.store is not None
        await pool.store.put([Object(ORPHAN, b"12345"), Object("theirs", b"not ours")])

    async def sweep(pool: Pool) -> list[str]:
        assert pool.store is not None
        await pool.sweep()
        return await pool.store.keys()

    acting(plant)
    result = _check(environ, "--delete")

    assert result.exit_code == 1
    assert "1 orphan will be deleted by the janitor's next pass" in result.stdout
    assert acting(sweep) == [*sorted(image_key(request_id, n) for n in range(2)), "theirs"]
    assert _check(environ).exit_code == 0


def test_a_store_that_does_not_answer_is_told_in_a_sentence(environ, request_id: str) -> None:
    result = _check(environ | {"S3_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"})

    assert result.exit_code == 1
    assert "Error: The object store refuses, or does not answer: " in result.stderr
    assert "Traceback" not in result.stderr
    assert environ["S3_SECRET_KEY"] not in result.output


def test_a_store_that_does_not_take_the_keys_is_told_by_its_word(environ) -> None:
    result = _check(environ | {"S3_SECRET_KEY": "another"})

    assert result.exit_code == 1
    assert "does not answer: S3Error: SignatureDoesNotMatch: " in result.stderr
    assert "Traceback" not in result.stderr


def test_where_there_is_no_store_a_sentence_says_so(environ) -> None:
    result = _check(environ | {"S3_ENDPOINT_URL": ""})

    assert result.exit_code == 1
    assert result.stderr.strip().endswith("Error: No object store: S3_ENDPOINT_URL is not set.")
