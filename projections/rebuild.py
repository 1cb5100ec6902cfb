"""Make a read model anew from the log."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import structlog

from archive.archive import Archive
from events.base import START
from events.keys import Keys
from projections import ahead, checkpoint, session
from projections.log import Log
from projections.models import PROJECTIONS
from projections.node import Nodes
from projections.projection import Projected, Projection
from projections.projector import Projector, channel

logger = structlog.get_logger()


def rebuild(
    projection_name: str,
    *,
    redis_url: str,
    database_url: str,
    partitions: int,
    archive: Archive | None = None,
    only: Sequence[int] | None = None,
) -> None:
    """Drop the rows of each partition (or of `only` some) and fold its log again, from the archive
    on to its head now.

    Live runners find their checkpoint moved and exit, so it needs no stop of anything: whoever gets
    the lock then, this process or a runner that was started anew, does the folding, and the result
    is the same. Raise psycopg.Error, RedisError, ArchiveUnavailable or a stop, as a projector
    does; to call it again is safe.
    """
    projection = PROJECTIONS[projection_name]
    keys = Keys(partitions)
    nodes = Nodes(redis_url)
    with session.connect(database_url, f"rebuild_{projection_name}") as connected:
        for partition in keys.all() if only is None else only:
            with ahead.connect(nodes, keys, partition, archive) as partition_log:
                _rebuild(projection, partition_log, connected)


def _rebuild(projection: Projection, partition_log: Log, connected: session.Session) -> None:
    name, partition = projection.name, partition_log.partition
    partition_log.holds(START)  # a log without its beginning must not cost the rows that came of it
    checkpoint.reset(connected, name, partition, projection.tables)
    projected = Projected(position=str(START))
    partition_log.publish([(channel(name, partition), msgspec.json.encode(projected))])
    head = partition_log.head()
    while checkpoint.read(connected, name, partition).position < min(head, partition_log.head()):
        if not session.try_lock(connected, name, partition):
            time.sleep(0.1)
            continue
        try:
            projector = Projector(projection, partition_log, connected)
            projector.resume()
            while projector.position < head and projector.step(count=ahead.PAGE):
                pass
            projector.rest()  # which also carries the checkpoint past events without a row
        finally:
            session.unlock(connected, name, partition)
    logger.info("rebuilt", projection=name, partition=partition, position=str(head))
