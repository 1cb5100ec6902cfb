"""A log on a real server, one partition or four on a cluster, with a clock that tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from events.keys import Keys
from handlers.limits import Limits
from handlers.log import Log
from handlers.store import Place, Store
from hordechat.process import Service
from lua.link import ClusterLink, Link, Waits
from tests.handlers.pool import Pool
from tests.handlers.stores import place_in

PATIENCE = 20.0
"""Seconds that a call may take: how soon a server that hangs is given up is no matter of these
tests, and machines are busy."""


@pytest.fixture(params=["one partition", "four on a cluster"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    """An empty log."""
    if request.param == "one partition":
        opened = Log(
            Link(request.getfixturevalue("redis_url"), timeout=PATIENCE), Keys(1), test=True
        )
    else:
        opened = Log(
            ClusterLink(
                request.getfixturevalue("cluster_url"),
                timeout=PATIENCE,
                waits=Waits(ask=PATIENCE, grace=PATIENCE, laggards=PATIENCE),
            ),
            Keys(4),
            test=True,
        )
    yield opened
    await opened.close()


@pytest.fixture
async def pool(log: Log) -> Pool:
    """Accounts, workers and requests over an empty log."""
    return await Pool.opened(log, Limits())


@pytest.fixture
async def scratch(log: Log, valkey_server: Service) -> AsyncIterator[Log]:
    """Another database of the plain server: a scratch copy of any number of partitions."""
    link = Link(valkey_server.url.rstrip("/") + "/1", connections=1, timeout=30)
    await link.call("FLUSHDB")
    opened = Log(link, log.keys, test=True)
    yield opened
    await opened.close()


@pytest.fixture
def place(s3_server: Service) -> Place:
    """Two buckets of this test's own, for images and for messages; nothing is in them."""
    return place_in(s3_server)


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    """The store that has them."""
    opened = Store(place)
    yield opened
    opened.close()
