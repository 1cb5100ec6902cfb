"""A client of the object store: any that speaks S3, with deadlines of ours and no retries."""

from __future__ import annotations

from typing import NamedTuple
from xml.etree.ElementTree import ParseError

import urllib3
from minio import Minio
from minio.error import MinioException, S3Error
from urllib3.exceptions import HTTPError

from archive.endpoints import Endpoint

FAILURES = (MinioException, HTTPError, OSError, ValueError, ParseError)
"""What the client raises: an answer that is none is told by ValueError or ParseError."""

NOTHING_THERE = ("NoSuchKey", "NoSuchBucket")
"""Codes of an S3Error for what is not there."""

PART_BYTES = 1024**3
"""More than any object has. In parts, an upload that fails leaves some that no listing shows."""

_TOLD = 200
"""Characters of a failure that are logged: a store may answer a page of HTML."""


class Access(NamedTuple):
    """How one gets into a store."""

    access_key: str
    secret_key: str
    region: str


def client(endpoint: str, access: Access, timeout: urllib3.Timeout, *, connections: int) -> Minio:
    """A client for so many calls at once. Raise ValueError for what is no endpoint."""
    where = Endpoint.parse(endpoint)
    return Minio(
        where.netloc,
        access_key=access.access_key,
        secret_key=access.secret_key,
        secure=where.scheme == "https",
        region=access.region,
        http_client=urllib3.PoolManager(timeout=timeout, retries=False, maxsize=connections),
    )


def make_bucket(made: Minio, bucket: str) -> None:
    """Make a bucket, unless somebody was quicker. Raise what the client raises."""
    try:
        made.make_bucket(bucket)
    except S3Error as error:
        if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise


def read(made: Minio, bucket: str, key: str) -> bytes | None:
    """All of an object; None where there is none. Raise what the client raises."""
    try:
        answer = made.get_object(bucket, key)
    except S3Error as error:
        if error.code in NOTHING_THERE:
            return None
        raise
    try:
        return answer.read()
    finally:
        answer.close()
        answer.release_conn()


def reason(error: BaseException | None) -> str:
    """Why the store did not do as it was asked, in its own words and short."""
    told = f"{error.code}: {error.message}" if isinstance(error, S3Error) else str(error)
    return f"{type(error).__name__}: {told}"[:_TOLD]
