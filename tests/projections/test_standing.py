"""Where a request stands, and what comes before it."""

from __future__ import annotations

from typing import Any

from projections.database import Database
from projections.servers import Reach
from projections.standing import Ahead, QueueSnapshot, Waiting, queue_snapshot
from tests.projections.conftest import Given
from tests.projections.histories import Story
from tests.spec import spec

CHAT = Reach("alpha", frozenset({"seed"}), False, 512, 4096, (), 0, 0)
TEXT = Reach(None, frozenset(), False, 0, 0, ("alpha",), 512, 2048)


async def test_a_snapshot_gives_positions_from_one(given: Given, database: Database):
    story = Story()
    second = story.submit(models=("alpha", "beta"), jobs=3)
    first = story.submit(priority=10**9)
    gone = story.submit()
    story.assign(gone)
    given(story)

    snapshot = await queue_snapshot(database, now_ms=story.ms)

    assert [snapshot.position(id_) for id_ in (first, second, gone)] == [1, 2, 0]
    assert snapshot.waiting[1].models == ("alpha", "beta")
    assert snapshot.waiting[1].jobs == 3
    assert snapshot.ahead(second, frozenset({CHAT})) == Ahead(100, 1)


def waiting(n: int, *, jobs: int = 1, **changed: Any) -> Waiting:
    known = {
        "chat": True,
        "models": ("alpha",),
        "max_length": 100,
        "max_context_length": 1024,
        "features": frozenset(),
        "images": False,
    }
    return Waiting(request_id=str(n), rank=-n, jobs=jobs, **(known | changed))


@spec("Free output allowance", 8, 16)
def test_only_what_one_of_the_workers_could_take_competes():
    snapshot = QueueSnapshot(
        [
            waiting(1, jobs=2),
            waiting(2, models=("beta",)),
            waiting(3, max_length=513),
            waiting(4, max_context_length=4097),
            waiting(5, chat=False),
            waiting(6, chat=False, models=("",), max_length=10),
            waiting(7, chat=False, max_context_length=2049),
            waiting(8, features=frozenset({"seed", "vision"})),
            waiting(9, images=True),
            waiting(10, features=frozenset({"seed"})),
            waiting(11),
        ]
    )

    eyes = CHAT._replace(chat_features=frozenset({"seed", "vision"}), receives_images=True)
    assert snapshot.ahead("11", frozenset({CHAT})) == Ahead(300, 3)
    assert snapshot.ahead("11", frozenset({TEXT})) == Ahead(110, 2)
    assert snapshot.ahead("11", frozenset({CHAT, TEXT})) == Ahead(410, 5)
    assert snapshot.ahead("11", frozenset({CHAT, eyes})) == Ahead(500, 5)
    assert snapshot.ahead("1", frozenset({CHAT, TEXT})) == Ahead(0, 0)
    assert snapshot.ahead("none", frozenset({CHAT})) == Ahead(0, 0)
    assert snapshot.ahead("11", frozenset()) == Ahead(0, 0)
    assert snapshot.competing(frozenset({CHAT})) == Ahead(400, 4)
    assert snapshot.competing(frozenset({TEXT})) == Ahead(110, 2)
    assert snapshot.competing(frozenset({CHAT}), but="1") == Ahead(200, 2)
    assert snapshot.competing(frozenset({CHAT}), but="2") == Ahead(400, 4)
    assert snapshot.competing(frozenset({CHAT}), but="11") == Ahead(300, 3)
    assert snapshot.competing(frozenset({CHAT}), but="none") == Ahead(400, 4)
    assert snapshot.competing(frozenset()) == Ahead(0, 0)
    assert QueueSnapshot().competing(frozenset({CHAT})) == Ahead(0, 0)
