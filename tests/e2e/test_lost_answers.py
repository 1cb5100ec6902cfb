"""A web process whose answers from Redis get lost after the commands were executed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from events import types
from tests.e2e.conftest import Pool, only_plain
from tests.e2e.harness import Book, Client, Worker, eventually, working
from tests.proxy import Proxy

pytestmark = [pytest.mark.e2e, only_plain]


@pytest.mark.parametrize("requests", [24, pytest.param(1000, marks=pytest.mark.soak)])
async def test_no_command_takes_effect_twice_and_no_job_goes_to_nobody(
    pool: Pool, requests: int
) -> None:
    book = Book()
    async with Proxy.before(pool.redis_url) as proxy:
        web = pool.up.web("lossy-web", REDIS_URL=proxy.url)
        url, program = await asyncio.to_thread(web.__enter__)
        try:
            clients = [
                Client(url, pool.client, book, f"lossy {n} {time.monotonic()}") for n in range(4)
            ]
            workers = [Worker(url, pool.owner, book, f"lossy {n}", wait=2) for n in range(4)]
            proxy.drop_at_random(12, 1)
            async with working(workers):
                done = lambda: len(book.ended) >= requests  # noqa: E731
                await asyncio.gather(
                    *(client.run(done, stream=n % 2 == 0) for n, client in enumerate(clients))
                )
                proxy.drop_at_random(0, 1)
                await eventually(lambda: _at_rest(pool), 60, "the end of what was begun")
        finally:
            await asyncio.to_thread(web.__exit__, None, None, None)
    for each in clients:
        each.close()
    print(f"{proxy.dropped} answers lost, {len(book.ended)} requests, {book.unanswered}")

    assert proxy.dropped > requests // 4
    book.check()
    assert book.faulted() == []
    assert pool.up.bugs(program.log) == []
    events = await pool.events()
    for kind, id_ in (
        (types.Submitted, "request_id"),
        (types.Admitted, "request_id"),
        (types.Cancelled, "request_id"),
        (types.Assigned, "generation_id"),
        (types.SubmittedReply, "generation_id"),
        (types.Returned, "generation_id"),
    ):
        counted = Counter(getattr(event, id_) for event in events if isinstance(event, kind))
        assert set(counted.values()) <= {1}, kind


async def _at_rest(pool: Pool) -> bool:
    """Every job that was assigned was answered or given back, every request has ended."""
    return not await pool.unended()
