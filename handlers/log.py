"""What every command handler is given: the scripts, the key names, and one way to run a command."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import structlog

from archive.archive import Archive
from events.base import START, Position
from events.keys import PARTITIONS, Keys
from handlers.errors import OutOfMemory, Rebuilding, RedisUnavailable
from lua.link import Argument, OutOfMemoryError, Redis, ResponseError, Unavailable
from lua.scripts import Refusal, ScriptFailed, Scripts

logger = structlog.get_logger()

PATIENCE = 0.3
"""Seconds after which a command without an answer is not repeated within its call: an answer is due
within a second."""

FORGOTTEN = "Redis lost what it held. The service goes on once its operator has rebuilt that."


class Log:
    """One deployment's log and hot state, and the archive of the log, where it has one."""

    def __init__(
        self, redis: Redis, keys: Keys, *, test: bool = False, archive: Archive | None = None
    ) -> None:
        self.redis = redis
        self.keys = keys
        self.test = test
        self.archive = archive
        self.scripts = Scripts(redis, test=test)
        self._background: set[asyncio.Task[Any]] = set()

    async def run(
        self,
        script: str,
        partition: int,
        keys: Mapping[str, str | Sequence[str]],
        args: Mapping[str, Argument | Sequence[Argument]],
    ) -> list[bytes]:
        """Run a command on one partition; return what stands behind OK.

        Every command carries an id of its own, so one whose answer was lost is repeated: it changes
        nothing twice. Raise Refusal for its own refusals, Rebuilding, OutOfMemory or
        RedisUnavailable for those of all commands.
        """
        named = {
            "events": self.keys.events(partition),
            "control": self.keys.control(partition),
            **keys,
        }
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            try:
                answer = await self.scripts.run(script, named, args)
            except Unavailable as error:
                if loop.time() - started < PATIENCE:
                    await asyncio.sleep(0.02)
                    continue
                raise RedisUnavailable from error
            except Refusal as refusal:
                if refusal.word == "REBUILDING":
                    raise Rebuilding from refusal
                raise
            except ScriptFailed as error:
                if "OOM" in str(error) or "maxmemory" in str(error):
                    raise OutOfMemory from error
                raise
            return answer

    async def read(self, *command: Argument, at: str | None = None) -> Any:
        """Run one plain command, in a cluster on the node of its key, or of the key `at`; raise
        RedisUnavailable without an answer, OutOfMemory where Redis has no room for what it would
        write."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            try:
                return await self.redis.call(*command, at=at)
            except Unavailable as error:
                if loop.time() - started < PATIENCE:
                    await asyncio.sleep(0.02)
                    continue
                raise RedisUnavailable from error
            except OutOfMemoryError as error:
                raise OutOfMemory from error

    async def everywhere(self, *command: Argument) -> list[Any]:
        """Run one plain command on every server that holds keys of ours; the answers of those that
        gave one. Raise RedisUnavailable where none did."""
        try:
            return await self.redis.everywhere(*command)
        except Unavailable as error:
            raise RedisUnavailable from error

    async def head(self, partition: int) -> Position:
        """The last position of a partition's log."""
        last = await self.read("XREVRANGE", self.keys.events(partition), "+", "-", "COUNT", 1)
        return Position.parse(last[0][0]) if last else START

    async def begin(self) -> None:
        """Record how many partitions there are, where nobody did, and mark each as one on which
        commands may run. Without that mark they are refused: it is gone where Redis lost what it
        had."""
        await self.read("SET", PARTITIONS, self.keys.partitions, "NX")
        await asyncio.gather(
            *(
                self.read("HSETNX", self.keys.control(each), "last_ms", 0)
                for each in self.keys.all()
            )
        )

    async def has_begun(self, partition: int) -> bool:
        """Whether that mark is there."""
        return bool(await self.read("HEXISTS", self.keys.control(partition), "last_ms"))

    async def check_begun(self) -> None:
        """Raise RedisUnavailable where Redis lost what it had of a partition: what is not there may
        be there again once it was rebuilt."""
        if not all(await asyncio.gather(*map(self.has_begun, self.keys.all()))):
            raise RedisUnavailable(FORGOTTEN)

    async def now_ms(self, partition: int) -> int:
        """The partition's clock, for choosing what may be due.

        Scripts judge by their own reading.
        """
        control = self.keys.control(partition)
        seconds, micros = await self.read("TIME", at=control)
        shift = await self.read("HGET", control, "clock_ms") if self.test else None
        return int(seconds) * 1000 + int(micros) // 1000 + int(shift or 0)

    def later(self, work: Coroutine[Any, Any, object]) -> None:
        """Carry on with `work` after the caller got its answer."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Let background work finish for a moment, then let go of Redis."""
        if self._background:
            await asyncio.wait(self._background, timeout=2)
        await self.redis.close()


async def persist(command: Any, *, seconds: float = 60, first: float = 0.1) -> None:
    """Repeat `command()` until Redis gives any definite answer, with back-off; give up after
    `seconds`, and say so."""
    loop = asyncio.get_running_loop()
    ends, pause = loop.time() + seconds, first
    while True:
        try:
            await command()
        except (RedisUnavailable, Rebuilding, OutOfMemory) as error:
            if loop.time() + pause > ends:
                logger.warning("command_given_up", reason=str(error))
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2)
        except Refusal:
            return
        else:
            return


__all__ = ["Log", "Refusal", "ResponseError", "persist"]
