"""An archive of its own for each test, on the session's object store."""

from __future__ import annotations

import secrets

import pytest

from archive.archive import Archive
from archive.bucket import Bucket, Place
from archive.s3 import Access
from hordechat.process import Service


@pytest.fixture
def place(s3_server: Service) -> Place:
    keys = s3_server.settings
    access = Access(keys["S3_ACCESS_KEY"], keys["S3_SECRET_KEY"], "us-east-1")
    return Place(s3_server.url, access, f"archive-{secrets.token_hex(6)}")


@pytest.fixture
def archive(place: Place) -> Archive:
    """Of a deployment with one partition; its bucket does not exist yet."""
    return Archive(Bucket(place), 1)
