"""How Redis stands: its memory, and whether it may throw away what it was given."""

from __future__ import annotations

import asyncio
import re
from typing import Any, NamedTuple

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
    """Ask Redis. Raise RedisUnavailable."""
    return _parsed(await log.read("INFO", "memory"))


def _parsed(info: Any) -> Memory:
    if isinstance(info, bytes | str):
        text = info if isinstance(info, bytes) else info.encode()
        fields = {name: value.decode() for name, value in _FIELD.findall(text)}
        return Memory(int(fields[b"used_memory"]), frozenset({fields[b"maxmemory_policy"]}))
    if isinstance(info, list):  # redis-py's cluster client parses it, our link flattens that
        info = dict(zip(info[::2], info[1::2], strict=True))
    if "used_memory" in info:
        return Memory(int(info["used_memory"]), frozenset({str(info["maxmemory_policy"])}))
    nodes = [_parsed(node) for node in info.values()]
    return Memory(
        max(node.used for node in nodes), frozenset().union(*(node.policies for node in nodes))
    )


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
