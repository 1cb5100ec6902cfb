"""The API over real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.site import Site, opened


@pytest.fixture
async def site(redis_url: str, migrated_url: str) -> AsyncIterator[Site]:
    """Accounts of a client and of a worker's owner, no request; read models are stepped by hand."""
    async with opened(redis_url, migrated_url) as made:
        yield made


@pytest.fixture(params=["one partition", "four on a cluster"])
async def any_site(request: pytest.FixtureRequest, migrated_url: str) -> AsyncIterator[Site]:
    """The same on one server, and with four partitions on a cluster."""
    if request.param == "one partition":
        opening = opened(request.getfixturevalue("redis_url"), migrated_url)
    else:
        url = request.getfixturevalue("cluster_url")
        opening = opened(url, migrated_url, partitions=4)
    async with opening as made:
        yield made
