"""The settler's loop over one partition: read, carry over, say how far it came.

What it says goes where projectors say it, so that web processes follow it as they follow them.
"""

import asyncio
from contextlib import aclosing

import msgspec

from events import codec
from events.base import Position
from handlers.limits import Limits
from handlers.log import Log
from handlers.replay import read_log
from handlers.settle import Settler
from handlers.stream import stretch
from lua.link import Tail
from projections.follow import SETTLER
from projections.projection import Projected
from projections.projector import channel

COUNT = 500
BLOCK_MS = 1000
"""The longest silence, too: a web process that has just begun to listen hears within this."""
PAUSE = 0.1  # seconds between runs while busy: runs share scripts, and who waits does so for 0.3

_encode = msgspec.json.Encoder().encode


async def settle(log: Log, limits: Limits, tail: Tail, partition: int) -> None:
    """Settle a partition's log as it grows, for ever.

    What was trimmed is read in the archive. Raise RedisUnavailable, Rebuilding, OutOfMemory,
    Unavailable, ArchiveUnavailable; begin anew then. Raise HistoryLost or Damaged where events are
    missing.
    """
    settler = Settler(log, limits, partition)
    reached = await settler.start()
    await _announce(log, partition, reached)
    stream = log.keys.events(partition)
    while True:
        raw = await tail.read(stream, str(reached), count=COUNT, block_ms=BLOCK_MS)
        if raw and not await _held_all(log, partition, reached):
            async with aclosing(read_log(log, partition, reached)) as pages:
                async for page in pages:
                    await settler.settle([entry.recorded for entry in page])
                    reached = page[-1].recorded.position
                    await _announce(log, partition, reached)
            continue
        run = [codec.decode(partition, id_, fields) for id_, fields in raw]
        if run:
            await settler.settle(run)
            reached = run[-1].position
        await _announce(log, partition, reached)
        if run:
            await asyncio.sleep(PAUSE)


async def _held_all(log: Log, partition: int, reached: Position) -> bool:
    """Whether nothing that comes behind `reached` was trimmed. Asked behind a read, which then
    missed nothing."""
    held = await stretch(log, partition)
    return held.whole or (held.events > 0 and held.first <= reached)


async def _announce(log: Log, partition: int, reached: Position) -> None:
    message = _encode(Projected(position=str(reached)))
    # On the node of the log: another may be away, and this one is not.
    at = log.keys.events(partition)
    await log.read("PUBLISH", channel(SETTLER, partition), message, at=at)
