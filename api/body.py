"""Reading request bodies: bounded in size and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from ipaddress import ip_address

import falcon.asgi

from api import disconnect
from api.pace import Pace, heavy
from handlers.errors import BadRequest, RequestTimeout, RequestTooLarge
from handlers.turns import Crowded, Turns

FIRST_BYTES = 2**20
AT_ONCE_BYTES = 128 * 2**20
"""Of bodies beyond their first part, in one process. Above the largest cap, or none would pass."""
WAITING_BYTES = 512 * 2**20
"""Of first parts whose senders wait for their turn."""
STALL_BYTES = 2**18
STALL_SECONDS = 5.0
"""Whose turn it is sends so many bytes within so long: 0.4 Mbit/s."""
BODY_SECONDS = 60.0
"""All of a body has to arrive within this. At its cap that is 5 Mbit/s."""

_NEIGHBOURS = 64
"""Bits of an IPv6 address that one caller has many of."""
_DRAIN_BYTES = 64 * 2**20
_DRAIN_SECONDS = 3.0
_DRAIN_CHUNK = 2**18


Turn = AbstractAsyncContextManager[None]


class Bodies:
    """Reads the bodies of one process: large ones take turns.

    A body costs a few times its size while it is read and taken apart, so many at once would cost
    memory without bound. The first part of each is read at once, which is all that most have, and
    all that a client gets who trickles. Which are taken apart when is a matter of `pace`.

    Turns are fair between addresses: nobody has shown a key yet, and a few who send slowly from one
    place would keep everybody's images out.
    """

    def __init__(
        self,
        address: Callable[[falcon.asgi.Request], str],
        *,
        seconds: float = BODY_SECONDS,
        at_once: int = AT_ONCE_BYTES,
        first: int = FIRST_BYTES,
        waiting: int = WAITING_BYTES,
        pace: Pace | None = None,
    ) -> None:
        """`address`: where a call comes from. `pace` may be shared: it is of the whole process."""
        self._address = address
        self._seconds = seconds
        self._pace = pace or Pace()
        self._first = first
        self._turns = Turns(at_once, waiting=waiting, seconds=seconds, sparing=True)

    def read(self, req: falcon.asgi.Request, most: int) -> Reading:
        """The whole body, at most `most` bytes of it, for as long as it is taken apart.

        Raise RequestTooLarge before anything is parsed: at once where Content-Length says so, else
        one byte past `most`. Raise RequestTimeout where the body, or its turn, takes longer than
        the deadline. Both close the connection (see api.errors), since what follows on it is the
        rest of the body.
        """
        return Reading(self, req, most)

    async def take(self, req: falcon.asgi.Request, most: int) -> tuple[bytes, Turn | None]:
        """The body, and its turn, if it has one, until `give_way`."""
        declared = req.content_length
        if declared is not None and declared > most:
            await _drain(req)
            raise _too_large(most)
        if disconnect.complete(req.scope) and (declared or 0) <= self._first:
            return _whole(req, await req.stream.read(most + 1), most), None
        turn: Turn | None = None
        try:
            async with asyncio.timeout(self._seconds):
                raw = await req.stream.read(min(self._first, most + 1))
                if len(raw) == self._first and not req.stream.eof:
                    turn = await self._turn(req, most if declared is None else declared)
                    raw = await _steadily(req, raw, most + 1)
            await _refuse_more(req, raw, most)
            return _whole(req, raw, most), turn
        except TimeoutError:
            await self.give_way(turn)
            raise RequestTimeout(
                f"The body did not arrive within {self._seconds:g} seconds."
            ) from None
        except BaseException:
            await self.give_way(turn)
            raise

    async def enter(self, raw: bytes) -> Pace | None:
        """Wait until a body may be taken apart; whom to tell once it is. Raise RequestTimeout."""
        if not heavy(raw):
            return None
        try:
            async with asyncio.timeout(self._seconds):
                await self._pace.enter()
        except TimeoutError:
            raise RequestTimeout(
                f"It was not this body's turn within {self._seconds:g} seconds."
            ) from None
        return self._pace

    async def give_way(self, turn: Turn | None) -> None:
        """Let as much be read by others."""
        if turn is not None:
            await turn.__aexit__(None, None, None)

    async def _turn(self, req: falcon.asgi.Request, size: int) -> Turn:
        """Wait until so much may be read. Raise RequestTimeout."""
        turn = self._turns.turn({_party(self._address(req))}, size, room=self._first)
        try:
            await turn.__aenter__()
        except Crowded:
            raise RequestTimeout(
                "Too many large bodies are being sent. Try again in a moment."
            ) from None
        return turn


class Reading:
    """One body while it is taken apart. A class, not a generator: there is one for each request."""

    def __init__(self, bodies: Bodies, req: falcon.asgi.Request, most: int) -> None:
        self._bodies = bodies
        self._req = req
        self._most = most
        self._turn: Turn | None = None
        self._pace: Pace | None = None

    async def __aenter__(self) -> bytes:
        raw, self._turn = await self._bodies.take(self._req, self._most)
        try:
            self._pace = await self._bodies.enter(raw)
        except BaseException:
            await self._bodies.give_way(self._turn)
            raise
        return raw

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pace is not None:
            self._pace.leave()
        if self._turn is not None:
            await self._bodies.give_way(self._turn)
            if kind is None:
                self._req.context.raw = b""  # what is not accounted for is not to stay


def _party(address: str) -> int:
    """Whoever has this address, as a number. Who has one of IPv6 has its neighbours, too."""
    parsed = ip_address(address)
    return int(parsed) if parsed.version == 4 else int(parsed) >> _NEIGHBOURS  # noqa: PLR2004


async def _steadily(req: falcon.asgi.Request, first: bytes, most: int) -> bytes:
    """A body from its first part on, up to `most` bytes, from somebody whose turn it is: who stalls
    is cut before the deadline."""
    parts = [first]
    left = most - len(first)
    while left > 0 and not req.stream.eof:
        async with asyncio.timeout(STALL_SECONDS):
            part = await req.stream.read(min(left, STALL_BYTES))
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _whole(req: falcon.asgi.Request, raw: bytes, most: int) -> bytes:
    if len(raw) > most:  # it came whole, so nothing is left to drain
        raise _too_large(most)
    if req.content_length is not None and len(raw) < req.content_length:
        raise BadRequest("The body ended early.")
    req.context.raw = raw  # for the log line of an unhandled error
    return raw


async def _refuse_more(req: falcon.asgi.Request, raw: bytes, most: int) -> None:
    if len(raw) > most:
        await _drain(req)
        raise _too_large(most)


def _too_large(most: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body may have at most {most} bytes.")


async def _drain(req: falcon.asgi.Request) -> None:
    """Take in and drop some of the rest.

    A client that writes its whole body before it reads would lose our answer to a reset connection.
    """
    left = _DRAIN_BYTES
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while left > 0 and not req.stream.eof:
                left -= len(await req.stream.read(_DRAIN_CHUNK)) or _DRAIN_CHUNK
    except TimeoutError:
        pass
