"""Ends a handler when its client goes away: an ASGI wrapper (design section 9).

Neither Falcon nor uvicorn tells a responder that waits. Without this a long poll outlives its
client, and a job would go to nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GRACE = 0.1
"""Seconds after the body before anyone watches: most handlers are done by then, for free."""


_KEY = "hordechat.call"


def watch(scope: Scope) -> None:
    """Watch this request's client at once: its handler is about to wait, or to take something.

    Nothing happens where the body is not complete, or the app is not wrapped.
    """
    call = scope.get(_KEY)
    if isinstance(call, _Call) and call.complete:
        call.watch()


def complete(scope: Scope) -> bool:
    """Whether all of the request's body is here, as far as we know."""
    call = scope.get(_KEY)
    return isinstance(call, _Call) and call.complete


def unless_delivered(scope: Scope, undo: Callable[[], object]) -> None:
    """Call `undo` if this request's client is gone by the time of its answer's last byte.

    Also where nobody watches: the answer would vanish in a closed connection, and what it hands
    over with it. What the client's side of the network still loses, only a lease can find.
    """
    call = scope.get(_KEY)
    if isinstance(call, _Call):
        call.undo = undo


def deliver_within(scope: Scope, seconds: float) -> None:
    """Hang up on this request's client if it has not taken all of its answer in so many seconds."""
    call = scope.get(_KEY)
    if isinstance(call, _Call):
        call.deliver_within(seconds)


class CancelOnDisconnect:
    """Cancels the handler of a request whose client disconnects.

    Only after the body is complete does it read `receive` beside the handler, so it takes no byte
    of the body away from it.
    """

    def __init__(self, app: App, *, grace: float = GRACE) -> None:
        self._app = app
        self._grace = grace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; return quietly where its client left."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = _Call(receive, send, self._grace)
        scope[_KEY] = call
        try:
            await self._app(scope, call.receive, call.send)
        except asyncio.CancelledError:
            if not call.left:
                raise
        finally:
            # With a request that knows its call, which knows the request, each would leave its own
            # little garbage until it is looked for, and with a thousand clients that takes long.
            del scope[_KEY]
            call.close()


class _Call:
    """One request: its channel, and the watcher beside its handler."""

    def __init__(self, receive: Receive, send: Send, grace: float) -> None:
        self._receive = receive
        self._send = send
        self._grace = grace
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[Message] | None = None
        self._handler: asyncio.Task[Any] | None = None
        self._answered = False
        self._delivered = False
        self.undo: Callable[[], object] | None = None
        self.complete = False
        """The body is."""
        self.left = False
        """The client disconnected, and the handler was cancelled for it."""

    async def receive(self) -> Message:
        """The handler's side of `receive`."""
        if self._timer is not None:
            # The handler itself wants to know what comes after its body.
            return await asyncio.shield(self.watch())
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.complete = True
            self._handler = asyncio.current_task()
            self._timer = asyncio.get_running_loop().call_later(self._grace, self.watch)
        return message

    async def send(self, message: dict[str, Any]) -> None:
        """The handler's side of `send`."""
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            # The server says "disconnect" after the last byte, too: that is no reason to cancel.
            self._answered = True
            self._delivered = not self.left and not _closing(self._send)
        await self._send(message)

    def close(self) -> None:
        """The handler has ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self.left and self._handler is not None:
            self._handler.uncancel()
        self._timer = self._deadline = self._watcher = self._handler = None
        if self.undo is not None and not self._delivered:
            self.undo()

    def watch(self) -> asyncio.Task[Message]:
        """Watch from now on, if nobody does."""
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._until_gone())
        return self._watcher

    def deliver_within(self, seconds: float) -> None:
        """Hang up after so many seconds."""
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._hang_up)

    def _hang_up(self) -> None:
        transport = _transport(self._send)
        if transport is not None:
            transport.abort()
        self._end()

    async def _until_gone(self) -> Message:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
        self._end()
        return message

    def _end(self) -> None:
        """There is nobody to answer any more."""
        if not self._answered and not self.left and self._handler is not None:
            self.left = True
            self._handler.cancel()


def _closing(send: Send) -> bool:
    """Whether what is sent now goes nowhere. `receive` tells it some turns of the loop later only.

    With a server that hides its transport the question stays open.
    """
    transport = _transport(send)
    return transport is not None and bool(transport.is_closing())


def _transport(send: Send) -> Any:
    """uvicorn's `send` is a method of the exchange that knows its transport; None elsewhere."""
    return getattr(getattr(send, "__self__", None), "transport", None)
