"""Threads for calls that block."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from handlers.threads import Busy, Threads


@pytest.fixture
def threads() -> Iterator[Threads]:
    opened = Threads(2, waiting=3, name="test")
    yield opened
    opened.close()


async def test_a_call_is_done_elsewhere_and_tells_what_it_raises(threads: Threads) -> None:
    def fails() -> int:
        raise KeyError("so")

    assert await threads.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(KeyError):
        await threads.run(fails)


async def test_so_many_calls_run_at_once_and_so_many_wait(threads: Threads) -> None:
    gate, running = threading.Semaphore(0), threading.Semaphore(0)

    def work() -> int:
        running.release()
        gate.acquire()
        return threading.get_ident()

    calls = [asyncio.ensure_future(threads.run(work)) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await threads.run(work)
    assert running.acquire(timeout=20)
    assert running.acquire(timeout=20)
    assert not running.acquire(blocking=False)
    gate.release(5)

    assert len(set(await asyncio.gather(*calls))) == 2
    gate.release()
    await threads.run(work)


async def test_a_call_that_was_taken_back_is_not_begun_and_holds_nothing(threads: Threads) -> None:
    class Body:
        pass

    gate, begun = threading.Event(), []
    busy = [asyncio.ensure_future(threads.run(lambda: gate.wait(20))) for _ in range(2)]
    body = Body()
    held = weakref.ref(body)
    waiting = asyncio.ensure_future(threads.run(lambda body=body: begun.append(body)))
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.wait([waiting])
    del body, waiting
    assert held() is None

    gate.set()
    assert await asyncio.gather(*busy) == [True, True]
    await threads.run(lambda: None)
    assert begun == []


async def test_what_waits_is_told_that_it_is_over() -> None:
    threads = Threads(1, waiting=1, name="test")
    begun, gate = threading.Event(), threading.Event()
    under_way = asyncio.ensure_future(threads.run(lambda: begun.set() or gate.wait(20)))
    waiting = asyncio.ensure_future(threads.run(lambda: None))
    await asyncio.to_thread(begun.wait, 20)

    threads.close()

    with pytest.raises(Busy):
        await waiting
    gate.set()
    assert await under_way
    with pytest.raises(Busy):
        await threads.run(lambda: None)


def test_a_call_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    program = (
        "import asyncio, time\n"
        "from handlers.threads import Threads\n"
        "async def main():\n"
        "    threads = Threads(1, waiting=1, name='test')\n"
        "    task = asyncio.ensure_future(threads.run(lambda: time.sleep(60)))\n"
        "    await asyncio.sleep(0)\n"
        "    threads.close()\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=50, check=False).returncode == 0
