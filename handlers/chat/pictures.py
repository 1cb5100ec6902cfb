"""From the images of a request to what is attached to it: fetched, normalised, within bounds of
size, time and memory (spec, Images; Messages offload)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from handlers.accounts import Account
from handlers.chat import payload
from handlers.chat.attached import Attached, encoded_bytes
from handlers.chat.body import Message
from handlers.chat.images import (
    MAX_IMAGE_BYTES,
    MAX_TOTAL_BYTES,
    MAX_TOTAL_BYTES_UNTRUSTED,
    Placed,
)
from handlers.errors import (
    ChatImageStorageUnavailable,
    Refused,
    SourceImageSizeExceeded,
    SourceImageUrlInvalid,
    Unserved,
)
from handlers.fetch.fetcher import Fetcher
from handlers.images.pool import ImagePool
from handlers.store import Store
from handlers.turns import Crowded, Turns

WAIT_SECONDS = 10.0
NORMALISE_SECONDS = 30.0
"""For all images of a request, beside what they may take to be fetched. If each of them took all of
its own time, they would hold their memory for many minutes."""
WAITING_BYTES = 2**17
"""Of a request that waits for memory, beside its data URLs and its text."""
_AGAIN = "Nothing was queued or charged; try again in a moment."


class Offload(NamedTuple):
    """When the messages themselves become an object."""

    enabled: bool
    most: int  # bytes that stay inline
    compress: bool


class Pictures:
    """Loads the images of requests.

    store          None: there is none, and nothing can be attached
    at_once        bytes that the requests of this process may hold meanwhile; of one account those
                   of a single request, or as many as it leaves to others. Those that wait may have
                   as many, as they came
    fetch_seconds  for all images of a request that are fetched
    wait_seconds   that a request waits for its part of the memory
    more_seconds   for all of its images to be normalised, beside those for fetching them
    """

    def __init__(
        self,
        store: Store | None,
        fetcher: Fetcher,
        pool: ImagePool,
        *,
        at_once: int,
        fetch_seconds: float,
        offload: Offload,
        wait_seconds: float = WAIT_SECONDS,
        more_seconds: float = NORMALISE_SECONDS,
    ) -> None:
        self._store = store
        self._fetcher = fetcher
        self._pool = pool
        self._fetch_seconds = fetch_seconds
        self._seconds = fetch_seconds + more_seconds
        self._offload = offload
        self._at_once = at_once
        self._turns = Turns(at_once, waiting=at_once, seconds=wait_seconds, sparing=True)

    @asynccontextmanager
    async def loaded(
        self, account: Account, messages: Sequence[Message], sources: deque[Placed]
    ) -> AsyncIterator[Attached | None]:
        """What has to be stored beside the request; None for nothing. It is to be stored inside,
        where the memory that it takes is accounted for.

        messages  as workers get them; of image parts all but the URLs
        sources   their images in order, taken out one by one: so that data URLs are not held for
                  longer than they have to, nothing else should refer to them

        Raise what is wrong with an image, with its place; SourceImageSizeExceeded past the
        account's total; ChatImageStorageUnavailable without a store, or without memory soon.
        """
        check_total(account, sources)
        offloads = self._offload.enabled and self._store is not None
        text = len(payload.messages(messages)) if offloads else 0
        if not sources and text <= self._offload.most:
            yield None
            return
        if self._store is None or self._store.away:
            raise ChatImageStorageUnavailable
        share = min(share_of(sources, most_total(account), text), self._at_once)
        waiting = WAITING_BYTES + text + sum(len(each.url) for each in sources)
        loading = _Loading(self._fetcher, self._pool, account, sources, self._fetch_seconds)
        try:
            async with self._turns.turn({account.id}, share, room=waiting):
                yield self._attached(Attached(messages, await self._in_time(loading)))
        except Crowded:
            raise ChatImageStorageUnavailable(
                f"Too many images are being taken in right now. {_AGAIN}"
            ) from None

    async def close(self) -> None:
        """Let go of connections and processes."""
        await self._fetcher.close()
        await self._pool.close()

    async def _in_time(self, loading: _Loading) -> tuple[bytes, ...]:
        try:
            async with asyncio.timeout(self._seconds):
                return await loading.jpegs()
        except TimeoutError:
            raise ChatImageStorageUnavailable(
                f"The images could not be taken in within {self._seconds:g} seconds. {_AGAIN}"
            ) from None

    def _attached(self, attached: Attached) -> Attached:
        """The same, its messages an object where they are large."""
        if not self._offload.enabled or attached.inline_bytes() <= self._offload.most:
            return attached
        return attached._replace(offload=True, compress=self._offload.compress)


class _Loading:
    """The images of one request, one after the other."""

    def __init__(
        self,
        fetcher: Fetcher,
        pool: ImagePool,
        account: Account,
        sources: deque[Placed],
        seconds: float,
    ) -> None:
        self._fetcher = fetcher
        self._pool = pool
        self._parties = {account.id}
        self._sources = sources
        self._most = most_total(account)
        self._total = sum(each.data_bytes for each in sources)
        self._encoded = 0
        self._seconds = self._left = seconds

    async def jpegs(self) -> tuple[bytes, ...]:
        """All of them, normalised."""
        made: list[bytes] = []
        while self._sources:
            held = self._sources[0].held
            with _placed_at(self._sources[0].path):
                jpeg = await self._pool.normalise(await self._next(), self._parties, encoded=held)
                self._encoded += len(jpeg)
                _check(self._encoded, self._most, "encoded as JPEG, the images so far have")
            made.append(jpeg)
        return tuple(made)

    async def _next(self) -> bytes:
        """The next image as it came, or what a data URL holds of it."""
        source = self._sources.popleft()
        if source.held:
            return source.url.partition(",")[2].encode()
        image = await self._fetched(source.url)
        self._total += len(image)
        _check(self._total, self._most, "with this one, the images have")
        return image

    async def _fetched(self, url: str) -> bytes:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.timeout(self._left):
                image = await self._fetcher.fetch(url, most=MAX_IMAGE_BYTES)
        except TimeoutError:
            raise SourceImageUrlInvalid(
                f"the images did not all arrive within {self._seconds:g} seconds."
            ) from None
        self._left -= now() - began
        return image


def share_of(sources: Collection[Placed], most: int, text: int) -> int:
    """Bytes that loading and storing images holds at once, at most: the JPEGs beside what they are
    made of, and then beside the messages that they are inlined in.

    most  bytes that the account's images may have in all
    text  bytes of the messages without them; 0 where they are not going to be an object
    """
    jpegs = min(most, len(sources) * MAX_IMAGE_BYTES)
    held = sum(len(each.url) for each in sources)
    fetched = 0 if all(each.held for each in sources) else MAX_IMAGE_BYTES
    return jpegs + max(held + fetched, text and text + encoded_bytes(jpegs))


def check_total(account: Account, sources: Iterable[Placed]) -> None:
    """Hold what the data URLs decode to, all together, to the account's total. Raise
    SourceImageSizeExceeded."""
    _check(sum(each.data_bytes for each in sources), most_total(account), "The images decode to")


def most_total(account: Account) -> int:
    """Bytes that all images of a request of its may have."""
    return MAX_TOTAL_BYTES if account.vouched else MAX_TOTAL_BYTES_UNTRUSTED


def _check(total: int, most: int, what: str) -> None:
    if total > most:
        raise SourceImageSizeExceeded(
            f"{what} {total} bytes in all: at most {most} are allowed for this account."
        )


@contextmanager
def _placed_at(path: str) -> Iterator[None]:
    """Put the image's place in front of what is wrong with it."""
    try:
        yield
    except Unserved:
        raise
    except Refused as refused:
        raise type(refused)(f"{path}: {refused.message}", **refused.extra) from None
