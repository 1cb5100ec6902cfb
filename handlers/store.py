"""The object store: any that speaks S3, through the minio client.

What is stored is content: images and messages of requests, gone with them. Which objects there may
be is told by the log's state alone (handlers/objects.py); nothing here decides that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import BytesIO
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import structlog
import urllib3
from minio import Minio
from minio.deleteobjects import DeleteObject
from minio.error import MinioException, S3Error

from handlers.errors import ChatImageStorageUnavailable
from handlers.objects import is_messages

logger = structlog.get_logger()

T = TypeVar("T")

THREADS = 4
"""Calls to the store at once, in one process."""
CONNECT_SECONDS = 2.0
READ_SECONDS = 5.0
PUT_SECONDS = 20.0
"""For all objects of a request."""
DELETES_AT_ONCE = 1000


class Object(NamedTuple):
    """Something to store."""

    key: str
    body: bytes
    encoding: str = ""
    """Of the body, as Content-Encoding tells it: `gzip`, or none."""


class Place(NamedTuple):
    """Where the store is, and how one gets in."""

    endpoint: str  # URL, http or https
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
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._client = _client(place, place.endpoint)
        self._signer = _client(place, place.public)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")

    async def put(self, objects: Iterable[Object], *, seconds: float = PUT_SECONDS) -> None:
        """Store all of them, within so many seconds. What was stored before it failed stays."""
        try:
            async with asyncio.timeout(min(seconds, PUT_SECONDS)):
                for each in objects:
                    await self._run(self._put, each)
        except TimeoutError:
            raise ChatImageStorageUnavailable from None

    async def get(self, key: str) -> bytes:
        """One object; raise ObjectMissing."""
        return await self._run(self._get, key)

    def url(self, key: str, seconds: int) -> str:
        """Where anybody may fetch an object for so many seconds. Signed here: nothing is asked."""
        return self._signer.presigned_get_object(
            self._bucket(key), key, expires=timedelta(seconds=seconds)
        )

    async def delete(self, keys: Sequence[str]) -> set[str]:
        """Delete objects; which of them are gone, or never were. Raise nothing: the others stay."""
        gone: set[str] = set()
        for bucket in (self._place.images, self._place.messages):
            own = [key for key in keys if self._bucket(key) == bucket and key not in gone]
            for at in range(0, len(own), DELETES_AT_ONCE):
                try:
                    gone |= await self._run(self._delete, bucket, own[at : at + DELETES_AT_ONCE])
                except ChatImageStorageUnavailable:
                    return gone
        return gone

    async def keys(self) -> list[str]:
        """The names of all objects in its buckets, whose ever they are."""
        return await self._run(self._keys)

    def close(self) -> None:
        """Let go of its threads. Calls under way end by their own deadlines."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work, *args)
        except (MinioException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            logger.warning("store_is_away", reason=str(error))
            raise ChatImageStorageUnavailable from error

    def _bucket(self, key: str) -> str:
        return self._place.messages if is_messages(key) else self._place.images

    def _put(self, each: Object) -> None:
        bucket, messages = self._bucket(each.key), is_messages(each.key)
        headers = {"Cache-Control": "no-transform"} if messages else {}
        if each.encoding:
            headers["Content-Encoding"] = each.encoding
        try:
            self._send(bucket, each, headers, messages)
        except S3Error as error:
            if error.code != "NoSuchBucket":
                raise
            self._client.make_bucket(bucket)
            self._send(bucket, each, headers, messages)

    def _send(self, bucket: str, each: Object, headers: dict[str, str], messages: bool) -> None:
        self._client.put_object(
            bucket,
            each.key,
            BytesIO(each.body),
            len(each.body),
            content_type="application/json" if messages else "image/jpeg",
            metadata=dict(headers),
        )

    def _get(self, key: str) -> bytes:
        try:
            answer = self._client.get_object(self._bucket(key), key)
        except S3Error as error:
            if error.code in ("NoSuchKey", "NoSuchBucket"):
                raise ObjectMissing(key) from error
            raise
        try:
            return answer.read()
        finally:
            answer.close()
            answer.release_conn()

    def _delete(self, bucket: str, keys: Sequence[str]) -> set[str]:
        failed = self._client.remove_objects(bucket, [DeleteObject(key) for key in keys])
        return set(keys) - {str(each.name) for each in failed}

    def _keys(self) -> list[str]:
        found: list[str] = []
        for bucket in dict.fromkeys((self._place.images, self._place.messages)):
            found += (str(each.object_name) for each in self._client.list_objects(bucket))
        return found


def _client(place: Place, endpoint: str) -> Minio:
    parts = urlsplit(endpoint)
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
    return Minio(
        parts.netloc,
        access_key=place.access_key,
        secret_key=place.secret_key,
        secure=parts.scheme == "https",
        region=place.region,
        http_client=urllib3.PoolManager(timeout=timeout, retries=False, maxsize=THREADS),
    )
