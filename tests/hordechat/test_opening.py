"""What a process opens first."""

from __future__ import annotations

import psycopg
import pytest
import redis

from archive.segments import Raw
from handlers.accounts import open_account
from handlers.errors import Rebuilding, RedisUnavailable
from handlers.log import Log
from hordechat import opening, settings
from hordechat.process import Service
from tests.handlers.shelf import archive_in

FOUR = {"HORDE_PARTITIONS": "4", "HORDE_TEST": "true"}
KEYS = {"S3_ACCESS_KEY": "a", "S3_SECRET_KEY": "s", "S3_ENDPOINT_URL": "http://127.0.0.1:9000"}


@pytest.mark.parametrize(
    ("host", "public", "told"),
    [
        ("127.0.0.1", "", None),
        ("::1", "http://localhost:9000", None),
        ("localhost", "https://img.example", None),
        ("192.0.2.7", "https://img.example", None),
        ("192.0.2.7", "http://192.168.0.2:9000", None),
        ("192.0.2.7", "", "http://127.0.0.1:9000"),
        ("::", "http://[::1]:9000", "http://[::1]:9000"),
        ("chat.example", "http://s3.localhost", "http://s3.localhost"),
    ],
)
def test_a_store_that_workers_elsewhere_cannot_reach_is_told(
    host: str, public: str, told: str | None
) -> None:
    """C-091."""
    given = settings.load(KEYS | {"HORDE_HOST": host, "S3_PUBLIC_ENDPOINT_URL": public})

    assert opening.out_of_reach(given) == told


def test_without_a_store_there_is_nothing_to_reach() -> None:
    assert opening.out_of_reach(settings.load({"HORDE_HOST": "192.0.2.7"})) is None


@pytest.mark.parametrize(
    ("public", "named"),
    [("", "http://127.0.0.1:9000/"), ("https://img.example", "https://img.example/")],
)
def test_signed_urls_name_the_store_as_workers_reach_it(public: str, named: str) -> None:
    """C-091."""
    region = {"S3_REGION": "eu-west-1", "R2_SOURCE_IMAGE_BUCKET": "pictures"}
    store = opening.store_of(settings.load(KEYS | region | {"S3_PUBLIC_ENDPOINT_URL": public}))

    assert store is not None
    signed = store.url("a_chat_0.jpg", 600)
    store.close()
    assert signed.startswith(f"{named}pictures/a_chat_0.jpg?")
    assert "%2Feu-west-1%2Fs3%2F" in signed


async def test_a_new_redis_is_begun_where_nobody_has_heard_of_an_event(
    clean_redis: redis.Redis, redis_url: str, migrated_url: str
) -> None:
    given = settings.load({"REDIS_URL": redis_url, "DATABASE_URL": migrated_url, **FOUR})

    for _ in range(2):
        log = await opening.open_log(given)
        await log.check_begun()
        await open_account(log, "x", "somebody")
        await log.close()

    assert clean_redis.get("horde:partitions") == b"4"


@pytest.mark.parametrize("knows", ["Postgres", "the archive"])
async def test_a_redis_that_lost_what_it_held_is_opened_only_to_be_rebuilt(
    clean_redis: redis.Redis, redis_url: str, migrated_url: str, s3_server: Service, knows: str
) -> None:
    archive = archive_in(s3_server, 4)
    environ = {
        "REDIS_URL": redis_url,
        "DATABASE_URL": migrated_url,
        "S3_ENDPOINT_URL": s3_server.url,
        "HORDE_ARCHIVE_BUCKET": archive.bucket._bucket,
        **s3_server.settings,
        **FOUR,
    }
    given = settings.load(environ)
    log = await opening.open_log(given)
    clean_redis.delete("{2}horde:control")  # of one node, say
    if knows == "Postgres":
        with psycopg.connect(migrated_url) as connection:
            connection.execute(
                "INSERT INTO checkpoints (name, partition, position_ms) VALUES ('status', 2, 5)"
            )
    else:
        archive.add(2, 1, [Raw(b"5-0", [b"type", b"t"])])

    with pytest.raises(opening.Forgotten, match=f"partition 2, of which {knows} holds events"):
        await opening.open_log(given)
    with pytest.raises(RedisUnavailable):
        await log.check_begun()
    with pytest.raises(Rebuilding):
        await _open_account_in(log, 2)
    await log.close()
    rebuilding = await opening.open_log(given, forgotten=True)
    assert not await rebuilding.has_begun(2)
    await rebuilding.close()


async def _open_account_in(log: Log, partition: int) -> None:
    for _ in range(64):
        user_id, _ = await open_account(log, "x", "somebody")
        assert user_id % 4 != partition
