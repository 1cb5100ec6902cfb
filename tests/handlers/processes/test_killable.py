"""Processes for what may be killed: how they start and end. What they may cost is tested where they
are used (test_schema_pool, test_image_pool)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from handlers.chat.schema_pool import PROGRAM
from handlers.processes import killable
from handlers.processes.killable import Killable, NoneFree
from tests.logged import logged


def of(program: str) -> Killable:
    """One process of it."""
    return Killable(program, seconds=60, deadline=60, processes=1, waiting=2, memory=512 * 2**20)


def children() -> set[str]:
    """Of ours."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


async def test_a_program_that_cannot_start_is_told_and_leaves_nothing() -> None:
    before = children()
    pool = of("handlers.chat.of_nobody")

    with logged(killable.logger) as lines, pytest.raises(NoneFree):
        await pool.ask(b"{}", b"{}")

    assert [line["event"] for line in lines] == ["process_cannot_start"]
    assert children() == before


async def test_who_goes_while_a_process_starts_leaves_nothing() -> None:
    before = children()
    pool = of(PROGRAM)
    asked = asyncio.create_task(pool.ask(b"{}", b"{}"))
    while children() == before:
        await asyncio.wait([asked], timeout=0.002)

    asked.cancel()

    with logged(killable.logger) as lines, pytest.raises(asyncio.CancelledError):
        await asked
    assert not lines
    assert children() == before
    assert (await pool.ask(b"{}", b"{}")).word == "conforms"
    await pool.close()
    assert children() == before


async def test_a_question_and_its_answer_may_be_of_any_length() -> None:
    pool = of(PROGRAM)

    for length in (0, 1, 70_000, 3 * 2**20):
        document = b'{"a": "' + b"x" * length + b'"}'
        assert (await pool.ask(b'{"type": "object"}', document)).word == "conforms"
    await pool.close()
