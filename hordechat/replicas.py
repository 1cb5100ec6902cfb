"""Whether Redis refuses writes while no replica listens (docs/operations.md, failover)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import structlog

from handlers.log import Log, ResponseError
from lua.link import ClusterLink

logger = structlog.get_logger()

_REPLICAS = re.compile(rb"^connected_slaves:(\d+)\r?$", re.MULTILINE)
_AWAITED = b"min_slaves_good_slaves:"
"""A server says it where min-replicas-to-write is set."""


async def warn_unless_awaited(log: Log) -> bool:
    """Say so where Redis has replicas, or should have, and acknowledges what none of them may have:
    a primary that nobody listens to any more, because it was cut off, goes on taking writes that
    are lost with it. True where that was said. Raise RedisUnavailable."""
    try:
        told: Sequence[bytes] = await log.everywhere("INFO", "replication")
    except ResponseError:  # we may not ask
        return False
    replicas = [int(found[1]) if (found := _REPLICAS.search(info)) else 0 for info in told]
    careless = sum(_AWAITED not in info for info in told)
    if not careless or not (any(replicas) or isinstance(log.redis, ClusterLink)):
        return False
    logger.warning(
        "replicas_not_awaited",
        primaries=careless,
        replicas=sum(replicas),
        setting="min-replicas-to-write",
    )
    return True
