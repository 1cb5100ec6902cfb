"""What a process opens first."""

from __future__ import annotations

import pytest

from hordechat import opening, settings

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
