"""The object store: any that speaks S3, through the minio client.

What is stored is content: images and messages of requests, gone with them. Which objects there may
be is told by the log's state alone (handlers/objects.py); nothing here decides that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import islice
from typing import NamedTuple, TypeVar

import structlog
import urllib3
from minio.deleteobjects import DeleteObject
from minio.error import S3Error
from urllib3.exceptions import HTTPError, ProtocolError

from archive.s3 import (
    FAILURES,
    NOTHING_THERE,
    PART_BYTES,
    Access,
    client,
    make_bucket,
    read,
    reason,
)
from handlers.errors import ChatImageStorageUnavailable
from handlers.objects import is_messages
from handlers.threads import Busy, Threads

logger = structlog.get_logger()

T = TypeVar("T")

THREADS = 4
"""Calls to the store at once, in one process."""
PUT_SECONDS = 20.0
"""For all objects of a request."""
AWAY_SECONDS = 2.0
"""How long a store that was away is taken to be so."""
PAGE = 1000
"""Objects that one call lists, as S3 has it."""


class Bounds(NamedTuple):
    """How long calls may take, in seconds, and how much one does."""

    connect: float = 2.0
    read: float = 5.0
    """From one piece of an answer to the next."""
    call: float = 10.0
    """Of all of a call that stores nothing, with its wait for a thread."""
    waiting: int = 256
    """Calls that may wait for a thread."""
    page: int = PAGE
    """Objects that a call lists."""
    deletes: int = 100
    """Objects that a call deletes: S3 takes ten times as many, but has to answer in time."""


USUAL = Bounds()


class Object(NamedTuple):
    """Something to store."""

    key: str
    body: bytes
    encoding: str = ""
    """Of the body, as Content-Encoding tells it: `gzip`, or none."""


class Found(NamedTuple):
    """An object in one of the buckets."""

    bucket: str
    key: str
    size: int  # bytes


class Place(NamedTuple):
    """Where the store is, and how one gets in."""

    endpoint: str  # URL, http or https, without a path
    public: str  # the same as workers reach it; signed URLs name it
    access_key: str
    secret_key: str
    region: str
    images: str  # bucket
    messages: str  # bucket


class ObjectMissing(Exception):
    """An object that should be there is not."""


class Store:
    """Puts, gets, signs and deletes the objects of requests.

    Its calls block, so a few threads do them. Raise ChatImageStorageUnavailable where the store is
    away, or takes too long.

    now    the time that URLs are signed at
    ticks  seconds of a clock that only goes forward
    """

    def __init__(
        self,
        place: Place,
        bounds: Bounds = USUAL,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._bounds = bounds
        timeout = urllib3.Timeout(connect=bounds.connect, read=bounds.read)
        access = Access(place.access_key, place.secret_key, place.region)
        self._client = client(place.endpoint, access, timeout, connections=THREADS)
        self._signer = client(place.public, access, timeout, connections=THREADS)
        self._threads = Threads(THREADS, waiting=bounds.waiting, name="store")
        self._now = now
        self._ticks = ticks
        self._failed_at: float | None = None
        self._silences = 0
        """Calls that got no answer."""
        self._calls = 0
        """Under way or waiting."""

    @property
    def away(self) -> bool:
        """Whether the last call found the store away, a moment ago; after that, while the next try
        has no answer."""
        if self._failed_at is None:
            return False
        return self._calls > 0 or self._ticks() - self._failed_at < AWAY_SECONDS

    async def put(self, objects: Iterable[Object], *, seconds: float = PUT_SECONDS) -> None:
        """Store all of them, within so many seconds. What was stored before it failed stays."""
        try:
            async with asyncio.timeout(min(seconds, PUT_SECONDS)):
                for each in objects:
                    await self._run(self._put, each, seconds=PUT_SECONDS)
        except TimeoutError:
            raise ChatImageStorageUnavailable from None

    async def get(self, key: str) -> bytes:
        """One object, as it was before it was encoded; raise ObjectMissing."""
        return await self._run(self._get, key)

    async def holds(self, key: str, bucket: str = "") -> bool:
        """Whether there is such an object, where it belongs or in that bucket."""
        return await self._run(self._holds, bucket or self.bucket(key), key)

    def url(self, key: str, seconds: int) -> str:
        """Where anybody may fetch an object for so many seconds. Signed here: nothing is asked."""
        return self._signer.presigned_get_object(
            self.bucket(key), key, expires=timedelta(seconds=seconds), request_date=self._now()
        )

    async def delete(self, keys: Sequence[str]) -> set[str]:
        """Delete objects; which of them are gone, or never were. Raise nothing: the others stay.

        In each of its buckets: which of them is for messages may have been decided anew.
        """
        gone: set[str] = set()
        for at in range(0, len(keys), self._bounds.deletes):
            page = keys[at : at + self._bounds.deletes]
            left = set(page)
            for bucket in self._buckets():
                try:
                    left &= await self._run(self._delete, bucket, page)
                except ChatImageStorageUnavailable:
                    return gone
            gone |= left
        return gone

    async def pages(self) -> AsyncIterator[list[Found]]:
        """All objects in its buckets, whose ever they are, page by page. What comes or goes
        meanwhile may be told or not."""
        for bucket in self._buckets():
            after = ""
            while page := await self._run(self._list, bucket, after):
                yield page
                after = page[-1].key

    async def keys(self) -> list[str]:
        """The names of all objects in its buckets, whose ever they are."""
        return [each.key async for page in self.pages() for each in page]

    def bucket(self, key: str) -> str:
        """Where an object of this name belongs."""
        return self._place.messages if is_messages(key) else self._place.images

    def close(self) -> None:
        """Let go of its threads. Calls under way end by their own deadlines."""
        self._threads.close()

    async def _run(self, work: Callable[..., T], *args: object, seconds: float | None = None) -> T:
        silences = self._silences
        self._calls += 1
        try:
            async with asyncio.timeout(seconds or self._bounds.call):
                result = await self._threads.run(
                    lambda: self._attempt(lambda: work(*args), silences)
                )
        except Busy as error:
            raise ChatImageStorageUnavailable from error
        except FAILURES as error:  # TimeoutError is an OSError
            self._failed(error)
            raise ChatImageStorageUnavailable from error
        except ObjectMissing:
            self._answered()
            raise
        else:
            self._answered()
            return result
        finally:
            self._calls -= 1

    def _attempt(self, work: Callable[[], T], silences: int) -> T:
        """In a thread. Silent where others found the store to be, while this call waited for it.

        A connection that the store closed between two calls is no answer: every call may be made
        twice.
        """
        if silences != self._silences:
            raise TimeoutError("others wait in vain")
        try:
            try:
                return work()
            except ProtocolError:
                return work()
        except (HTTPError, OSError):
            self._silences += 1
            raise

    def _answered(self) -> None:
        if self._failed_at is not None:
            self._failed_at = None
            logger.info("store_is_back")

    def _failed(self, error: Exception) -> None:
        if self._failed_at is None:  # said once for each absence
            logger.warning("store_is_away", reason=reason(error))
        self._failed_at = self._ticks()

    def _buckets(self) -> list[str]:
        return list(dict.fromkeys((self._place.images, self._place.messages)))

    def _put(self, each: Object) -> None:
        bucket = self.bucket(each.key)
        try:
            self._send(bucket, each)
        except S3Error as error:
            if error.code != "NoSuchBucket":
                raise
            make_bucket(self._client, bucket)
            self._send(bucket, each)

    def _send(self, bucket: str, each: Object) -> None:
        messages = is_messages(each.key)
        headers: dict[str, str | list[str] | tuple[str]] = {}
        if messages:
            headers["Cache-Control"] = "no-transform"
        if each.encoding:
            headers["Content-Encoding"] = each.encoding
        self._client.put_object(
            bucket,
            each.key,
            BytesIO(each.body),
            len(each.body),
            content_type="application/json" if messages else "image/jpeg",
            metadata=headers,
            part_size=PART_BYTES,
        )

    def _get(self, key: str) -> bytes:
        body = read(self._client, self.bucket(key), key)
        if body is None:
            raise ObjectMissing(key)
        return body

    def _holds(self, bucket: str, key: str) -> bool:
        try:
            self._client.stat_object(bucket, key)
        except S3Error as error:
            if error.code not in NOTHING_THERE:
                raise
            return False
        return True

    def _delete(self, bucket: str, keys: Sequence[str]) -> set[str]:
        try:
            told = list(self._client.remove_objects(bucket, [DeleteObject(key) for key in keys]))
        except S3Error as error:
            if error.code not in NOTHING_THERE:
                raise
            return set(keys)
        stayed = [each for each in told if each.code not in NOTHING_THERE]
        if stayed:
            first = stayed[0]
            logger.warning(
                "objects_not_deleted", count=len(stayed), code=first.code, key=first.name
            )
        return set(keys) - {str(each.name) for each in stayed}

    def _list(self, bucket: str, after: str) -> list[Found]:
        """A page of those whose names sort behind `after`."""
        listing = self._client.list_objects(bucket, recursive=True, start_after=after or None)
        try:
            return [
                Found(bucket, str(each.object_name), each.size or 0)
                for each in islice(listing, self._bounds.page)
            ]
        except S3Error as error:
            if error.code not in NOTHING_THERE:
                raise
            return []
