"""How Redis stands: its memory, and whether it may throw away what it was given."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

import structlog

from handlers.errors import OutOfMemory, RedisUnavailable
from handlers.log import Log

logger = structlog.get_logger()

_FIELD = re.compile(rb"^(used_memory|maxmemory_policy):(.*?)\r?$", re.MULTILINE)
_SAMPLE_SECONDS = 1.0


class Memory(NamedTuple):
    """Of the fullest node, where there are several."""

    used: int  # bytes
    policies: frozenset[str]


async def memory(log: Log) -> Memory:
    """Ask Redis, every node that answers. Raise RedisUnavailable."""
    nodes = [_parsed(info) for info in await log.everywhere("INFO", "memory")]
    return Memory(
        max(node.used for node in nodes), frozenset().union(*(node.policies for node in nodes))
    )


def _parsed(info: bytes) -> Memory:
    fields = {name: value.decode() for name, value in _FIELD.findall(info)}
    return Memory(int(fields[b"used_memory"]), frozenset({fields[b"maxmemory_policy"]}))


class MemoryGuard:
    """Refuses submissions while Redis uses more memory than it should; what frees some goes on."""

    def __init__(self, log: Log, limit: int) -> None:
        self._log = log
        self._limit = limit
        self.full = False
        """Whether the limit was passed at the last look."""

    def check(self) -> None:
        """Raise OutOfMemory while the limit is passed."""
        if self.full:
            raise OutOfMemory

    async def sample(self) -> None:
        """Look once. While Redis does not answer the last finding stands."""
        try:
            full = (await memory(self._log)).used > self._limit
        except RedisUnavailable:
            return
        if full != self.full:
            logger.warning("redis_memory", limit=self._limit, full=full)
        self.full = full

    async def run(self) -> None:
        """Look each second until cancelled; not at all without a limit."""
        while self._limit:
            await self.sample()
            await asyncio.sleep(_SAMPLE_SECONDS)
