"""Clients that hang up, and a server that is told to stop, with calls in flight."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time

import pytest

from events import types
from tests.e2e.conftest import Pool, only_plain
from tests.e2e.harness import (
    POP,
    Book,
    Client,
    Taken,
    Worker,
    declaration,
    eventually,
    status_of,
    text_of,
    working,
)
from tests.e2e.wire import Http, NoAnswer

pytestmark = [pytest.mark.e2e, only_plain]


class Leaver:
    """A pop that waits, whose client says that it leaves and listens to what still comes."""

    def __init__(self, pool: Pool, name: str) -> None:
        self._pool = pool
        self._name = name

    async def ask(self) -> None:
        """Send the pop."""
        host, port = self._pool.up.url.removeprefix("http://").split(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(declaration(self._name)).encode()
        head = (
            f"POST {POP} HTTP/1.1\r\nhost: test\r\napikey: {self._pool.owner}\r\n"
            f"prefer: wait=30\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def leave(self) -> Taken | None:
        """Say so; the job that was on its way before the server heard it."""
        self._writer.write_eof()
        answer = await asyncio.wait_for(self._reader.read(), 20)  # the pop itself waits for longer
        self._writer.close()
        _, _, body = answer.partition(b"\r\n\r\n")
        told = json.loads(body) if body else {"id": None}
        if not told["id"]:
            return None
        return Taken(told["id"], text_of(told), self._name, 0, time.monotonic())


async def test_a_job_is_not_lost_to_a_client_that_hung_up(pool: Pool) -> None:
    book = Book()
    client = Client(pool.up.url, pool.client, book, f"left {time.monotonic()}")
    leavers = [Leaver(pool, f"leaver {n}") for n in range(8)]
    await asyncio.gather(*(each.ask() for each in leavers))
    assert await asyncio.gather(*(each.leave() for each in leavers)) == [None] * 8
    heir = Worker(pool.up.url, pool.owner, book, "heir", wait=5)

    request_id = await client.submit()
    started = time.monotonic()
    job = await heir.serve(book.accepted[request_id])

    assert time.monotonic() - started < 60  # a lease would take 150 s
    assert await heir.submit(job) == "stored"
    client.close()
    heir.close()


async def test_a_job_is_not_lost_to_a_client_that_hangs_up_as_it_is_handed_over(
    pool: Pool,
) -> None:
    book = Book()
    client = Client(pool.up.url, pool.client, book, f"leaving {time.monotonic()}")
    heir = Worker(pool.up.url, pool.owner, book, "heir", wait=5)
    dice = random.Random(1)
    reached = 0
    slowest = 0.0
    for n in range(25):
        leaver = Leaver(pool, f"leaver {n % 5}")
        await leaver.ask()

        async def leave(leaver: Leaver = leaver) -> Taken | None:
            await asyncio.sleep(dice.uniform(0, 0.04))  # somewhere in the hand-over
            return await leaver.leave()

        request_id, job = await asyncio.gather(client.submit(), leave())
        if job is not None:  # it was written to a client that still listened
            reached += 1
            assert job.text == book.accepted[request_id]
        else:
            started = time.monotonic()
            job = await heir.serve(book.accepted[request_id])
            slowest = max(slowest, time.monotonic() - started)
        assert await heir.submit(job) == "stored"
    print(f"25 hand-overs: {reached} reached their client; the others' heir waited {slowest:.2f} s")
    assert reached < 25
    assert slowest < 60  # a lease would take 150 s
    client.close()
    heir.close()


async def test_calls_in_flight_are_finished_at_sigterm(pool: Pool) -> None:
    """C-133, but for streams to clients: there are none yet."""
    book = Book()
    before = await _submitted(pool)
    with pool.up.web("leaving-web", HORDE_DRAIN_SECONDS="50") as (url, program):
        client = Client(url, pool.client, book, f"sigterm {time.monotonic()}")
        request_id = await client.submit()
        taker = Worker(pool.up.url, pool.owner, book, "taker", wait=5)
        job = await taker.serve(book.accepted[request_id])
        busy = [Client(url, pool.client, book, f"busy {n} {time.monotonic()}") for n in range(4)]
        submitted: list[str] = []
        cut: list[str] = []
        tasks = [asyncio.ensure_future(_submit_until_refused(each, submitted)) for each in busy]
        async with Http(url, pool.owner) as popper, Http(url, pool.client) as reader:
            # For another model: no job comes.
            other = declaration("waiting") | {"models": ["none"], "model_id": "none"}
            pop = asyncio.ensure_future(popper.call("POST", POP, other, wait=60))
            status = asyncio.ensure_future(reader.call("GET", status_of(request_id), wait=60))
            await eventually(lambda: len(submitted) > 8, 60, "submissions")
            started = time.monotonic()
            program.send(signal.SIGTERM)
            told = await pop, await status
            answered = time.monotonic() - started
        for task in tasks:
            cut.append(await task)
        code = await asyncio.to_thread(program.wait, 60)
        took = time.monotonic() - started
        assert pool.up.bugs(program.log) == []

    # A connection that was cut carried no call that took effect.
    assert await _submitted(pool) - before == set(book.accepted)
    assert [answer.status for answer in told] == [200, 200]
    assert told[0].body["id"] is None
    assert (told[1].body["done"], told[1].body["processing"]) == (False, 1)
    assert code == 0
    assert answered < 40  # neither their 60 s
    assert took < 50  # nor those of the drain
    print(f"waits ended after {answered:.2f} s, exit after {took:.2f} s, cut: {cut}")
    assert await taker.submit(job) == "stored"
    workers = [Worker(pool.up.url, pool.owner, book, f"after {n}", wait=1) for n in range(4)]
    follower = Client(pool.up.url, pool.client, book, "follower")
    async with working(workers):
        for each in book.accepted:
            await follower.follow(each)
    book.check()
    for each in (client, taker, follower, *busy):
        each.close()


async def _submitted(pool: Pool) -> set[str]:
    return {each.request_id for each in await pool.events() if isinstance(each, types.Submitted)}


async def _submit_until_refused(client: Client, submitted: list[str]) -> str:
    """Submit again and again; what the first call without an answer met."""
    while True:
        try:
            submitted.append(await client.submit_once())
        except NoAnswer as error:
            return str(error)


async def test_a_waiting_status_ends_with_its_client(pool: Pool) -> None:
    """Many that hang up leave no handlers behind: the process answers on, and at once."""
    book = Book()
    client = Client(pool.up.url, pool.client, book, f"watched {time.monotonic()}")
    request_id = await client.submit()
    for _ in range(3):
        readers = [Http(pool.up.url, pool.client) for _ in range(20)]
        waits = [
            asyncio.ensure_future(each.call("GET", status_of(request_id), wait=60))
            for each in readers
        ]
        await asyncio.sleep(0.2)  # most of them wait by then; nothing depends on it
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    async with Http(pool.up.url, pool.client) as canceller:
        assert (await canceller.call("DELETE", status_of(request_id))).status == 200
        last = await canceller.call("GET", status_of(request_id))
    assert last.body["done"]
    assert last.seconds < 5
    client.close()
