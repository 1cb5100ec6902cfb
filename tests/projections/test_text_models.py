"""Which models are served and asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from projections import text_models
from projections.database import Database
from projections.session import Session
from tests.projections.conftest import Given
from tests.projections.histories import Story

WORKERS = 2000
LOOKED_AT = 50 * WORKERS
"""Rows, of all steps of a plan together."""


def parts(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for part in node.get("Plans", ()):
        yield from parts(part)


async def test_counting_the_models_of_many_workers_takes_a_pass_over_them(
    given: Given, connected: Session, database: Database
):
    """The server has no statistics of them yet."""
    story = Story()
    story.check_in(
        1,
        models=("alpha", "beta"),
        chat_jobs=True,
        model_id="alpha",
        chat_features=("seed", "tools"),
    )
    given(story)
    connected.execute(
        "INSERT INTO workers SELECT (jsonb_populate_record(w, jsonb_build_object("
        "'id', gen_random_uuid(), 'name', 'w' || n, 'chat_model_id', 'm' || n,"
        "'accepts_prompt_jobs', n %% 2 = 0))).* FROM workers w, generate_series(2, %s) n",
        (WORKERS,),
    )

    query = text_models._OFFERED.replace(b"%(since_ms)s", b"0")
    ((plans,),) = await database.fetch(b"EXPLAIN (ANALYZE, FORMAT JSON) " + query)
    found = await text_models.snapshot(database, now_ms=story.ms, since_ms=0)

    lookups = sum(
        (
            part["Actual Rows"]
            + part.get("Rows Removed by Filter", 0)
            + part.get("Rows Removed by Join Filter", 0)
        )
        * part["Actual Loops"]
        for part in parts(plans[0]["Plan"])
    )
    assert lookups <= LOOKED_AT
    assert len(found) == WORKERS + 1
    assert found["alpha"].threads == WORKERS // 2 + 1
    chat = found[f"m{WORKERS}"].chat
    assert chat is not None
    assert chat.features == ["seed", "tools"]
    assert chat.workers == 1
