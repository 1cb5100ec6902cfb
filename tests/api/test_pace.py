"""Heavy bodies leave room on the loop for everything else."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import falcon.asgi
import pytest

import api.errors
from api.body import Bodies
from api.pace import HEAVY_BYTES, HEAVY_MARKS, LIGHT_BYTES, Pace, heavy
from tests.api.asgi_client import Call
from tests.api.test_body import peer

STEP = 0.02
HEAVY = b"[" + b"1," * HEAVY_MARKS + b"1]"


class Slow:
    """Takes bodies apart in single steps, and notes when."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self.pace = Pace()
        self.bodies = Bodies(peer, pace=self.pace)

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        now = asyncio.get_running_loop().time
        async with self.bodies.read(req, 2**20):
            began = now()
            time.sleep(STEP)
            self.steps.append((began, now()))
        resp.media = "ok"


def app_of(route: Slow) -> falcon.asgi.App:
    app = falcon.asgi.App()
    api.errors.install(app)
    app.add_route("/", route)
    return app


@pytest.mark.parametrize(
    ("raw", "is_heavy"),
    [
        (b"," * LIGHT_BYTES, False),
        (b"," * (LIGHT_BYTES + 1), True),
        (b"x" * HEAVY_BYTES, False),
        (b"x" * (HEAVY_BYTES + 1), True),
        (HEAVY, True),
    ],
)
def test_what_is_heavy_is_large_or_has_many_values(raw: bytes, is_heavy: bool) -> None:
    assert heavy(raw) is is_heavy


async def test_after_each_heavy_body_others_have_as_much_time() -> None:
    route = Slow()
    app = app_of(route)

    calls = [call(app, HEAVY) for _ in range(5)]
    for each in calls:
        await each.ended()

    assert [each.status for each in calls] == [200] * 5
    pauses = [after[0] - before[1] for before, after in pairwise(route.steps)]
    assert len(pauses) == 4
    assert min(pauses) >= STEP


async def test_a_light_body_passes_the_heavy_ones_that_wait() -> None:
    route = Slow()
    app = app_of(route)
    heavies = [call(app, HEAVY) for _ in range(3)]
    light = call(app, b"[]")

    await light.ended()

    assert len(route.steps) < 3
    for each in heavies:
        await each.ended()


async def test_who_waits_too_long_is_told_and_holds_up_nobody() -> None:
    route = Slow()
    route.bodies = Bodies(peer, seconds=0.05, pace=route.pace)
    app = app_of(route)
    await route.pace.enter()

    refused = call(app, HEAVY)
    await refused.ended()
    route.pace.leave()
    route.bodies = Bodies(peer, pace=route.pace)
    answered = call(app, HEAVY)
    await answered.ended()

    assert (refused.status, refused.json["rc"]) == (408, "RequestTimeout")
    assert answered.status == 200


async def test_who_leaves_while_it_rests_frees_its_turn() -> None:
    pace = Pace()
    await pace.enter()
    time.sleep(STEP)
    pace.leave()

    leaving = asyncio.create_task(pace.enter())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)

    async with asyncio.timeout(20):
        await pace.enter()
    pace.leave()


def call(app: falcon.asgi.App, raw: bytes) -> Call:
    return Call(app, "POST", "/", {"content-length": str(len(raw))}).start(raw)
