"""Archivers that are killed anywhere, two at once, with uploads that land when nobody believes in
them any more: each event is in one object, and Redis never lets go of one that is not archived."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from archive.archive import Archive
from archive.bucket import ArchiveMissing, Bucket
from archive.segments import Raw
from events.base import START, Position
from handlers.archiver import Archiver, Bounds, Interrupted
from handlers.log import Log
from handlers.trimming import Marks
from tests.handlers.shelf import stream_of

BASE = 1_700_000_000_000
TICK = 10_000
PAD = "x" * 4096
SIZES = (1, 5_000, 9_000, 13_000)
"""Bytes of segments: one, two, three or four events. They differ, as they would where one archiver
has read more than another."""


class Shelf(Bucket):
    """Objects in memory: what a call does is done at once."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, key: str, body: bytes, *, first: bool = False) -> None:
        self.objects[key] = body

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise ArchiveMissing(key) from None

    def names(self, prefix: str, after: str = "") -> Iterator[str]:
        return iter(sorted(key for key in self.objects if key.startswith(prefix) and key > after))

    def folders(self, prefix: str) -> list[str]:
        return sorted({key.removeprefix(prefix).split("/")[0] for key in self.names(prefix)})

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)


class Process:
    """An archiver that goes on only when it is let, from one call that it makes to the next."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._gate: asyncio.Future[None] | None = None
        self._stirred = asyncio.Event()
        self._work: Callable[[], Any] | None = None
        self._task: asyncio.Task[bool] | None = None
        bounds = Bounds(world.random.choice(SIZES), 10**6, retention=0)
        self.archiver = Archiver(
            world.log,
            world.archive,
            self,
            self,
            bounds,
            0,
            sweep_seconds=world.sweep,
        )

    # what it calls

    async def run(self, work: Callable[[], Any]) -> Any:
        """A call to the store."""
        return await self._call(work)

    async def place(self, _partition: int) -> Position:
        return await self._call(lambda: self._world.place)

    async def move(self, _partition: int, before: Position, after: Position) -> bool:
        return await self._call(lambda: self._world.move(before, after))

    async def readers(self, _partition: int) -> Mapping[str, Marks]:
        return await self._call(dict)

    async def _call(self, work: Callable[[], Any]) -> Any:
        self._work = work
        await self._wait()
        self._work = None
        result = work()
        await self._wait()
        return result

    async def _wait(self) -> None:
        self._gate = asyncio.get_running_loop().create_future()
        self._stirred.set()
        await self._gate

    # what is done to it

    async def go_on(self) -> bool:
        """To its next call, or the end of its pass; whether that is over."""
        if self._task is None:
            self._task = asyncio.ensure_future(self.archiver.step())
        elif self._gate is not None:
            self._gate.set_result(None)
            self._gate = None
        stirred = asyncio.ensure_future(self._stirred.wait())
        await asyncio.wait({stirred, self._task}, return_when=asyncio.FIRST_COMPLETED)
        stirred.cancel()
        self._stirred.clear()
        if not self._task.done():
            return False
        task, self._task, self._gate = self._task, None, None
        with contextlib.suppress(Interrupted):
            task.result()
        return True

    async def kill(self) -> Callable[[], Any] | None:
        """It is no more; what it had asked for may still happen."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        return self._work


class World:
    """A log, an archive, a checkpoint, and a copy of the log that nobody trims."""

    def __init__(self, log: Log, seed: int) -> None:
        self.log = log
        self.random = random.Random(seed)
        self.shelf = Shelf()
        self.archive = Archive(self.shelf, 1)
        self.sweep = self.random.choice([0.0, 60.0])
        self.place = START
        self.copy: list[Raw] = []
        self.late: list[Callable[[], Any]] = []
        self.processes = [Process(self) for _ in range(2)]

    def move(self, before: Position, after: Position) -> bool:
        if self.place != before:
            return False
        self.place = after
        return True

    async def write(self) -> None:
        """An event; it is settled, and was read by the settler."""
        n = len(self.copy) + 1
        position = Position(BASE + n * TICK, 0)
        fields = ["type", "t", "n", str(n), "pad", PAD]
        key = self.log.keys.events(0)
        await self.log.read("XADD", key, str(position), *fields)
        self.copy.append(Raw(str(position).encode(), [each.encode() for each in fields]))
        await self.log.read("HSET", self.log.keys.fences(0), 0, str(position))
        await self.clock(position.ms + 5000)

    async def clock(self, ms: int) -> None:
        control = self.log.keys.control(0)
        await self.log.read("HSET", control, "clock_ms", 0)
        await self.log.read("HSET", control, "clock_ms", ms - await self.log.now_ms(0))

    async def move_on(self) -> None:
        """Something happens."""
        which = self.random.randrange(2)
        match self.random.choices(["write", "go on", "kill", "land", "forget"], [20, 100, 4, 3, 1]):
            case ["write"]:
                await self.write()
            case ["go on"]:
                if await self.processes[which].go_on():
                    await self.check()
            case ["kill"]:
                await self.check()
                under_way = await self.processes[which].kill()
                if under_way is not None and self.random.random() < 0.7:
                    self.late.append(under_way)
                self.processes[which] = Process(self)
            case ["land"] if self.late:
                work = self.late.pop(0)
                with contextlib.suppress(ArchiveMissing):
                    work()
            case ["forget"]:  # Postgres comes back as it was a while ago, and locks are gone
                for number, process in enumerate(self.processes):
                    await process.kill()
                    self.processes[number] = Process(self)
                self.late.clear()
                ends = [each.last for each in self.archive.listed(0) if each.last <= self.place]
                self.place = self.random.choice([START, *ends[-2:]])

    async def check(self) -> None:
        """Archive and stream together hold every event."""
        events = await self.log.read("XLEN", self.log.keys.events(0))
        end = self.archive.end(0)
        assert (end.beyond - 1 if end else 0) + events >= len(self.copy)

    async def end(self) -> None:
        """One archiver is left, undisturbed."""
        for process in self.processes:
            await process.kill()
        await self.clock(BASE + 10**10)
        last = Process(self)
        while self.place < self.copy[-1].position or last._task is not None:
            await last.go_on()
        objects = list(self.archive.listed(0))
        assert [each.number for each in objects] == [1, *(each.beyond for each in objects[:-1])]
        assert objects[-1].beyond == len(self.copy) + 1
        archived = [raw for page in self.archive.read(0) for raw in page]
        assert archived == self.copy
        stream = await stream_of(self.log, 0)
        assert stream == self.copy[len(self.copy) - len(stream) :]


async def _run(log: Log, seed: int, moves: int) -> None:
    await log.read("FLUSHDB")
    world = World(log, seed)
    await world.write()
    for _ in range(moves):
        await world.move_on()
    await world.end()


@pytest.mark.parametrize("log", ["one partition"], indirect=True)
@pytest.mark.parametrize(
    ("seeds", "moves"),
    [
        pytest.param(range(5), 300, id="short"),
        pytest.param(range(1000, 1200), 400, id="long", marks=pytest.mark.soak),
    ],
)
async def test_whatever_is_killed_each_event_is_archived_once(
    log: Log, seeds: Sequence[int], moves: int
) -> None:
    for seed in seeds:
        try:
            await _run(log, seed, moves)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
