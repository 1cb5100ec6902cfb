"""From which address a worker came last, for moderators (text_path_reference.md 8.1).

An address is not history: none enters the log or Postgres. It stands in a key with a TTL.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from handlers.log import Log

KEPT_SECONDS = 86_400
"""How long it is known after the worker was last seen, about."""
_WRITTEN_SECONDS = 3600.0
"""How often one that stays the same is written again."""
_REMEMBERED = 20_000


class WorkerAddresses:
    """Writes addresses down, and finds them. Remembers what it wrote lately."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._written: OrderedDict[str, tuple[str, float]] = OrderedDict()

    async def note(self, worker_id: str, address: str) -> None:
        """The worker calls from there. Raise RedisUnavailable."""
        now = asyncio.get_running_loop().time()
        before = self._written.get(worker_id)
        if before is not None and before[0] == address and now - before[1] < _WRITTEN_SECONDS:
            return
        key = self._log.keys.worker_address(worker_id)
        await self._log.read("SET", key, address, "EX", KEPT_SECONDS)
        self._written[worker_id] = (address, now)
        self._written.move_to_end(worker_id)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    async def of(self, worker_ids: Sequence[str]) -> dict[str, str]:
        """Those that are known. Raise RedisUnavailable."""
        keys = self._log.keys
        found = await asyncio.gather(
            *(self._log.read("GET", keys.worker_address(each)) for each in worker_ids)
        )
        return {
            worker_id: address.decode()
            for worker_id, address in zip(worker_ids, found, strict=True)
            if address is not None
        }
