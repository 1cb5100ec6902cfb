"""Who is on duty for which partition: spread by share, taken over when someone is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from hordechat.duty import Duty

PARTITIONS = range(4)


class Process:
    """One process of a task; `at` is what it works on."""

    def __init__(self, database_url: str, take: int | None = None) -> None:
        self.at: set[int] = set()
        self.left: list[int] = []
        self.stop = asyncio.Event()
        self.duty = Duty(database_url, "task", PARTITIONS, take, self._work)
        self.running = asyncio.ensure_future(self.duty.run(self.stop))

    async def _work(self, partition: int) -> None:
        assert partition not in self.at
        self.at.add(partition)
        try:
            await asyncio.Event().wait()
        finally:
            self.at.remove(partition)
            self.left.append(partition)

    async def leave(self) -> None:
        """End in order."""
        self.stop.set()
        await self.running


@pytest.fixture
async def start(database_url: str) -> AsyncIterator[Callable[..., Process]]:
    """Starts processes; all end with the test."""
    started: list[Process] = []

    def one(take: int | None = None) -> Process:
        started.append(Process(database_url, take))
        return started[-1]

    yield one
    for process in started:
        await process.leave()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def test_two_processes_share_and_one_takes_over(start: Callable[..., Process]) -> None:
    first, second = start(2), start(2)
    await _until(lambda: (len(first.at), len(second.at)) == (2, 2))
    assert first.at | second.at == set(PARTITIONS)

    await first.leave()

    await _until(lambda: second.at == set(PARTITIONS))
    assert first.at == set()
    third = start(2)
    await _until(lambda: (len(second.at), len(third.at)) == (2, 2))


async def test_without_a_share_the_first_has_all_and_the_second_stands_by(
    start: Callable[..., Process],
) -> None:
    first = start()
    await _until(lambda: first.at == set(PARTITIONS))
    second = start()
    await _until(lambda: second.duty._free_since == {})
    assert second.at == set()

    await first.leave()

    await _until(lambda: second.at == set(PARTITIONS))


async def test_a_lost_connection_ends_the_work_before_another_begins(
    start: Callable[..., Process], database_url: str
) -> None:
    process = start()
    await _until(lambda: process.at == set(PARTITIONS))

    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as admin:
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    await _until(lambda: sorted(process.left) == list(PARTITIONS))
    await _until(lambda: process.at == set(PARTITIONS))


async def test_work_that_fails_ends_the_process(database_url: str) -> None:
    async def work(partition: int) -> None:
        raise RuntimeError(f"partition {partition}")

    with pytest.raises(RuntimeError, match="partition"):
        await Duty(database_url, "task", PARTITIONS, None, work).run(asyncio.Event())


async def test_work_that_swallows_a_cancellation_is_told_again(database_url: str) -> None:
    swallowed = 0

    async def work(_partition: int) -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > len(PARTITIONS):
                    raise

    stop = asyncio.Event()
    duty = Duty(database_url, "task", PARTITIONS, None, work)
    running = asyncio.ensure_future(duty.run(stop))
    await _until(lambda: len(duty._held) == len(PARTITIONS))

    stop.set()

    async with asyncio.timeout(60):
        await running
    assert swallowed >= len(PARTITIONS)
