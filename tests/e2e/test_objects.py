"""What is in the object store is accounted for, whatever is stopped or killed, and goes when it
should."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from handlers.accounted import Tally, check
from handlers.objects import Kept
from handlers.store import Store
from tests.e2e.conftest import Pool, only_plain
from tests.e2e.gallery import asking, doomed, picture, seeing, store_at
from tests.e2e.harness import CHAT, POP, SUBMIT, chat, eventually, reply, status_of
from tests.e2e.wire import Answer, Http
from tests.spec import spec

pytestmark = pytest.mark.e2e

LIFE = 1300  # seconds: longer than a request lives, and the mark of one that never came
URLS = [picture(n) for n in range(2)]


@pytest.fixture
async def store(pool: Pool) -> AsyncIterator[Store]:
    opened = store_at(pool.up)
    yield opened
    opened.close()


@pytest.fixture
async def client(pool: Pool) -> AsyncIterator[Http]:
    async with Http(pool.up.url, pool.client) as http:
        yield http


@pytest.fixture
async def worker(pool: Pool) -> AsyncIterator[Http]:
    async with Http(pool.up.url, pool.owner) as http:
        await http.call("POST", POP, seeing("sees", "base64"))
        yield http


async def _queued(client: Http, text: str) -> str:
    """A request with two images, once a worker is known that can take it."""
    answers: list[Answer] = []

    async def accepted() -> bool:
        answers.append(await client.call("POST", CHAT, asking(text, *URLS)))
        return answers[-1].status == 202

    await eventually(accepted, 60, "a worker that is known to take images")
    return str(answers[-1].body["id"])


async def _popped(worker: Http, *, wait: int = 0) -> dict[str, Any]:
    answer = await worker.call("POST", POP, seeing("sees", "base64"), wait=wait)
    assert answer.status == 200, answer
    return answer.body


@only_plain
@spec("Images", 21, 26, 27, 29)
@pytest.mark.parametrize("how", ["stopped", pytest.param("hung", marks=pytest.mark.soak)])
async def test_a_store_that_is_away_during_submit_pop_and_delete_leaves_no_orphan(
    pool: Pool, store: Store, client: Http, worker: Http, how: str
) -> None:
    away, back = (
        (pool.s3.stop, pool.s3.start) if how == "stopped" else (pool.s3.pause, pool.s3.resume)
    )
    waiting = await _queued(client, "what is it")
    assert set(Kept(2).keys(waiting)) <= set(await store.keys())

    away()
    refused = await client.call("POST", CHAT, asking("and this", *URLS))
    assert (refused.status, refused.rc) == (503, "ChatImageStorageUnavailable"), refused
    assert refused.headers["retry-after"] == "1"
    assert (await _popped(worker))["id"] is None  # the job waits; nobody is blamed for it
    plain = await client.call("POST", CHAT, chat("without images"))
    job = await _popped(worker, wait=5)
    assert job["payload"]["messages"][-1]["content"] == "without images"
    await worker.call("POST", SUBMIT, reply(job["id"], "without images"))
    told = (await client.call("GET", status_of(waiting))).body
    assert (told["waiting"], told["restarted"], told["faulted"]) == (1, 0, False)

    back()
    job = await _popped(worker, wait=10)
    parts = job["payload"]["messages"][-1]["content"]
    assert [part["image_url"]["url"][:23] for part in parts[1:]] == ["data:image/jpeg;base64,"] * 2
    assert (await worker.call("POST", SUBMIT, reply(job["id"], "it"))).status == 200
    assert (await client.call("GET", status_of(plain.body["id"]), wait=5)).body["done"]

    away()
    await pool.pass_time(LIFE)
    async with pool.log() as log:

        async def due() -> bool:
            return set(Kept(2).keys(waiting)) <= await doomed(log)

        await eventually(due, 60, "the names of what is to be deleted")
        assert (await client.call("GET", status_of(waiting))).status == 404

        back()

        async def gone() -> bool:
            return not await doomed(log) and not await store.keys()

        await eventually(gone, 60, "objects that are deleted")
        tally = Tally()
        assert [found async for found in check(log, store, tally)] == []
        assert tally.objects == 0
