import re
from pathlib import Path

import pytest

from hordechat import opening, settings
from tests.spec import spec

ROOT = Path(__file__).parents[2]
KEYS = {"S3_ACCESS_KEY": "a", "S3_SECRET_KEY": "s"}


def test_an_empty_environment_gives_the_defaults():
    found = settings.load({})

    assert found.partitions == 1
    assert found.request_ttl_seconds == 1200
    assert found.redis_url == ""
    assert found.test is False


@spec("Messages offload", 1, 2, 4, 5)
def test_messages_are_offloaded_only_when_that_is_enabled():
    found = settings.load(KEYS | {"S3_ENDPOINT_URL": "https://s3.example"})

    assert (found.chat_messages_offload_enabled, found.chat_messages_offload_gzip) == (False, False)
    assert found.chat_messages_offload_bytes == 262_144
    store = opening.store_of(found)
    assert store is not None
    assert {store.bucket(key) for key in ("a_chat_0.jpg", "a_chat_messages.json")} == {
        found.r2_source_image_bucket
    }
    store.close()


def test_servers_have_plain_names_and_all_else_a_prefix():
    found = settings.load(
        {"REDIS_URL": "redis://r", "HORDE_TEXT_JOB_LEASE_SECONDS": "70", "HORDE_TEST": "true"}
    )

    assert found.redis_url == "redis://r"
    assert found.text_job_lease_seconds == 70
    assert found.test is True


def test_an_empty_variable_counts_as_absent():
    assert settings.load({"HORDE_PORT": ""}).port == 8000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HORDE_PARTITIONS", "0"),
        ("HORDE_PARTITIONS", "many"),
        ("HORDE_PORT", "65536"),
        ("HORDE_LOG_LEVEL", "LOUD"),
        ("HORDE_TEST", "perhaps"),
        ("HORDE_REDIS_TIMEOUT_SECONDS", "0"),
        ("HORDE_REDIS_TIMEOUT_SECONDS", "nan"),
        ("HORDE_ADMINS", "alice#1, bob"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_name(name: str, value: str):
    with pytest.raises(settings.SettingsError, match=f"^{name}: "):
        settings.load({name: value})


def test_a_lease_that_is_all_preparation_is_refused():
    with pytest.raises(
        settings.SettingsError, match="PREPARATION_SECONDS: has to be less than HORDE_TEXT"
    ):
        settings.load({"HORDE_TEXT_JOB_LEASE_SECONDS": "30"})
    assert settings.load({"HORDE_TEXT_JOB_LEASE_SECONDS": "31"}).text_job_preparation_seconds == 30


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("HORDE_TEXT_FREE_OUTPUT_FLOOR", "HORDE_TEXT_FREE_OUTPUT_CEILING"),
        (
            "HORDE_TEXT_FREE_OUTPUT_WAIT_FULL_SECONDS",
            "HORDE_TEXT_FREE_OUTPUT_WAIT_FLOOR_SECONDS",
        ),
    ],
)
def test_an_allowance_that_would_grow_with_the_wait_is_refused(low: str, high: str):
    with pytest.raises(settings.SettingsError, match=f"^{low}: has to be at most {high}"):
        settings.load({low: "101", high: "100"})
    settings.load({low: "100", high: "100"})


@pytest.mark.parametrize("name", ["S3_ENDPOINT_URL", "S3_PUBLIC_ENDPOINT_URL"])
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3.example", "has to begin with http:// or https://"),
        ("ftp://s3.example", "has to begin with http:// or https://"),
        (
            "https://s3.example/minio",
            "must not have a path: signed URLs need the store at the root",
        ),
        ("https://s3.example?region=x", "must not have anything behind the host and its port"),
        ("https://s3.example/#", "must not have anything behind the host and its port"),
        ("https://key:secret@s3.example", "must not hold a name or a password"),
        ("https://", "is no URL of a server"),
        ("https://s3.example:port", "is no URL of a server"),
        ("https://s3.example:99999", "is no URL of a server"),
        ("https://s3 example", "is no URL of a server"),
        ("https://[::1", "is no URL of a server"),
    ],
)
def test_a_store_is_named_by_its_server_alone(name: str, url: str, why: str):
    with pytest.raises(settings.SettingsError, match=f"^{name}: {re.escape(why)}") as refused:
        settings.load(KEYS | {name: url})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9000",
        "https://[2001:db8::1]:9000/",
        "https://img.example",
        "http://object_store:9000",
        "https://account.r2.cloudflarestorage.com/",
    ],
)
def test_a_store_may_be_anywhere(url: str):
    given = {"S3_ENDPOINT_URL": url, "S3_PUBLIC_ENDPOINT_URL": url}

    assert opening.store_of(settings.load(KEYS | given)) is not None


@pytest.mark.parametrize("key", ["S3_ACCESS_KEY", "S3_SECRET_KEY"])
def test_a_store_without_its_keys_is_refused(key: str):
    with pytest.raises(settings.SettingsError, match="have to be set where S3_ENDPOINT_URL is"):
        settings.load(KEYS | {"S3_ENDPOINT_URL": "https://s3.example", key: ""})


def test_settings_survive_the_way_through_an_environment():
    given = settings.load(
        {"HORDE_JANITOR_SECONDS": "0.25", "HORDE_TEST": "1", "S3_SECRET_KEY": "k"}
    )

    assert settings.load(settings.to_environ(given)) == given


def test_every_setting_has_a_meaning():
    rows = settings.describe(settings.load({}))

    assert all(row.meaning for row in rows)
    assert len({row.name for row in rows}) == len(rows)


def test_durations_and_sizes_have_a_unit():
    rows = settings.describe(settings.load({}))

    for row in rows:
        if row.name.endswith("_SECONDS"):
            assert row.unit == "seconds"
        if row.name.endswith("_BYTES"):
            assert row.unit == "bytes"


def test_secrets_are_masked():
    given = settings.load(
        {
            "HORDE_SECRET": "hush",
            "S3_SECRET_KEY": "hush",
            "REDIS_URL": "redis://:hush@localhost:1/0",
            "DATABASE_URL": "postgresql://me:hush@/db?host=%2Ftmp&password=hush&port=1",
        }
    )

    shown = {row.name: row.value for row in settings.describe(given)}

    assert not [name for name, value in shown.items() if "hush" in value]
    assert shown["REDIS_URL"] == "redis://:***@localhost:1/0"
    assert shown["DATABASE_URL"] == "postgresql://me:***@/db?host=%2Ftmp&password=***&port=1"
    assert shown["HORDE_SECRET"] == "***"


def test_a_url_without_a_password_is_shown_as_it_is():
    url = "postgresql://me@/db?host=%2Ftmp%2Fa:b"

    assert settings.mask_url(url) == url


def test_the_page_of_settings_is_up_to_date():
    """`make docs` writes it."""
    page = (ROOT / "docs" / "settings.md").read_text()

    assert page == settings.markdown(settings.describe(settings.load({})))
