"""Reading request bodies: bounded in size and in time."""

from __future__ import annotations

import asyncio

import falcon.asgi

from api import disconnect
from handlers.errors import BadRequest, RequestTimeout, RequestTooLarge

BODY_SECONDS = 60.0
"""All of a body has to arrive within this. At its cap that is 5 Mbit/s."""

_DRAIN_BYTES = 64 * 2**20
_DRAIN_SECONDS = 3.0
_DRAIN_CHUNK = 2**18


async def read(req: falcon.asgi.Request, most: int, *, seconds: float = BODY_SECONDS) -> bytes:
    """The whole body, at most `most` bytes of it.

    Raise RequestTooLarge before anything is parsed: at once where Content-Length says so, else one
    byte past `most`. Raise RequestTimeout where the body takes longer than `seconds`. Both refusals
    close the connection (see api.errors), since what follows on it is the rest of the body.
    """
    declared = req.content_length
    if declared is not None and declared > most:
        await _drain(req)
        raise _too_large(most)
    stream = req.stream
    if disconnect.complete(req.scope):  # it came with the head, as most do: nothing to wait for
        raw = await stream.read(most + 1)
    else:
        try:
            async with asyncio.timeout(seconds):
                raw = await stream.read(most + 1)
        except TimeoutError:
            raise RequestTimeout(f"The body did not arrive within {seconds:g} seconds.") from None
    if len(raw) > most:
        await _drain(req)
        raise _too_large(most)
    if declared is not None and len(raw) < declared:
        raise BadRequest("The body ended early.")
    req.context.raw = raw  # for the log line of an unhandled error
    return raw


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
