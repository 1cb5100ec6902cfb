"""How Redis stands: its memory, and whether it may throw away what it was given."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import NamedTuple

import structlog

from handlers import stream
from handlers.errors import OutOfMemory, RedisUnavailable
from handlers.log import Log

logger = structlog.get_logger()

_FIELD = re.compile(rb"^(used_memory|maxmemory|maxmemory_policy):(.*?)\r?$", re.MULTILINE)
_SAMPLE_SECONDS = 1.0
_MOST_FILLED = 0.9
"""Of Redis' own limit: scripts that free memory need some, too."""


class Memory(NamedTuple):
    """Of the fullest node, where there are several."""

    used: int  # bytes
    filled: float
    """The part of its own limit that is used; 0 where it has none."""
    policies: frozenset[str]


async def memory(log: Log) -> Memory:
    """Ask Redis, every node that answers. Raise RedisUnavailable."""
    nodes = [_parsed(info) for info in await log.everywhere("INFO", "memory")]
    return Memory(
        max(node.used for node in nodes),
        max(node.filled for node in nodes),
        frozenset().union(*(node.policies for node in nodes)),
    )


def _parsed(info: bytes) -> Memory:
    fields = {name: value.decode() for name, value in _FIELD.findall(info)}
    used, most = int(fields[b"used_memory"]), int(fields[b"maxmemory"])
    return Memory(used, used / most if most else 0.0, frozenset({fields[b"maxmemory_policy"]}))


class MemoryGuard:
    """Refuses submissions while Redis uses more memory than it should; what frees some goes on.

    limit      bytes that a node may use; 0: nine tenths of its maxmemory, where it has one
    log_limit  bytes that all logs may take together; 0: any
    """

    def __init__(self, log: Log, limit: int, log_limit: int = 0) -> None:
        self._log = log
        self._limit = limit
        self._log_limit = log_limit
        self._found = {"redis_memory": False, "log_memory": False}

    @property
    def full(self) -> bool:
        """Whether a limit was passed at the last look."""
        return any(self._found.values())

    def check(self) -> None:
        """Raise OutOfMemory while a limit is passed."""
        if self.full:
            raise OutOfMemory

    async def sample(self) -> None:
        """Look once. While Redis does not answer the last finding stands."""
        with contextlib.suppress(RedisUnavailable):
            found = await memory(self._log)
            full = found.used > self._limit if self._limit else found.filled > _MOST_FILLED
            self._note("redis_memory", full, limit=self._limit, used=found.used)
            if self._log_limit:
                used = await stream.memory(self._log)
                full = stream.passes(used, self._log_limit, already=self._found["log_memory"])
                self._note("log_memory", full, limit=self._log_limit, used=used)

    def _note(self, what: str, full: bool, **numbers: int) -> None:
        if full != self._found[what]:
            logger.warning(what, full=full, **numbers)
        self._found[what] = full

    async def run(self) -> None:
        """Look each second until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(_SAMPLE_SECONDS)
