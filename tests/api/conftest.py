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
