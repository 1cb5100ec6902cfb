"""Processes killed one after the other while clients and workers go on: nothing is lost, nothing
happens twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from events import types
from events.base import Event
from events.keys import Keys
from handlers.log import Log
from handlers.replay import read_log
from lua.link import Link
from tests.e2e.harness import (
    Book,
    Client,
    Up,
    Worker,
    eventually,
    family,
    known,
)
from tests.e2e.paying import await_paid

pytestmark = pytest.mark.e2e

TARGETS = (
    "web worker",
    "valkey",
    "projector_status",
    "postgres",
    "projector_eligibility",
    "projector_statistics",
    "projector_accounts",
    "web",
    "settler",
    "janitor",
    "archiver",
    "a worker",
)
ENV = {
    # A job whose pop was answered to nobody comes back soon; an outage must not outlast a lease.
    "HORDE_TEXT_JOB_LEASE_SECONDS": "8",
    "HORDE_TEXT_JOB_PREPARATION_SECONDS": "1",
    "HORDE_TRUSTED_TEXT_JOB_LEASE_CAP_SECONDS": "16",  # the same once it streamed
    "HORDE_UNTRUSTED_TEXT_JOB_LEASE_CAP_SECONDS": "16",
    "HORDE_ADMISSION_DEADLINE_SECONDS": "5",
}


class Crew:
    """Clients and workers, of which one may be killed with its job in hand."""

    def __init__(self, up: Up, keys: list[str], book: Book, size: int) -> None:
        self._up = up
        self._owner = keys[1]
        self._book = book
        self.clients = [Client(up.url, keys[0], book, f"client {n}") for n in range(size)]
        self._workers: dict[str, tuple[Worker, asyncio.Task[None]]] = {}
        for n in range(size):
            self._start(f"worker {n}")

    def _start(self, name: str) -> None:
        worker = Worker(self._up.url, self._owner, self._book, name)
        self._workers[name] = (worker, asyncio.ensure_future(worker.run()))

    async def kill_one(self) -> None:
        """One that was just handed a job goes without a word, and starts anew."""
        before = len(self._book.taken)
        await eventually(lambda: len(self._book.taken) > before, 60, "a job to kill a worker for")
        await self._end(self._book.taken[-1].worker)
        self._start(self._book.taken[-1].worker)

    async def _end(self, name: str) -> None:
        worker, task = self._workers.pop(name)
        task.cancel()
        worker.close()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()

    async def end(self) -> None:
        """All workers stop."""
        for name in list(self._workers):
            await self._end(name)
        for client in self.clients:
            client.close()


async def _kill(up: Up, target: str, crew: Crew) -> float:
    """Kill it, wait until it is back; the seconds that took."""
    started = time.monotonic()
    if target == "a worker":
        await crew.kill_one()
        return 0.0
    name = "web" if target == "web worker" else target
    pid = up.pid(name)
    if target == "web worker":
        child = family(pid)[1]
        os.kill(child, signal.SIGKILL)
        await eventually(
            lambda: child not in family(pid) and len(family(pid)) > 2, 60, "another web worker"
        )
    else:
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: up.pid(name) != pid, 60, f"another {name}")
    return time.monotonic() - started


@pytest.mark.parametrize(
    ("rounds", "apart"),
    [
        pytest.param(1, 0.0, id="each once"),
        pytest.param(6, 4.0, id="each six times", marks=pytest.mark.soak),
    ],
)
async def test_every_acknowledged_request_is_answered_once_whatever_is_killed(
    tmp_path: Path, rounds: int, apart: float
) -> None:
    up = Up(tmp_path, "--web-workers", "2", env=ENV).start()
    try:
        await _under_load(up, rounds, apart)
        assert up.end() == 0, up.program.tail()
    finally:
        up.end()
    told = [line for line in up.bugs() if "was sent SIGKILL" not in line["event"]]
    assert told == []


async def _under_load(up: Up, rounds: int, apart: float) -> None:
    keys = await up.users("client", "owner")
    await known(up.url, keys[1], keys[0])
    book = Book()
    crew = Crew(up, keys, book, size=8)
    enough = asyncio.Event()
    clients = [
        asyncio.ensure_future(client.run(enough.is_set, stream=n % 2 == 0))
        for n, client in enumerate(crew.clients)
    ]
    await eventually(lambda: len(book.ended) > 20, 60, "the first replies")
    kills = 0
    for _ in range(rounds):
        for target in TARGETS:
            ended = len(book.ended)
            took = await _kill(up, target, crew)
            back = time.monotonic()
            kills += 1
            await eventually(lambda: len(book.ended) >= ended + 10, 60, f"replies after {target}")  # noqa: B023
            print(
                f"killed {target}: back in {took:.1f} s, "
                f"10 replies {time.monotonic() - back:.1f} s later, {len(book.ended)} so far"
            )
            await asyncio.sleep(apart)
    enough.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*clients)
    print(f"{kills} kills, {len(book.ended)} requests, without an answer: {book.unanswered}")

    log = Log(Link(up.info()["redis_url"], timeout=10), Keys(1))
    try:
        await eventually(lambda: _settled(log), 60, "no job of any account waiting")
        database_url = up.run()["database_url"]
        events = await await_paid(database_url, lambda: _events(log))
    finally:
        await log.close()
    await crew.end()
    _judge(book, events)
    assert "no difference" in up.cli("verify")
    assert "no difference" in up.cli("ledger", "check")


async def _events(log: Log) -> list[Event]:
    return [entry.recorded.event async for page in read_log(log, 0) for entry in page]


async def _settled(log: Log) -> bool:
    jobs = [await log.read("HGET", log.keys.account(n), "waiting") for n in range(3)]
    return all(each in (b"0", None) for each in jobs)


def _judge(book: Book, events: list[Event]) -> None:
    faults = Counter(e.request_id for e in events if isinstance(e, types.Faulted))
    given_up = len(book.faulted())
    print(f"faults: {sum(faults.values())} of {len(faults)} requests; given up: {given_up}")
    for request_id, status in book.ended.items():
        if status["faulted"]:
            assert faults[request_id] >= 3, "given up without three faults"
    assert given_up <= len(book.ended) // 100
    replies = Counter(e.generation_id for e in events if isinstance(e, types.SubmittedReply))
    assert set(replies.values()) == {1}
    answered = Counter(e.request_id for e in events if isinstance(e, types.SubmittedReply))
    assert set(answered.values()) == {1}
    assert set(book.accepted) <= {e.request_id for e in events if isinstance(e, types.Submitted)}
    book.check()
