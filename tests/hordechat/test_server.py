"""The web process as the operating system sees it: signals, and how it ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from tests.api.site import POP
from tests.hordechat.web import Web, ready, served, until

DRAIN_SECONDS = 25


@pytest.fixture
def web(redis_url: str, migrated_url: str, tmp_path: Path) -> Iterator[Web]:
    with served(redis_url, migrated_url, tmp_path, drain_seconds=DRAIN_SECONDS) as made:
        yield made


def checked_in(redis_url: str) -> int:
    """How many workers have been seen: it is the first thing that a pop leaves behind."""
    with redis.Redis.from_url(redis_url) as client:
        return sum(fields[b"type"] == b"checked-in" for _, fields in client.xrange("horde:events"))


def test_sigterm_ends_waiting_calls_with_their_answer_and_exits_in_time(
    web: Web, redis_url: str
) -> None:
    headers = {"apikey": web.key}
    # A text request needs no worker to be accepted, and nothing projects it here.
    queued = httpx.post(f"{web.url}/v2/generate/text/async", json={"prompt": "x"}, headers=headers)
    assert queued.status_code == 202
    answers: list[httpx.Response] = []

    def pop(n: int) -> None:
        waits = headers | {"prefer": "wait=60"}
        answers.append(
            httpx.post(
                f"{web.url}/v2/generate/text/pop",
                json=POP | {"name": f"w{n}"},
                headers=waits,
                timeout=90,
            )
        )

    callers = [threading.Thread(target=pop, args=(n,)) for n in range(6)]
    for caller in callers:
        caller.start()
    until(lambda: checked_in(redis_url) == len(callers))  # their calls are in flight

    started = time.monotonic()
    web.process.send_signal(signal.SIGTERM)
    for caller in callers:
        caller.join(60)
    code = web.process.wait(60)

    assert [answer.status_code for answer in answers] == [200] * 6
    assert all(answer.json()["id"] is None for answer in answers)
    assert code == 0
    assert time.monotonic() - started < DRAIN_SECONDS  # nor did they wait for their 60 s


def test_workers_do_not_outlive_a_killed_master(web: Web) -> None:
    workers = web.workers()
    assert len(workers) == 2

    web.process.kill()

    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


def test_a_killed_worker_is_replaced(web: Web) -> None:
    first = {worker.pid for worker in web.workers()}
    for worker in web.workers():
        worker.kill()

    until(lambda: len({each.pid for each in web.workers()} - first) == 2)
    until(lambda: ready(web))
