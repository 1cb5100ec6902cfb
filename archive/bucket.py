"""The bucket that holds the archive: objects are written once, read back, listed in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from itertools import islice
from typing import NamedTuple, TypeVar

import urllib3
from minio.deleteobjects import DeleteObject
from minio.error import S3Error
from urllib3.exceptions import ProtocolError

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

T = TypeVar("T")

PAGE = 1000
"""Names that one call lists, as S3 has it."""

_CONNECTIONS = 64
"""That are kept for the next call: a process asks for many partitions at once."""


class ArchiveUnavailable(Exception):
    """The object store does not answer, or refuses."""


class ArchiveMissing(Exception):
    """An object that was listed is not there."""


class Place(NamedTuple):
    """Where an archive is."""

    endpoint: str  # URL, http or https, without a path
    access: Access
    bucket: str


class Bucket:
    """Calls block, each for some seconds at most. Raise ArchiveUnavailable.

    It may be used from several threads.

    page  names that one call lists
    """

    def __init__(
        self, place: Place, *, connect: float = 2.0, read: float = 10.0, page: int = PAGE
    ) -> None:
        self._bucket = place.bucket
        self._names = page
        timeout = urllib3.Timeout(connect=connect, read=read)
        self._client = client(place.endpoint, place.access, timeout, connections=_CONNECTIONS)

    def put(self, key: str, body: bytes, *, first: bool = False) -> None:
        """Store an object. Only for the first one of a log a bucket is made: where one is gone,
        what was in it is missing, and somebody has to look."""
        self._run(lambda: self._put(key, body, first=first))

    def get(self, key: str) -> bytes:
        """All of an object; raise ArchiveMissing."""
        return self._run(lambda: self._get(key))

    def names(self, prefix: str, after: str = "") -> Iterator[str]:
        """The names that begin so, in order, those behind `after`. What comes or goes meanwhile may
        be told or not."""
        while page := self._run(partial(self._page, prefix, after)):
            yield from page
            if len(page) < self._names:
                return
            after = page[-1]

    def folders(self, prefix: str) -> list[str]:
        """What stands between `prefix` and the next `/`, in order; not names that end there."""
        return self._run(lambda: self._folders(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is not there is gone already."""
        for key in keys:
            self._run(partial(self._delete, key))

    def _run(self, work: Callable[[], T]) -> T:
        """A connection that the store closed between two calls is no answer: every call may be
        made twice."""
        try:
            try:
                return work()
            except ProtocolError:
                return work()
        except FAILURES as error:
            raise ArchiveUnavailable(reason(error)) from error

    def _put(self, key: str, body: bytes, *, first: bool) -> None:
        try:
            self._send(key, body)
        except S3Error as error:
            if error.code != "NoSuchBucket" or not first:
                raise
            make_bucket(self._client, self._bucket)
            self._send(key, body)

    def _send(self, key: str, body: bytes) -> None:
        self._client.put_object(
            self._bucket,
            key,
            BytesIO(body),
            len(body),
            content_type="application/octet-stream",
            part_size=PART_BYTES,
        )

    def _get(self, key: str) -> bytes:
        body = read(self._client, self._bucket, key)
        if body is None:
            raise ArchiveMissing(key)
        return body

    def _page(self, prefix: str, after: str) -> list[str]:
        listing = self._client.list_objects(
            self._bucket, prefix=prefix, recursive=True, start_after=after or None
        )
        try:
            return [str(each.object_name) for each in islice(listing, self._names)]
        except S3Error as error:
            if error.code not in NOTHING_THERE:
                raise
            return []

    def _folders(self, prefix: str) -> list[str]:
        try:
            found = [
                str(each.object_name) for each in self._client.list_objects(self._bucket, prefix)
            ]
        except S3Error as error:
            if error.code not in NOTHING_THERE:
                raise
            return []
        return sorted(
            each.removeprefix(prefix).removesuffix("/") for each in found if each.endswith("/")
        )

    def _delete(self, key: str) -> None:
        # One by one: stores differ in what they say of several.
        list(self._client.remove_objects(self._bucket, [DeleteObject(key)]))
