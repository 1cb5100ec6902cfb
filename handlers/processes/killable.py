"""A few processes for what strangers can make cost anything, bounded in time, memory and number.

Python cannot stop a thread in the middle of a regular expression or of a decoder. So such work is
done in processes of their own, which are killed at the deadline and replaced. They start when there
is something to ask first, get nothing of our environment, and end with us. `expendable` is what
runs inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Set

import structlog

from handlers.processes.expendable import EXHAUSTED, HEAD, Answer
from handlers.turns import Crowded, Turns

logger = structlog.get_logger()

DIED = "died"
"""The process died of the question: by its limit of CPU, by a fault of a library, or killed."""
LATE = "late"
"""It came to its deadline, and was killed."""

START_SECONDS = 10.0
NOBODY: Set[int] = frozenset()
_READ_BYTES = 2**20
"""Of answers, read ahead. A reader stops its pipe, and starts it again, at twice as many."""


class NoneFree(Exception):
    """No process is free soon, or none can be started."""


class Killable:
    """Processes of one program, each for one question at a time.

    program   the module to run
    seconds   of CPU that one question may take
    deadline  seconds for an answer; one may wait for a process twice `seconds`
    processes at most
    waiting   questions that wait for a process; more are sent away
    memory    bytes of address space of one process
    """

    def __init__(
        self,
        program: str,
        *,
        seconds: float,
        deadline: float,
        processes: int,
        waiting: int,
        memory: int,
    ) -> None:
        self._program = program
        self._seconds = seconds
        self._deadline = deadline
        self._memory = memory
        self._turns = Turns(processes, waiting=waiting, seconds=2 * seconds)
        self._idle: list[Process] = []

    async def ask(self, first: bytes, second: bytes, parties: Set[int] = NOBODY) -> Answer:
        """What a process answers to a question of two parts; its word is DIED, LATE or EXHAUSTED
        where that took more than it may.

        `parties`: the accounts that it comes from, each of which gets its share of the processes.
        Raise NoneFree.
        """
        try:
            async with self._turns.turn(parties):
                return await self._answered(first, second)
        except Crowded:
            raise NoneFree from None

    async def _answered(self, first: bytes, second: bytes) -> Answer:
        process = await self._take()
        fit = False
        try:
            answer = await self._tell(process, first, second)
            fit = answer.word not in (DIED, LATE, EXHAUSTED)
        finally:  # whoever asked may be gone in the middle of it
            if fit:
                self._idle.append(process)
            else:
                await asyncio.shield(_end(process))
        return answer

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
            "ignore",  # of patterns that Python will read otherwise one day, of odd images
            "-m",
            self._program,
            str(self._memory),
            str(self._seconds),
            stdin=PIPE,
            stdout=PIPE,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            limit=_READ_BYTES,
        )
        ready = False
        try:
            async with asyncio.timeout(START_SECONDS):
                await _read(process)
            ready = True
        except (TimeoutError, EOFError):
            logger.exception("process_cannot_start", program=self._program)
            raise NoneFree from None
        finally:  # whoever wanted it may be gone already
            if not ready:
                await asyncio.shield(_end(process))
        return process

    async def _tell(self, process: Process, first: bytes, second: bytes) -> Answer:
        questions = process.stdin
        if questions is None:
            raise RuntimeError("the process was started without a pipe")
        try:
            async with asyncio.timeout(self._deadline):
                questions.write(HEAD.pack(len(first), len(second)) + first)
                questions.write(second)
                await questions.drain()
                return await _read(process)
        except TimeoutError:
            return Answer(LATE)
        except (OSError, EOFError):
            return Answer(DIED)


async def _read(process: Process) -> Answer:
    """Raise EOFError where the process ends."""
    if process.stdout is None:
        raise RuntimeError("the process was started without a pipe")
    word, body = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
    return Answer(
        (await process.stdout.readexactly(word)).decode(), await process.stdout.readexactly(body)
    )


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    if process.stdin is not None and not process.stdin.is_closing():
        process.stdin.transport.abort()  # there may be megabytes left that nobody will read
    await process.wait()
    if process.stdout is not None:
        await process.stdout.read()  # to its end: until then the pipe stays open
