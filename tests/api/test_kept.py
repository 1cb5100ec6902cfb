"""What is read once for all who ask meanwhile is not kept past a change."""

from __future__ import annotations

import asyncio

from api.kept import Kept


class Shelf:
    """Something to read; a reading sees it as it was, and ends when it is let go."""

    def __init__(self) -> None:
        self.content = "old"
        self.readings = 0
        self.let_go = asyncio.Event()

    async def read(self) -> str:
        self.readings += 1
        seen = self.content
        await self.let_go.wait()
        return seen


async def asked(kept: Kept[int, str], shelf: Shelf, readings: int) -> asyncio.Task[str]:
    asking = asyncio.create_task(kept.get(1, shelf.read))
    async with asyncio.timeout(20):
        while shelf.readings < readings:
            await asyncio.sleep(0)
    return asking


async def test_a_reading_that_began_before_a_change_is_neither_kept_nor_shared() -> None:
    kept: Kept[int, str] = Kept(60)
    shelf = Shelf()
    before = await asked(kept, shelf, 1)
    shelf.content = "new"
    kept.forget(lambda value: value == "old")
    after = await asked(kept, shelf, 2)

    shelf.let_go.set()

    assert (await before, await after) == ("old", "new")
    assert await kept.get(1, shelf.read) == "new"
    assert shelf.readings == 2


async def test_a_reading_that_ends_last_does_not_replace_the_one_after_the_change() -> None:
    kept: Kept[int, str] = Kept(60)
    slow, quick = Shelf(), Shelf()
    before = await asked(kept, slow, 1)
    kept.forget(lambda value: value == "old")
    quick.content = "new"
    quick.let_go.set()
    async with asyncio.timeout(20):
        assert await kept.get(1, quick.read) == "new"

    slow.let_go.set()

    assert await before == "old"
    assert await kept.get(1, slow.read) == "new"
