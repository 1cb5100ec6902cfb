"""JSON from outside: bounded before it is decoded, and refused by path and reason.

msgspec refuses NaN, Infinity, numbers beyond a double, lone surrogates, raw control characters and
bad UTF-8 by itself. What it leaves to us: nesting (it recurses, and the depth that trips differs by
Python version), repeated keys (the last one wins) and U+0000 (which Postgres cannot store).
Everything here is linear in the size of the body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from handlers.errors import BadRequest, NulByteInPayload

Kind = TypeVar("Kind")

MAX_NESTING = 64
"""Levels of objects and arrays. The deepest valid document, a chat tool's schema, has about 30."""
MAX_CONTAINERS = 200_000
MAX_QUOTES = 1_200_000
"""No valid body has more of these: they bound how long a hostile one keeps the loop busy. A message
of quotation marks alone has 1,048,576, and no other valid body has nearly as many containers."""

INVALID = "Input payload validation failed"
_SHOWN = 200
_SHOWN_KEY = 80

_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_AT = " - at `$"
_PATH = re.compile(r"(?:\.[A-Za-z0-9_]+|\[(?:\d+|\.\.\.)\])+")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


class Fault(NamedTuple):
    """Where a document is not what was expected."""

    path: str
    """As `messages[0].role`; empty for the document itself."""
    reason: str
    unknown: bool
    """The path names a key that does not belong there."""


class Misfit(Exception):
    """The document is JSON, but not of the expected shape."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.fault = fault


def malformed(reason: str) -> BadRequest:
    """The refusal of a body that is not JSON that we read."""
    return BadRequest(f"The body is not valid JSON: {reason}", errors={"": reason})


def invalid(fault: Fault) -> BadRequest:
    """The refusal of a value that has the wrong type or is out of range."""
    return BadRequest(INVALID, errors={fault.path: fault.reason})


def decode(decoder: msgspec.json.Decoder[Kind], raw: bytes) -> Kind:
    """Decode a body. Raise BadRequest where it is not JSON or too deep, Misfit for its shape."""
    check_bounds(raw)
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise Misfit(fault_of(str(error))) from None
    except msgspec.DecodeError as error:
        raise malformed(str(error)[:_SHOWN]) from None


def fault_of(text: str) -> Fault:
    """Read msgspec's sentence: `Expected ... - at `$.path``.

    The sentence may quote the sender's value whole, which may look like a place: so it is taken
    from the end, in one pass, and believed only where it is a path.
    """
    reason, at, place = text.rpartition(_AT)
    if at and place.endswith("`") and len(place) <= _SHOWN and _PATH.fullmatch(place[:-1]):
        path = place[:-1].removeprefix(".")
    else:
        reason, path = text, ""
    named = _UNKNOWN.fullmatch(reason) or _MISSING.fullmatch(reason)
    if named is None:
        return Fault(path[:_SHOWN], reason[:_SHOWN], unknown=False)
    key = named[1] if len(named[1]) <= _SHOWN_KEY else f"{named[1][:_SHOWN_KEY]}..."
    full = f"{path}.{key}" if path else key
    if named.re is _UNKNOWN:
        return Fault(full, "Unknown key", unknown=True)
    return Fault(full, "Missing required key", unknown=False)


def check_bounds(raw: bytes) -> None:
    """Raise BadRequest for a document that nests too deep, or that no valid body is made like."""
    opened = raw.count(b"[") + raw.count(b"{")
    if raw.count(b'"') > MAX_QUOTES:
        raise malformed("it holds too many strings")
    if opened <= MAX_NESTING:
        return
    brackets = _outside_strings(raw).translate(None, _NOT_BRACKETS)
    if len(brackets) > 2 * MAX_CONTAINERS:
        raise malformed("it holds too many objects and arrays")
    depth = 0
    for byte in brackets:
        if byte in b"[{":
            depth += 1
            if depth > MAX_NESTING:
                raise malformed(f"it nests deeper than {MAX_NESTING} levels")
        else:
            depth -= 1


def count_keys(raw: bytes) -> int:
    """How many object keys a valid document has, repeated ones included."""
    return _outside_strings(raw).count(b":")


def _outside_strings(raw: bytes) -> bytes:
    """A document without its strings. Each step is one pass in C: a hostile body must not be slow.

    Without its escaped backslashes, and then its escaped quotes, every second piece between quotes
    is a string.
    """
    return b"".join(raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def refuse_nul(raw: bytes, document: object) -> None:
    """Raise NulByteInPayload, by path, where a string or a key of `document` holds U+0000."""
    if b"\\u0000" not in raw:  # valid JSON cannot spell it another way
        return
    for path in _nul_paths(msgspec.to_builtins(document), ""):
        raise NulByteInPayload(
            f"A NUL character (U+0000) is not allowed: {path}", errors={path: "Holds U+0000"}
        )


def _nul_paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if "\0" in value:
            yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            below = f"{path}.{key}" if path else key
            if "\0" in key:
                yield below.replace("\0", "\\u0000")
            yield from _nul_paths(item, below)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nul_paths(item, f"{path}[{index}]")
