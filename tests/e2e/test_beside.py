"""Read models are built anew and switched to while clients and workers are at work: nobody is
refused, and nobody misses what is theirs."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import Pool
from tests.e2e.harness import Book, Client, Worker, eventually, working
from tests.e2e.rebuilt import TABLES, caught_up, differences, live_and_rebuilt

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    "models",
    [
        pytest.param(("status", "eligibility"), id="two models"),
        pytest.param(tuple(TABLES), id="all models", marks=pytest.mark.soak),
    ],
)
async def test_models_are_switched_under_load_and_each_answer_is_as_without(
    pool: Pool, models: tuple[str, ...]
) -> None:
    book = Book()
    workers = [Worker(pool.up.url, pool.owner, book, f"b{n}") for n in range(3)]
    clients = [Client(pool.up.url, pool.client, book, f"beside {n}") for n in range(4)]
    enough = asyncio.Event()
    async with working(workers):
        runs = [asyncio.ensure_future(each.run(enough.is_set)) for each in clients]
        await eventually(lambda: len(book.ended) > 4, 60, "replies")
        told = await asyncio.gather(*(_build(pool, name) for name in models))
        before = len(book.ended)
        await eventually(lambda: len(book.ended) > before + 4, 60, "more replies")
        enough.set()
        await asyncio.gather(*runs)
    for each in clients:
        each.close()

    assert [line.split(":")[0] for line in told if line.endswith("and switched\n")] == [*models]
    book.check()
    assert book.unanswered == {}
    assert book.faulted() == []
    await eventually(lambda: caught_up(pool), 60, "the read models")
    for name in models:
        live, rebuilt = await asyncio.to_thread(live_and_rebuilt, pool, name)
        assert differences(live, rebuilt) == []


async def _build(pool: Pool, name: str) -> str:
    return await asyncio.to_thread(pool.up.cli, "rebuild", name, "--beside")
