"""Bodies are bounded in size and in time."""

from __future__ import annotations

import asyncio
import json

import falcon.asgi
import pytest

import api.errors
from api import body
from api.body import Bodies
from tests.api.asgi_client import Call

MOST = 100


def peer(req: falcon.asgi.Request) -> str:
    """Where a call comes from."""
    return str(req.scope["client"][0])


class Echo:
    """Answers with the size of what it got."""

    def __init__(self, seconds: float = 60) -> None:
        self.bodies = Bodies(peer, seconds=seconds, at_once=MOST, first=10)
        self.go = asyncio.Event()
        self.go.set()
        self.reading = 0

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        async with self.bodies.read(req, MOST) as raw:
            self.reading += 1
            await self.go.wait()
            resp.media = len(raw)


@pytest.fixture
def app() -> falcon.asgi.App:
    made = falcon.asgi.App()
    api.errors.install(made)
    made.add_route("/", Echo())
    return made


def call(app: falcon.asgi.App, **headers: str) -> Call:
    return Call(
        app, "POST", "/", {name.replace("_", "-"): value for name, value in headers.items()}
    )


@pytest.mark.parametrize("size", [0, 1, MOST])
async def test_a_body_up_to_the_cap_is_read(app: falcon.asgi.App, size: int) -> None:
    declared = call(app, content_length=str(size)).start(b"x" * size)
    await declared.ended()
    assert (declared.status, declared.json) == (200, size)


async def test_a_declared_length_above_the_cap_is_refused_whatever_comes(
    app: falcon.asgi.App,
) -> None:
    refused = call(app, content_length=str(MOST + 1)).start(b"x" * (MOST + 1))
    await refused.ended()

    assert (refused.status, refused.json["rc"]) == (413, "RequestTooLarge")
    assert refused.headers["connection"] == "close"


async def test_a_chunked_body_is_refused_one_byte_past_the_cap(app: falcon.asgi.App) -> None:
    """C-011."""
    fits = call(app, transfer_encoding="chunked").start(None)
    fits.send(b"x" * (MOST - 1), more=True)
    fits.send(b"x")
    await fits.ended()
    assert fits.json == MOST

    refused = call(app, transfer_encoding="chunked").start(None)
    refused.send(b"x" * MOST, more=True)
    refused.send(b"x")
    await refused.ended()
    assert (refused.status, refused.json["rc"]) == (413, "RequestTooLarge")


async def test_an_endless_body_is_drained_for_a_while_and_refused(
    app: falcon.asgi.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-011."""
    monkeypatch.setattr(body, "_DRAIN_BYTES", 2**20)
    refused = call(app, transfer_encoding="chunked").start(None)
    for _ in range(100):
        refused.send(b"x" * 65536, more=True)
    async with asyncio.timeout(20):
        await refused.ended()

    assert refused.json["rc"] == "RequestTooLarge"
    assert refused.received < 40


async def test_a_client_that_dribbles_is_cut_by_a_total_deadline() -> None:
    app = falcon.asgi.App()
    api.errors.install(app)
    app.add_route("/", Echo(seconds=0.2))
    slow = call(app, content_length="50").start(None)

    async def dribble() -> None:
        while True:
            slow.send(b"x", more=True)
            await asyncio.sleep(0.02)

    dribbling = asyncio.create_task(dribble())
    async with asyncio.timeout(20):
        await slow.ended()
    dribbling.cancel()

    assert (slow.status, slow.json["rc"]) == (408, "RequestTimeout")
    assert slow.headers["connection"] == "close"


async def test_a_body_that_ends_early_is_refused(app: falcon.asgi.App) -> None:
    cut = call(app, content_length="50").start(None)
    cut.send(b"x" * 10)
    await cut.ended()

    assert (cut.status, cut.json["rc"]) == (400, "BadRequest")
    assert json.dumps(cut.json)


async def test_large_bodies_take_turns_and_small_ones_pass_them() -> None:
    echo = Echo()
    app = falcon.asgi.App()
    api.errors.install(app)
    app.add_route("/", echo)
    echo.go.clear()

    large = [call(app, content_length="60").start(b"x" * 60) for _ in range(3)]
    small = call(app, content_length="10").start(b"x" * 10)
    async with asyncio.timeout(20):
        while len(echo.bodies._turns._waiters) < 2 or echo.reading < 2:
            await asyncio.sleep(0.001)
    echo.go.set()

    for each in (*large, small):
        await each.ended()
        assert each.status == 200
    assert echo.bodies._turns._free == MOST


async def test_who_waits_for_a_turn_too_long_or_leaves_holds_up_nobody() -> None:
    echo = Echo(seconds=0.2)
    app = falcon.asgi.App()
    api.errors.install(app)
    app.add_route("/", echo)
    echo.go.clear()
    first = call(app, content_length="60").start(b"x" * 60)
    async with asyncio.timeout(20):
        while not echo.reading:
            await asyncio.sleep(0.001)

    late = call(app, content_length="60").start(b"x" * 60)
    await late.ended()

    assert (late.status, late.json["rc"]) == (408, "RequestTimeout")
    echo.go.set()
    await first.ended()
    assert echo.bodies._turns._free == MOST
    assert not echo.bodies._turns._waiters


async def test_slow_bodies_from_one_place_do_not_keep_another_s_from_coming() -> None:
    echo = Echo()
    app = falcon.asgi.App()
    api.errors.install(app)
    app.add_route("/", echo)
    places = ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:0:0:3"]  # one caller has them all
    slow = [call(app, content_length="40") for _ in range(6)]
    for at, each in enumerate(slow):
        each.scope["client"] = (places[at % 3], 1)
        each.start(None).send(b"x" * 20, more=True)
    async with asyncio.timeout(20):
        while len(echo.bodies._turns._waiters) < 5:
            await asyncio.sleep(0.001)

    other = call(app, content_length="60").start(b"x" * 60)
    await other.ended()

    assert (other.status, other.json) == (200, 60)
    assert not any(each.answered for each in slow)  # it came past them, not behind them
    for each in slow:
        each.send(b"x" * 20)
    for each in slow:
        await each.ended()
        assert each.status == 200
    assert echo.bodies._turns._free == MOST


async def test_who_finds_too_many_waiting_is_told_so_at_once() -> None:
    echo = Echo()
    echo.bodies = Bodies(peer, at_once=MOST, first=10, waiting=120)
    app = falcon.asgi.App()
    api.errors.install(app)
    app.add_route("/", echo)
    echo.go.clear()
    waiting = [call(app, content_length="60").start(b"x" * 60) for _ in range(7)]
    async with asyncio.timeout(20):
        while len(echo.bodies._turns._waiters) < 6:
            await asyncio.sleep(0.001)

    last = call(app, content_length="60").start(b"x" * 60)
    await last.ended()

    assert (last.status, last.json["rc"]) == (408, "RequestTimeout")
    assert "Too many" in last.json["message"]
    assert not any(each.answered for each in waiting)
    echo.go.set()
    for each in waiting:
        await each.ended()
        assert each.status == 200
