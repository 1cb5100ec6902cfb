"""What is said of a Redis whose replicas nobody waits for."""

from __future__ import annotations

import pytest
import redis
from structlog.testing import capture_logs

from events.keys import Keys
from handlers.log import Log
from hordechat.replicas import warn_unless_awaited
from lua.link import connect


@pytest.mark.parametrize(("server", "warns"), [("redis_url", False), ("cluster_url", True)])
async def test_a_cluster_that_acknowledges_what_no_replica_has_is_told(
    server: str, warns: bool, request: pytest.FixtureRequest
) -> None:
    """A single server without replicas has nobody to wait for."""
    log = Log(await connect(request.getfixturevalue(server), timeout=20), Keys(1))

    with capture_logs() as lines:
        assert await warn_unless_awaited(log) is warns

    assert [line["event"] for line in lines] == ["replicas_not_awaited"] * warns
    await log.close()


async def test_nothing_is_said_where_writes_want_a_replica(cluster_url: str) -> None:
    log = Log(await connect(cluster_url, timeout=20), Keys(1))
    with redis.Redis.from_url(cluster_url) as operator:
        operator.config_set("min-replicas-to-write", 1)
        try:
            assert not await warn_unless_awaited(log)
        finally:
            operator.config_set("min-replicas-to-write", 0)
    await log.close()
