"""Who could take a request, how fast, and why nobody may."""

from __future__ import annotations

from typing import Any

import pytest

from events.types import Demand
from projections.database import Database
from projections.rules import Wanted
from projections.servers import Gap, Servers, judged, servers
from tests.projections.conftest import Given
from tests.projections.histories import Story, uuid
from tests.projections.test_eligibility import DECLARED, worker
from tests.spec import spec


def wanted(*, chat: bool = True, max_length: int = 100, **demand: Any) -> Wanted:
    asked = Demand(**({"models": ("alpha",)} | demand))
    return Wanted.of(asked, user_id=99, chat=chat, max_length=max_length)


async def of(database: Database, story: Story, asked: Wanted) -> Servers:
    return await servers(database, asked, now_ms=story.ms, online_window_s=300)


async def test_servers_counts_the_online_workers_that_may_take_it(given: Given, database: Database):
    story = Story()
    story.check_in(9, **DECLARED)
    story.ms += 400_000
    story.check_in(1, **DECLARED, threads=2)
    story.check_in(2, **(DECLARED | {"chat_max_length": 50}))
    story.check_in(3, **DECLARED, chat_features=("seed",), threads=4)
    story.check_in(4, models=("beta",), model_id="beta")
    given(story)

    async def counted(**demand: Any) -> tuple[int, int, Any]:
        found = await of(database, story, wanted(**demand))
        return found.workers, found.threads, found.refused

    assert await counted() == (2, 6, {"max_length": 1})
    assert await counted(features=("seed",)) == (1, 4, {"seed": 2})
    assert await counted(models=("delta",)) == (0, 0, {})
    assert await counted(models=("alpha", "beta")) == (3, 7, {"max_length": 1})


async def test_speeds_count_once_for_each_thread_and_ten_where_none_was_measured(
    given: Given, database: Database
):
    story = Story()
    story.check_in(1, **DECLARED, threads=2)
    story.check_in(2, **DECLARED, threads=3)
    story.measure(2, 4500)
    given(story)

    found = await of(database, story, wanted())

    assert found.tokens_per_second == 2 * 10 + 3 * 4.5
    assert found.speeds == {uuid(1, 0xF000): 10.0, uuid(2, 0xF000): 4.5}


async def test_a_text_request_without_models_is_served_by_any_text_worker(
    given: Given, database: Database
):
    story = Story()
    story.check_in(1, **DECLARED)
    story.check_in(2, **DECLARED, prompt_jobs=False)
    given(story)

    found = await of(database, story, wanted(chat=False, models=()))

    assert (found.workers, found.threads, found.refused) == (1, 1, {})


VISION = ("prompt_overflow_refused", "vision")


@spec("Impossible reason", 1, 2, 3, 4)
@pytest.mark.parametrize(
    ("asked", "found", "gap"),
    [
        (wanted(features=("seed",)), [worker()], Gap(("seed",), ())),
        (
            wanted(features=("seed", "tools")),
            [worker(1, chat_features=("seed",)), worker(2, chat_features=("tools",))],
            Gap(("seed", "tools"), ()),
        ),
        (wanted(max_context_length=5000), [worker()], Gap((), ("max_context_length",))),
        (
            wanted(max_length=600, tools_temperature=1.0, features=("tools",)),
            [worker(chat_tools_max_temperature=0.5)],
            Gap(("tools",), ("max_length", "tools_max_temperature")),
        ),
        (wanted(features=VISION, images=True), [worker()], Gap(VISION, ())),
        (
            wanted(features=VISION, images=True),
            [worker(chat_features=VISION, image_transports=("messages_url",))],
            Gap(("image_transports",), ()),
        ),
        # null: nobody, somebody, or another reason that may pass
        (wanted(features=("seed",)), [], None),
        (wanted(features=("seed",)), [worker(), worker(2, chat_features=("seed",))], None),
        (wanted(), [worker(speed=0.5)], None),
        (
            wanted(features=("seed",)),
            [worker(), worker(2, speed=0.5, chat_features=("seed",))],
            None,
        ),
        (wanted(only=(uuid(7, 0xF000),)), [worker()], None),
        (wanted(trusted_workers=True), [worker()], None),
        (wanted(features=("seed",)), [worker()._replace(maintenance=True)], None),
        (wanted(chat=False, max_length=600), [worker()], None),
        # whom the request's own restrictions leave out has no say
        (
            wanted(features=("seed",), trusted_workers=True),
            [worker(trusted=True), worker(2, chat_features=("seed",))],
            Gap(("seed",), ()),
        ),
    ],
)
def test_the_gap_is_what_declarations_lack_and_nothing_else(
    asked: Wanted, found: list[Any], gap: Gap | None
):
    assert judged(asked, found).gap == gap
