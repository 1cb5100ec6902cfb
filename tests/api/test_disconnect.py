"""No handler outlives its client, and no job is lost to one that left."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest

from api.disconnect import CancelOnDisconnect, deliver_within, unless_delivered, watch
from tests.api.asgi_client import Call
from tests.api.site import POP, Site


class Waits:
    """An ASGI app that reads its body, waits, and notes how it ended."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.ended: str | None = None
        self.body = b""
        self.go = asyncio.Event()
        self._at_once = at_once

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            event = await receive()
            self.body += event.get("body", b"")
            more = event.get("more_body", False)
        if self._at_once:
            watch(scope)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}", "more_body": False})
        self.ended = "answered"


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_handler_is_cancelled_when_its_client_leaves(at_once: bool) -> None:
    app = Waits(at_once=at_once)
    call = Call(CancelOnDisconnect(app), "GET", "/").start()
    await asyncio.sleep(0)

    call.leave()
    async with asyncio.timeout(20):
        await call.ended()

    assert app.ended == "cancelled"
    assert not call.answered


class Exchange:
    """One request as a server keeps it: its calls are methods of what has the scope."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"type": "http"}
        self._asked = False

    async def receive(self) -> dict[str, Any]:
        """The body, and then nothing."""
        if self._asked:
            await asyncio.Event().wait()
        self._asked = True
        return {"type": "http.request", "body": b""}

    async def send(self, message: dict[str, Any]) -> None:
        """Send it nowhere."""


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_request_that_is_over_leaves_nothing_to_look_for(at_once: bool) -> None:
    app = Waits(at_once=at_once)
    app.go.set()
    exchange = Exchange()
    over = weakref.ref(exchange)
    gc.disable()
    try:
        await CancelOnDisconnect(app)(exchange.scope, exchange.receive, exchange.send)
        del exchange
        for _ in range(3):  # in which the watcher ends
            await asyncio.sleep(0)
        assert over() is None
    finally:
        gc.enable()


async def test_a_watched_handler_answers_as_ever() -> None:
    app = Waits()
    call = Call(CancelOnDisconnect(app, grace=0), "GET", "/").start()
    await asyncio.sleep(0.01)

    app.go.set()
    await call.ended()

    assert (app.ended, call.status) == ("answered", 200)


@pytest.mark.parametrize("late", [True, False])
async def test_a_client_that_takes_its_answer_too_slowly_is_hung_up_on(late: bool) -> None:
    undone, taken = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        unless_delivered(scope, undone.set)
        deliver_within(scope, 0.02)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        await taken.wait()
        await send({"type": "http.response.body", "body": b"}", "more_body": False})

    call = Call(CancelOnDisconnect(app), "GET", "/").start()
    if not late:
        taken.set()
    async with asyncio.timeout(20):
        await call.ended()
    await asyncio.sleep(0.03)

    assert (call.transport.aborted, undone.is_set()) == (late, late)


async def test_no_byte_of_the_body_is_taken_away() -> None:
    app = Waits()
    call = Call(CancelOnDisconnect(app, grace=0), "POST", "/").start(None)
    for n in range(5):
        await asyncio.sleep(0.005)
        call.send(b"%d" % n, more=n < 4)
    app.go.set()
    await call.ended()

    assert app.body == b"01234"


async def test_a_server_that_ends_the_call_itself_is_heard() -> None:
    app = Waits()
    call = Call(CancelOnDisconnect(app), "GET", "/").start()
    await asyncio.sleep(0)
    assert call.task is not None

    call.task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call.ended()


def waiting_pop(site: Site, name: str = "w") -> Call:
    headers = {"apikey": site.owner_key, "prefer": "wait=30"}
    call = Call(site.app, "POST", "/v2/generate/text/pop", headers)
    return call.start(json.dumps(POP | {"name": name}).encode())


async def idle(site: Site, waiting: int) -> None:
    """So many pops wait in line."""
    (shelf,) = site.parts.matcher._shelves.values()
    async with asyncio.timeout(20):
        while len(shelf._waiting) != waiting:
            await asyncio.sleep(0.005)


async def test_the_job_goes_to_the_next_when_a_waiting_worker_left(site: Site) -> None:
    await site.pop()
    gone = waiting_pop(site)
    await idle(site, 1)
    gone.leave()
    async with asyncio.timeout(20):
        await gone.ended()
    await idle(site, 0)

    request_id = await site.queued()
    await site.project()
    job = await site.popped(name="next")

    await site.reply(job["id"])
    await site.project()
    assert (await site.status(request_id)).json()["restarted"] == 0


async def test_a_job_that_was_just_assigned_to_a_client_that_left_is_given_back(
    site: Site,
) -> None:
    """The client leaves while its job is being assigned, again and again."""
    await site.pop()
    request_id = await site.queued()
    async with site.projected():
        for delay in (0, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.006, 0.008):
            call = waiting_pop(site, f"w{delay}")
            await asyncio.sleep(delay)
            call.leave()
            async with asyncio.timeout(20):
                await call.ended()
            if call.answered:  # it was quick enough: the client had its job before it left
                job = call.json
                break
        else:
            job = await site.popped(name="last", wait=20)
        await site.reply(job["id"])
        status = (await site.status(request_id)).json()

    assert (status["done"], status["finished"], status["restarted"]) == (True, 1, 0)


@pytest.mark.parametrize("wait", [0, 5])
async def test_a_job_whose_answer_went_into_a_closed_connection_is_given_back(
    site: Site, wait: int
) -> None:
    """The server has seen the end of the connection, but its message is still on the way."""
    await site.pop()
    request_id = await site.queued()
    await site.project()
    headers = {"apikey": site.owner_key} | ({"prefer": f"wait={wait}"} if wait else {})
    gone = Call(site.app, "POST", "/v2/generate/text/pop", headers)
    gone.transport.closing = True
    async with site.projected():
        await gone.start(json.dumps(POP | {"name": "gone"}).encode()).ended()
        assert gone.json["id"]
        job = await site.popped(name="next", wait=20)
        await site.reply(job["id"])
        status = (await site.status(request_id)).json()

    assert job["id"] != gone.json["id"]
    assert (status["done"], status["finished"], status["restarted"]) == (True, 1, 0)


async def test_a_waiting_status_ends_with_its_client(site: Site) -> None:
    request_id = await site.queued()
    await site.project()
    path = f"/v2/generate/chat/status/{request_id}"
    call = Call(site.app, "GET", path, {"prefer": "wait=30"}).start()
    await asyncio.sleep(0.05)

    call.leave()
    async with asyncio.timeout(20):
        await call.ended()

    assert not site.parts.watches._waiting
