"""Objects that their digest seals: packed, compressed, and opened only as what they were."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

_LEVEL = 6
"""Of gzip: twice as fast as 9, and hardly larger."""


class Damaged(Exception):
    """An object of the archive is not what its name says."""


class Sealed(NamedTuple):
    """An object and what it is known by."""

    digest: str
    """SHA-256 of the body, hexadecimal."""
    body: bytes


def seal(value: object) -> Sealed:
    """The object that holds a value. The same value gives the same bytes."""
    body = gzip.compress(msgspec.msgpack.encode(value), _LEVEL, mtime=0)
    return Sealed(hashlib.sha256(body).hexdigest(), body)


def unseal(key: str, digest: str, body: bytes, decode: Callable[[bytes], T]) -> T:
    """The value that an object holds; raise Damaged where it is not the one with this digest.

    key  of the object, to be told
    """
    if hashlib.sha256(body).hexdigest() != digest:
        raise Damaged(f"{key} has another digest")
    try:
        return decode(gzip.decompress(body))
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise Damaged(f"{key}: {error}") from error
