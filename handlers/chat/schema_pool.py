"""Checks documents against schemas of strangers, bounded in time, memory and number.

A schema can be made to cost hours (nested quantifiers), so checks run in processes of their own,
which are killed at the deadline and replaced. They start when there is something to check first,
get nothing of our environment, and end with us.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Set

import structlog

from handlers.chat.turns import Crowded, Turns
from handlers.chat.verdicts import EXHAUSTED, HEAD, OVERDUE, Verdict
from handlers.errors import ChatVerificationUnavailable

logger = structlog.get_logger()

PROGRAM = "handlers.chat.schema_process"
MEMORY_BYTES = 512 * 2**20
"""Address space of one process. The interpreter and its modules take about 60 MiB of it."""
START_SECONDS = 10.0
WAITING = 16
"""Checks that wait for a process; more are sent away to come again."""
NOBODY: Set[int] = frozenset()


class SchemaPool:
    """A few checking processes, each for one document at a time.

    seconds    that one check may take; one may wait for a process twice as long
    processes  at most
    """

    def __init__(self, *, seconds: float, processes: int, memory: int = MEMORY_BYTES) -> None:
        self._seconds = seconds
        self._memory = memory
        self._turns = Turns(processes, waiting=WAITING, seconds=2 * seconds)
        self._idle: list[Process] = []

    async def check(self, schema: bytes, document: bytes, parties: Set[int] = NOBODY) -> Verdict:
        """Whether the document conforms; without a schema, whether it is a JSON object.

        `parties`: the accounts that sent them, each of which gets its share of the processes. Raise
        ChatVerificationUnavailable where it cannot be checked soon.
        """
        try:
            async with self._turns.turn(parties):
                return await self._judged(schema, document)
        except Crowded:
            raise ChatVerificationUnavailable from None

    async def _judged(self, schema: bytes, document: bytes) -> Verdict:
        process = await self._take()
        answered = False
        try:
            verdict = await self._ask(process, schema, document)
            answered = verdict.word not in (OVERDUE, EXHAUSTED)
        finally:  # whoever asked may be gone in the middle of it
            if answered:
                self._idle.append(process)
            else:
                await asyncio.shield(_end(process))
        if not answered:
            logger.warning("reply_check_stopped", verdict=verdict.word)
        return verdict

    async def close(self) -> None:
        """End the idle processes."""
        idle, self._idle = self._idle, []
        for process in idle:
            await _end(process)

    async def _take(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-W",
            "ignore",  # of patterns that Python will read otherwise one day
            "-m",
            PROGRAM,
            str(self._memory),
            str(self._seconds),
            stdin=PIPE,
            stdout=PIPE,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        ready = b""
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await _out(process).readline()
        except TimeoutError:
            raise ChatVerificationUnavailable from None
        finally:
            if not ready:
                logger.error("reply_check_cannot_start")
                await asyncio.shield(_end(process))
        if not ready:
            raise ChatVerificationUnavailable
        return process

    async def _ask(self, process: Process, schema: bytes, document: bytes) -> Verdict:
        questions = process.stdin
        if questions is None:
            raise RuntimeError("the process was started without a pipe")
        try:
            async with asyncio.timeout(self._seconds):
                head = HEAD.pack(len(schema), len(document))
                questions.write(head + schema + document)
                await questions.drain()
                line = await _out(process).readline()
        except (TimeoutError, OSError):
            return Verdict(OVERDUE)
        return Verdict(*json.loads(line)) if line else Verdict(OVERDUE)


def _out(process: Process) -> asyncio.StreamReader:
    if process.stdout is None:
        raise RuntimeError("the process was started without a pipe")
    return process.stdout


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()
