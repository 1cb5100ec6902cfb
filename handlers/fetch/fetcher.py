"""Fetches images from URLs of strangers, bounded in where it connects, in bytes and in time.

Every hop is a connection of its own that a Dialer makes (handlers/fetch/dial.py), so no redirect
and no second answer of a name server leads past the check (spec, Images).
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from importlib.metadata import version
from io import BytesIO

import httpcore
import structlog

from handlers.errors import (
    Refused,
    SourceImageSizeExceeded,
    SourceImageUrlInvalid,
    SourceImageUrlRefused,
)
from handlers.fetch.dial import STEPS, Dialer, Resolve, Steps
from handlers.fetch.names import Names
from handlers.fetch.targets import Target, target

logger = structlog.get_logger()

MAX_REDIRECTS = 3
HEAD_BYTES = 32 * 1024
"""All that may come before an answer's body, interim answers included."""
PIECES = 10_000
"""That a body may come in: an image of the largest size has 520 bytes in each then. A body of one
byte in each chunk would cost seconds of this process to read."""
PIECES_AT_ONCE = 64
"""Read before others have their turn."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OK = 200
_PLAIN = frozenset({b"", b"identity"})
NOTHING: Set[tuple[str, int]] = frozenset()


class Fetcher:
    """Fetches over HTTP/1.1, without a proxy, a retry or a cookie.

    seconds      for one image, redirects included
    ports        that are connected to
    resolve      a host's addresses; None: by /etc/hosts and the system's name servers
    open_to      addresses and ports that are connected to though they are denied: for tests
    ssl_context  None: the certificate authorities of the system, and of certifi
    network      what makes connections to addresses; None: sockets
    steps        for parts of it
    """

    def __init__(
        self,
        *,
        seconds: float,
        ports: frozenset[int],
        resolve: Resolve | None = None,
        open_to: Set[tuple[str, int]] = NOTHING,
        ssl_context: ssl.SSLContext | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
        steps: Steps = STEPS,
    ) -> None:
        self._seconds = seconds
        self._ports = ports
        self._names = Names()
        self._resolve = resolve or self._names.resolve
        self._open_to = open_to
        self._ssl = ssl_context or _public_authorities()
        self._network = network or httpcore.AnyIOBackend()
        self._steps = steps
        self._user_agent = f"hordechat/{version('hordechat')}"

    async def fetch(self, url: str, *, most: int) -> bytes:
        """What the URL answers with, in at most `most` bytes.

        Raise SourceImageUrlRefused for a URL, or one that it redirects to, that nothing is fetched
        from; SourceImageSizeExceeded; SourceImageUrlInvalid for everything else that went wrong.
        Their sentences begin in lower case: where the URL stands in the request belongs before.
        """
        at: Target | None = None
        try:
            async with asyncio.timeout(self._seconds):
                at = target(url, self._ports)
                for _ in range(MAX_REDIRECTS + 1):
                    answer = await self._hop(at, most)
                    if not isinstance(answer, Target):
                        return answer
                    at = answer
                raise SourceImageUrlInvalid(f"the URL redirects more than {MAX_REDIRECTS} times.")
        except Refused as refused:
            _tell(at, refused.message)
            raise
        except TimeoutError:
            overdue = f"the image did not arrive within {self._seconds:g} seconds."
            _tell(at, overdue)
            raise SourceImageUrlInvalid(overdue) from None
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.TimeoutException,
            OSError,  # of TLS, after the handshake
        ) as error:
            _tell(at, type(error).__name__)  # its text may quote what the origin sent
            raise SourceImageUrlInvalid("the image could not be fetched.") from None

    async def close(self) -> None:
        """Let go of what resolves names."""
        await self._names.close()

    async def _hop(self, at: Target, most: int) -> bytes | Target:
        """The body, or where the answer redirects to."""
        async with self._asked(at) as (answer, dialer):
            if answer.status in _REDIRECTS:
                return target(_location(answer), self._ports, base=at)
            if answer.status != _OK:
                raise SourceImageUrlInvalid("the URL does not answer with status 200.")
            if not _PLAIN.issuperset(map(bytes.lower, _headers(answer, b"content-encoding"))):
                raise SourceImageUrlInvalid("the URL answers with an encoded body.")
            if any(int(size) > most for size in _headers(answer, b"content-length")):
                raise _too_large(most)
            # Whoever sends chunks may need as much again to say so.
            dialer.allowed = 2 * most + HEAD_BYTES
            return await _body(answer, most)

    @asynccontextmanager
    async def _asked(self, at: Target) -> AsyncIterator[tuple[httpcore.Response, Dialer]]:
        """The head of the answer, on a connection that ends with the block."""
        dialer = Dialer(
            self._resolve,
            allowed=HEAD_BYTES,
            open_to=self._open_to,
            network=self._network,
            steps=self._steps,
        )
        url = httpcore.URL(
            scheme=at.scheme.encode(), host=at.host.encode(), port=at.port, target=at.path
        )
        connection = httpcore.AsyncHTTPConnection(
            url.origin, ssl_context=self._ssl, network_backend=dialer
        )
        try:
            async with connection.stream(
                "GET",
                url,
                headers=[
                    ("Host", at.authority),
                    ("User-Agent", self._user_agent),
                    ("Accept", "*/*"),
                    ("Accept-Encoding", "identity"),
                    ("Connection", "close"),
                ],
                extensions={
                    "timeout": {
                        "connect": self._steps.connect,
                        "read": self._steps.read,
                        "write": self._steps.read,
                    }
                },
            ) as answer:
                yield answer, dialer
        finally:
            await dialer.close()


async def _body(answer: httpcore.Response, most: int) -> bytes:
    body = BytesIO()  # gives its bytes away without a copy
    pieces = 0
    async for piece in answer.aiter_stream():
        body.write(piece)
        if body.tell() > most:
            raise _too_large(most)
        pieces += 1
        if pieces > PIECES:
            raise SourceImageUrlInvalid("the image comes in too many pieces.")
        if pieces % PIECES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return body.getvalue()


def _headers(answer: httpcore.Response, name: bytes) -> list[bytes]:
    return [value for key, value in answer.headers if key.lower() == name]


def _location(answer: httpcore.Response) -> str:
    """Where a redirect leads, as it says."""
    found = _headers(answer, b"location")
    if len(found) != 1:
        raise SourceImageUrlInvalid("the URL redirects without saying where to.")
    try:
        return found[0].decode()
    except UnicodeDecodeError:
        raise SourceImageUrlRefused("the URL redirects to one that cannot be read.") from None


def _too_large(most: int) -> SourceImageSizeExceeded:
    return SourceImageSizeExceeded(f"the image is larger than {most} bytes.")


def _tell(at: Target | None, reason: str) -> None:
    """Log the host alone: a URL is what a user wrote, and its query may hold a key."""
    logger.info("image_not_fetched", host="" if at is None else at.host, reason=reason)


@functools.cache
def _public_authorities() -> ssl.SSLContext:
    """Made once a process: reading the certificates takes 50 ms."""
    return httpcore.default_ssl_context()
