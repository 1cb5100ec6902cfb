"""Checks of hostile schemas and documents are bounded, and nobody else notices them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handlers.chat import schema_pool, verdicts
from handlers.chat.schema_pool import SchemaPool
from handlers.errors import ChatVerificationUnavailable

SECONDS = 2.0
ENDLESS = ({"properties": {"p": {"pattern": "^(a+)+$"}}}, '{"p":"' + "a" * 34 + '!"}')
NEST = {"properties": {"n": {"$ref": "#"}}}


@pytest.fixture
async def pool() -> AsyncIterator[SchemaPool]:
    """One process."""
    opened = SchemaPool(seconds=SECONDS, processes=1)
    yield opened
    await opened.close()


async def word(pool: SchemaPool, schema: Any, document: str) -> str:
    verdict = await pool.check(json.dumps(schema).encode(), document.encode())
    return verdict.word


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ENDLESS,
        ({"uniqueItems": True}, json.dumps([{"a": n} for n in range(40_000)])),
        ({"type": "array"}, "[" * 500_000),
        ({"$ref": "#"}, "{}"),
        (NEST, '{"n":' * 2000 + "{}" + "}" * 2000),
        ({"type": "array"}, "[" + "[[]]," * 6_000_000 + "1]"),
        (
            {
                "$ref": "#/$defs/0",
                "$defs": {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 9} for n in range(9)}
                | {"9": False},
            },
            "{}",
        ),
    ],
    ids=["pattern", "unique", "brackets", "loop", "deep", "memory", "references"],
)
async def test_what_costs_too_much_comes_to_an_end(
    pool: SchemaPool, schema: Any, document: str
) -> None:
    await word(pool, {}, "{}")  # the process is there
    started = time.monotonic()

    assert await word(pool, schema, document) in (verdicts.OVERDUE, verdicts.EXHAUSTED)

    assert time.monotonic() - started < SECONDS + 1
    assert await word(pool, {"type": "object"}, "{}") == verdicts.CONFORMS


async def test_a_document_may_nest_deep_under_a_recursive_schema(pool: SchemaPool) -> None:
    assert await word(pool, NEST, '{"n":' * 300 + "{}" + "}" * 300) == verdicts.CONFORMS


async def test_the_event_loop_goes_on_meanwhile(pool: SchemaPool) -> None:
    longest, last = 0.0, time.monotonic()
    check = asyncio.create_task(word(pool, *ENDLESS))

    while not check.done():
        await asyncio.wait([check], timeout=0.01)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()

    assert longest < 0.5


async def test_who_finds_no_process_in_time_is_told_to_come_again(pool: SchemaPool) -> None:
    await word(pool, {}, "{}")
    pool._seconds = 0.3
    checks = [asyncio.create_task(word(pool, *ENDLESS)) for _ in range(3)]

    found = await asyncio.gather(*checks, return_exceptions=True)

    assert found[0] == verdicts.OVERDUE
    assert any(isinstance(each, ChatVerificationUnavailable) for each in found)


async def test_a_queue_is_not_endless(pool: SchemaPool) -> None:
    checks = [asyncio.create_task(word(pool, {}, "{}")) for _ in range(schema_pool.WAITING + 1)]
    await asyncio.sleep(0)

    with pytest.raises(ChatVerificationUnavailable):
        await word(pool, {}, "{}")

    assert await asyncio.gather(*checks) == [verdicts.CONFORMS] * len(checks)


async def test_a_caller_that_goes_away_takes_its_check_along(pool: SchemaPool) -> None:
    await word(pool, {}, "{}")
    check = asyncio.create_task(word(pool, *ENDLESS))
    await asyncio.wait([check], timeout=0.1)

    check.cancel()

    with pytest.raises(asyncio.CancelledError):
        await check
    assert await word(pool, {"type": "object"}, "[]") == verdicts.MISMATCH


async def test_a_process_that_was_killed_is_replaced(pool: SchemaPool) -> None:
    await word(pool, {}, "{}")
    (process,) = pool._idle
    process.kill()
    await process.wait()

    assert await word(pool, {}, "{}") == verdicts.CONFORMS


async def test_a_process_knows_nothing_of_our_environment(pool: SchemaPool) -> None:
    await word(pool, {}, "{}")
    (process,) = pool._idle
    with open(f"/proc/{process.pid}/environ", "rb") as environ:
        names = {each.partition(b"=")[0] for each in environ.read().split(b"\0") if each}

    assert names == {b"PYTHONPATH"}


async def test_no_reference_opens_a_connection(pool: SchemaPool) -> None:
    met: list[bool] = []
    server = await asyncio.start_server(lambda *_: met.append(True), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    found = await word(pool, {"$ref": f"http://127.0.0.1:{port}/x.json"}, "{}")

    server.close()
    assert (found, met) == (verdicts.UNCOMPILABLE, [])
