"""A thousand streamed jobs at once on one web process, each posting once a second for a minute."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from events import types
from events.keys import Keys
from handlers.log import Log
from handlers.replay import read_log
from hordechat import garbage
from lua.link import connect
from tests.e2e.harness import PROGRESS, Book, Client, Taken, Up, Worker, known
from tests.e2e.wire import Http, hang_up

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

JOBS = 1000
POSTS = 60
LEASE_SECONDS = 20
LATE_SECONDS = 1.0
FEW = 20
"""Clients that submit, and workers that pop."""


@pytest.fixture
def unstopped() -> Iterator[None]:
    """This process looks for garbage as seldom as the service does: all that a whole session of
    tests has loaded took it 0.8 s to look through, and every stream was late by that."""
    before = gc.get_threshold()
    garbage.settle()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("unstopped")
async def test_no_post_of_a_thousand_streams_is_late_and_no_lease_lapses(tmp_path: Path) -> None:
    lease = {"TEXT_JOB_LEASE_SECONDS": LEASE_SECONDS, "TEXT_JOB_PREPARATION_SECONDS": 5}
    env = {f"HORDE_{name}": str(seconds) for name, seconds in lease.items()}
    up = Up(tmp_path, "--web-workers", "1", env=env).start()
    client_key, owner_key = await up.users("client", "owner")
    await known(up.url, owner_key, client_key)
    book = Book()
    clients = [Client(up.url, client_key, book, f"c{n}") for n in range(FEW)]
    workers = [Worker(up.url, owner_key, book, f"w{n}") for n in range(FEW)]
    late: list[float] = []
    streams: list[asyncio.Task[Taken]] = []

    async def submit(client: Client) -> list[str]:
        return [await client.submit(stream=True) for _ in range(JOBS // FEW)]

    async def take(worker: Worker) -> None:
        while len(book.taken) < JOBS:
            job = await worker.take()
            if job is not None:
                streams.append(asyncio.create_task(_stream(up.url, owner_key, job, late)))

    async def end(worker: Worker, jobs: list[Taken]) -> None:
        for job in jobs:
            assert await worker.submit(job) == "stored"

    async def follow(client: Client, ids: list[str]) -> None:
        for request_id in ids:
            await client.follow(request_id)

    submitted, _ = await asyncio.gather(
        asyncio.gather(*map(submit, clients)), asyncio.gather(*map(take, workers))
    )
    jobs = await asyncio.gather(*streams)
    print(f"{len(late)} posts, the latest {max(late):.3f} s after it was due")
    await asyncio.gather(*(end(each, jobs[n::FEW]) for n, each in enumerate(workers)))
    await asyncio.gather(*map(follow, clients, submitted))

    book.check()
    assert len(late) == JOBS * POSTS
    assert max(late) < LATE_SECONDS
    redis = await connect(up.info()["redis_url"], timeout=10)
    log = Log(redis, Keys(1), test=True)
    events = [entry.recorded.event async for page in read_log(log, 0) for entry in page]
    await log.close()
    assert not [event for event in events if isinstance(event, types.Faulted)]
    renewed = {event.generation_id for event in events if isinstance(event, types.Progressed)}
    assert renewed >= {job.generation_id for job in jobs}, "these outlived no lease"
    await hang_up()
    assert up.end() == 0
    assert up.bugs() == []


async def _stream(url: str, key: str, job: Taken, late: list[float]) -> Taken:
    """Post once a second; what is late is answered late after its moment."""
    async with Http(url, key) as http:
        began = time.monotonic()
        for seq in range(1, POSTS + 1):
            due = began + seq
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            body = {"id": job.generation_id, "seq": seq, "delta": {"content": f"{seq} "}}
            answer = await http.call("POST", PROGRESS, body)
            assert answer.status == 200, answer
            late.append(time.monotonic() - due)
    return job
