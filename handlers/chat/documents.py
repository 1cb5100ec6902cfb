"""JSON from outside: bounded before it is decoded, and refused by path and reason.

msgspec refuses NaN, Infinity, numbers beyond a double, lone surrogates, raw control characters and
bad UTF-8 by itself. What it leaves to us: nesting (it recurses, and the depth that trips differs by
Python version), repeated keys (the last one wins) and U+0000 (which Postgres cannot store).
Everything here is linear in the size of the body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from handlers.errors import (
    BadRequest,
    ChatRequestConflict,
    NulByteInPayload,
    UnsupportedChatParameter,
)

Kind = TypeVar("Kind")

MAX_NESTING = 64
"""Levels of objects and arrays. The deepest valid document, a chat tool's schema, has about 30."""
MAX_CONTAINERS = 200_000
MAX_VALUES = 500_000
MAX_QUOTES = 1_200_000
"""No sensible body has more of these: they bound how long a hostile one keeps the loop busy, and
how much memory it becomes. A message of quotation marks alone has 1,048,576; no text limit bounds
what is accepted and not applied (`metadata`)."""

MAX_EXPLAINED = 2 * 1024 * 1024
"""Bytes of a body that is decoded once more, by a reader that takes more memory, to say where it is
wrong."""

INVALID = "Input payload validation failed"
_SHOWN = 200
_SHOWN_KEY = 80

_plain: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_LARGE_BYTES = 2**16
_FEW_QUOTES = 4096
_LONG_BYTES = 1024
_BACKSLASH = ord("\\")
_NUL = re.compile("\0")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPELLED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_AT = " - at `$"
_PATH = re.compile(r"(?:\.[A-Za-z0-9_]+|\[(?:\d+|\.\.\.)\])+")
_INDEX = re.compile(r"\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


class Fault(NamedTuple):
    """Where a document is not what was expected."""

    path: str
    """As `messages[0].role`; empty for the document itself."""
    reason: str
    unknown: bool
    """The path names a key that does not belong there."""

    def dotted(self) -> Fault:
        """As text routes tell it."""
        return self._replace(path=dotted(self.path))


def dotted(path: str) -> str:
    """A path as text routes write it: `models.0` for `models[0]` (text_path_reference.md 1.1)."""
    return _INDEX.sub(r".\1", path)


class Misfit(Exception):
    """The document is JSON, but not of the expected shape."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.fault = fault


def malformed(reason: str) -> BadRequest:
    """The refusal of a body that is not JSON that we read."""
    return BadRequest(f"The body is not valid JSON: {reason}", errors={"": reason})


def _not_json(
    raw: bytes, error: msgspec.DecodeError, spelled: Callable[[str], str] = str
) -> BadRequest:
    """The refusal of what msgspec cannot decode. Half a surrogate pair, which clients that cut text
    leave behind, is told by its place; msgspec says of some that the input was truncated."""
    if len(raw) <= MAX_EXPLAINED and _SPELLED_SURROGATE.search(raw):
        try:
            document = json.loads(raw)
        except ValueError:
            return malformed(str(error)[:_SHOWN])
        for path in map(spelled, _paths(document, _SURROGATE)):
            return invalid(Fault(path, "Holds half of a surrogate pair", unknown=False))
    return malformed(str(error)[:_SHOWN])


def invalid(fault: Fault) -> BadRequest:
    """The refusal of a value that has the wrong type or is out of range."""
    return BadRequest(INVALID, errors={fault.path: fault.reason})


def unsupported(path: str, sentence: str) -> UnsupportedChatParameter:
    """The refusal of what a chat request does not take, at `path`. The sentence is the message."""
    return UnsupportedChatParameter(sentence, errors={path: sentence})


def unsupported_key(path: str) -> UnsupportedChatParameter:
    """The refusal of a key that does not belong there."""
    return unsupported(path, f"{path} is not supported on chat requests.")


def unsupported_value(path: str, value: str) -> UnsupportedChatParameter:
    """The refusal of a value that names something that chat requests do not have."""
    return unsupported(path, f"{path}={shown(value)} is not supported on chat requests.")


def conflict(path: str, sentence: str) -> ChatRequestConflict:
    """The refusal of a value at `path` that contradicts another one."""
    return ChatRequestConflict(sentence, errors={path: sentence})


def shown(text: str) -> str:
    """As much of the sender's text as a refusal repeats."""
    return text if len(text) <= _SHOWN_KEY else f"{text[:_SHOWN_KEY]}..."


def read(kind: type[Kind], raw: bytes) -> Kind:
    """Decode a body that repeats no key at any level and holds no U+0000.

    Raise BadRequest where it is not JSON, too deep, or repeats a key; Misfit for its shape;
    NulByteInPayload.

    It is decoded untyped and then converted, not decoded typed: only what was sent tells whether
    its keys are all there. Both forms share their strings, which are nearly all of a large body.
    """
    bones = _skeleton(raw)
    check_bounds(bones)
    try:
        document = _plain.decode(raw)
    except msgspec.ValidationError:
        # A number that no Python number holds. The typed decoder can name its place.
        return decode(msgspec.json.Decoder(kind), raw)
    except msgspec.DecodeError as error:
        raise _not_json(raw, error) from None
    try:
        shaped = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise Misfit(fault_of(str(error))) from None
    kept = _count_kept_keys(document)
    # Where no string holds a colon, which is quickly seen, each colon is a key's.
    if bones.count(b":") != kept and count_keys(bones) != kept:
        raise BadRequest(
            "The body repeats a key: the meaning would depend on who reads it.",
            errors={"": "Repeated key"},
        )
    if b"\\u" in bones:
        refuse_nul(raw, document)
    return shaped


def decode(decoder: msgspec.json.Decoder[Kind], raw: bytes) -> Kind:
    """Decode a body of a route that is not chat's. Raise BadRequest where it is not JSON or too
    deep, Misfit for its shape."""
    check_bounds(_skeleton(raw))
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise Misfit(fault_of(str(error))) from None
    except msgspec.DecodeError as error:
        raise _not_json(raw, error, dotted) from None


def decoded(decoder: msgspec.json.Decoder[Kind], raw: bytes) -> Kind:
    """Decode such a body; raise BadRequest for its shape, too, by the path of what is wrong."""
    try:
        return decode(decoder, raw)
    except Misfit as misfit:
        raise invalid(misfit.fault) from None


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
    key = shown(named[1])
    full = f"{path}.{key}" if path else key
    if named.re is _UNKNOWN:
        return Fault(full, "Unknown key", unknown=True)
    return Fault(full, "Missing required key", unknown=False)


def _skeleton(raw: bytes) -> bytes:
    """A document without what is in its long strings, where those make it large: images in base64.

    Nothing that is counted or looked for in it is left out: a string that holds a backslash stays
    whole. Finding a quote is much quicker than counting what is between two.
    """
    if len(raw) <= _LARGE_BYTES or raw.count(b'"') > _FEW_QUOTES:
        return raw
    bones: list[bytes] = []
    kept_to = at = 0
    while (opened := raw.find(b'"', at)) >= 0:
        closed = _closing_quote(raw, opened)
        if closed < 0:
            return raw
        if closed - opened > _LONG_BYTES and raw.find(b"\\", opened, closed) < 0:
            bones.append(raw[kept_to : opened + 1])
            kept_to = closed
        at = closed + 1
    bones.append(raw[kept_to:])
    return b"".join(bones)


def _closing_quote(raw: bytes, opened: int) -> int:
    """Where the string ends that begins there; negative: nowhere."""
    start = opened + 1
    while (closed := raw.find(b'"', start)) >= 0:
        if raw[closed - 1] != _BACKSLASH:
            return closed
        before = raw[start:closed]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return closed
        start = closed + 1
    return -1


def check_bounds(raw: bytes) -> None:
    """Raise BadRequest for a document that nests too deep, or that no valid body is made like."""
    opened = raw.count(b"[") + raw.count(b"{")
    if raw.count(b'"') > MAX_QUOTES:
        raise malformed("it holds too many strings")
    if opened <= MAX_NESTING and raw.count(b",") <= MAX_VALUES:
        return
    outside = _outside_strings(raw)
    if outside.count(b",") > MAX_VALUES:
        raise malformed("it holds too many values")
    brackets = outside.translate(None, _NOT_BRACKETS)
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


def _count_kept_keys(document: Any) -> int:
    """How many object keys are left of a document once each is kept once."""
    count = 0
    stack = [document]
    while stack:
        values = stack.pop()
        if type(values) is dict:
            count += len(values)
            values = values.values()
        elif type(values) is not list:
            continue
        for value in values:  # the inner loop of every submission: quicker than what is shorter
            if type(value) is dict or type(value) is list:
                stack.append(value)
    return count


def _outside_strings(raw: bytes) -> bytes:
    """A document without its strings. Each step is one pass in C: a hostile body must not be slow.

    Without its escaped backslashes, and then its escaped quotes, every second piece between quotes
    is a string.
    """
    return b"".join(raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def refuse_nul(raw: bytes, document: object, *, spelled: Callable[[str], str] = str) -> None:
    """Raise NulByteInPayload, by path, where a string or a key of `document` holds U+0000.

    `spelled`: how the route writes paths, if not as `messages[0].role`.
    """
    if b"\\u0000" not in raw:  # valid JSON cannot spell it another way
        return
    for path in map(spelled, _paths(msgspec.to_builtins(document), _NUL)):
        raise NulByteInPayload(
            f"A NUL character (U+0000) is not allowed: {path}", errors={path: "Holds U+0000"}
        )


def _paths(document: Any, wanted: re.Pattern[str]) -> Iterator[str]:
    """Where a string or a key of a document holds what is wanted, in its order.

    A place is spelled out only once it is known to be one: there may be half a million.
    """
    keys: list[str | int] = []
    members: list[Iterator[tuple[str | int, Any]]] = [iter([("", document)])]
    while members:
        for key, value in members[-1]:
            if type(key) is str and wanted.search(key):
                yield _spelled([*keys, key], wanted)
            if type(value) is str:
                if wanted.search(value):
                    yield _spelled([*keys, key], wanted)
            elif type(value) is dict or type(value) is list:
                keys.append(key)
                members.append(iter(value.items()) if type(value) is dict else enumerate(value))
                break
        else:
            members.pop()
            if keys:
                keys.pop()


def _spelled(keys: list[str | int], wanted: re.Pattern[str]) -> str:
    path = ""
    for key in keys[1:]:  # the first one is the document's own
        if isinstance(key, int):
            path += f"[{key}]"
        else:
            path += f".{shown(wanted.sub(_escaped, key))}"
    return path.removeprefix(".")


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
