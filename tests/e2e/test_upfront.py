"""Many clients at once with one account over HTTP: two web processes, four partitions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from typing import Any

import pytest

from events import types
from events.base import KUDOS
from tests.e2e.conftest import Pool, only_plain
from tests.e2e.harness import CHAT, Book, Client, Worker, chat, eventually
from tests.e2e.paying import ABOVE, nothing_held
from tests.e2e.wire import Answer, Http
from tests.spec import spec

pytestmark = [pytest.mark.e2e, only_plain]

HOLD = 80 * KUDOS
"""What a request of ABOVE tokens has to have upfront."""
FLOOR = 25
"""Kudos that a registered account cannot hold."""


@spec("Free output allowance", 2)
async def test_of_ten_requests_at_once_that_each_need_80_of_100_kudos_one_is_admitted(
    pool: Pool,
) -> None:
    (user_id, key), *_ = await pool.up.accounts(_name("ten"), kudos=FLOOR + 100)
    await _somebody_quick(pool)

    answers = await _at_once(pool, key, 10, lambda n: chat(f"ten {n}") | {"max_tokens": ABOVE})

    assert Counter((each.status, each.rc) for each in answers) == {
        (202, None): 1,
        (403, "KudosUpfront"): 9,
    }
    admitted = await _admitted(pool, user_id)
    assert [(each.hold, each.tax) for each in admitted] == [(HOLD, KUDOS)]
    async with pool.log() as log:
        account = pool.keys.account(user_id)
        found = await log.read("HMGET", account, "kudos", "held")
        assert [int(each) for each in found] == [(FLOOR + 99) * KUDOS, HOLD]
    await _cancel(pool, key, {each.body["id"] for each in answers if each.status == 202})


@spec("Operation key", 4)
async def test_of_twenty_posts_at_once_with_one_operation_key_there_is_one_request(
    pool: Pool,
) -> None:
    (user_id, key), *_ = await pool.up.accounts(_name("twenty"), kudos=FLOOR + 200)
    operation = {"operation_key": str(uuid.uuid4())}
    body = chat("twenty") | {"max_tokens": ABOVE, "horde": operation}

    answers = await _at_once(pool, key, 20, lambda _: body)

    assert {each.status for each in answers} <= {200, 202}
    assert len({each.body["id"] for each in answers}) == 1
    (one,) = await _admitted(pool, user_id)
    assert (one.hold, one.tax) == (HOLD, KUDOS)
    submitted = [each for each in await pool.events() if isinstance(each, types.Submitted)]
    assert [e.request_id for e in submitted if e.user_id == user_id] == [one.request_id]
    async with pool.log() as log:
        account = pool.keys.account(user_id)
        found = await log.read("HMGET", account, "kudos", "held")
        assert [int(each) for each in found] == [(FLOOR + 199) * KUDOS, HOLD]
    await _cancel(pool, key, {one.request_id})
    async with pool.log() as log:
        await eventually(lambda: nothing_held(log), 60, "no hold any more")


async def _somebody_quick(pool: Pool) -> None:
    """A worker whose replies came so fast that its lease is enough for ABOVE tokens.

    Without one it is said that nobody could serve such a request, not what it needs upfront.
    """
    book = Book()
    (key,) = await pool.up.users(_name("rich"), kudos=1000)
    worker = Worker(pool.up.url, pool.owner, book, "quick", wait=2)
    for asked in ({}, {"max_tokens": ABOVE}):
        client = Client(pool.up.url, key, book, _name("quick"), **asked)
        request_id = await client.submit()
        assert await worker.submit(await worker.serve(book.accepted[request_id])) == "stored"


def _name(what: str) -> str:
    return f"{what} {time.monotonic():.3f}"


async def _at_once(pool: Pool, key: str, count: int, body: Any) -> list[Answer]:
    """Send `body(n)` over as many connections."""
    clients = [Http(pool.up.url, key) for _ in range(count)]
    for client in clients:  # connected before the race
        assert (await client.call("GET", "/health/live")).status == 200
    return await asyncio.gather(
        *(client.call("POST", CHAT, body(n)) for n, client in enumerate(clients))
    )


async def _admitted(pool: Pool, user_id: int) -> list[types.Admitted]:
    events = await pool.events()
    return [e for e in events if isinstance(e, types.Admitted) and e.user_id == user_id]


async def _cancel(pool: Pool, key: str, request_ids: set[str]) -> None:
    client = Client(pool.up.url, key, Book(), "cancel")
    for request_id in request_ids:
        await client.cancel(request_id)
