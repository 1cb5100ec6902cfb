"""How Redis stands, on one node and on a cluster."""

from __future__ import annotations

import pytest

from api.guard import memory
from events.keys import Keys
from handlers.log import Log
from lua.link import connect


@pytest.mark.parametrize("server", ["redis_url", "cluster_url"])
async def test_memory_and_policy_are_read(server: str, request: pytest.FixtureRequest) -> None:
    log = Log(await connect(request.getfixturevalue(server)), Keys(4))

    found = await memory(log)

    assert found.used > 100_000
    assert found.policies == {"noeviction"}
    await log.close()
