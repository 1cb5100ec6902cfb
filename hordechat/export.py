"""Events as people and programs read them: text, JSON lines, CSV. docs/events.md describes all
three, and every field.

An export is no reader that must not skip: what this build does not know is shown as it is stored,
as text under `raw`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from io import StringIO
from typing import Any, Literal, NamedTuple

import msgspec

from archive.segments import Raw
from events import codec
from events.base import Event, Position
from events.types import EVENTS
from handlers.history import Happened

Form = Literal["text", "jsonl", "csv"]

ENVELOPE = ("time", "partition", "position", "type", "v")
"""What stands in front of every event's own fields."""

IDS = ("request_id", "generation_id", "worker_id", "user_id")
"""Fields that have columns of their own in CSV."""

COLUMNS = (*ENVELOPE, *IDS, "fields")

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes what begins so for a formula."""

_LAST_MS = 253_402_300_799_000
"""The last time that there is a way to write; a stream may hold an entry far behind it."""

_KNOWN = {
    str(kind.__struct_config__.tag): tuple(each.name for each in msgspec.structs.fields(kind))
    for kind in EVENTS
}
_json = msgspec.json.Encoder().encode


class _Event(NamedTuple):
    """An event, taken apart."""

    type: str
    v: int | str
    """Text where it is no number."""
    fields: dict[str, Any]
    """By their names, in the order of the struct. `raw`, the last, is there where this build does
    not know the event, or a field of it."""


def _taken_apart(partition: int, entry: Raw) -> _Event:
    stored = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    try:
        event = codec.decode(partition, entry.id, entry.fields).event
    except (codec.UnknownType, LookupError, ValueError, TypeError, msgspec.MsgspecError):
        word, v = _text(stored.pop(b"type", b"")), _text(stored.pop(b"v", b""))
        raw = {_text(name): _text(value) for name, value in stored.items()}
        return _Event(word, int(v) if v.isdecimal() else v, {"raw": raw})
    return _known(event, stored)


def _known(event: Event, stored: dict[bytes, bytes]) -> _Event:
    word, names = stored.pop(b"type").decode(), _KNOWN[str(type(event).__struct_config__.tag)]
    v = int(stored.pop(b"v"))
    fields = {name: getattr(event, name) for name in names}
    data = stored.get(b"data")
    if data is not None and b"\n" not in data and b"\r" not in data:
        fields["data"] = msgspec.Raw(data)  # all that is in it, whether this build knows it or not
    if len(stored) > len(names) or not _names(names).issuperset(stored):
        others = stored.items()
        fields["raw"] = {
            _text(name): _text(value) for name, value in others if name not in _names(names)
        }
    return _Event(word, v, fields)


@cache
def _names(names: tuple[str, ...]) -> frozenset[bytes]:
    return frozenset(name.encode() for name in names)


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _time(position: Position) -> str:
    at = datetime.fromtimestamp(min(position.ms, _LAST_MS) / 1000, UTC)
    return at.isoformat(timespec="milliseconds")


def lines_of_text(happened: Sequence[Happened]) -> bytes:
    """A line each, to read: time, partition, position, word, and the fields as they are stored."""
    lines = []
    for position, partition, entry in happened:
        pairs = list(zip(entry.fields[::2], entry.fields[1::2], strict=True))
        told = " ".join(
            f"{_shown(name)}={_shown(value)}" for name, value in pairs if name not in _HEAD
        )
        lines.append(
            f"{_time(position)} {partition} {position} {_shown(_type(entry)):<15} {told}\n"
        )
    return "".join(lines).encode()


_HEAD = (b"type", b"v")


def _shown(value: bytes) -> str:
    """On one line and without effect on a terminal, whatever somebody called their worker."""
    text = _text(value)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def json_lines(happened: Sequence[Happened]) -> bytes:
    """An object each."""
    lines = []
    for position, partition, entry in happened:
        word, v, fields = _taken_apart(partition, entry)
        row = {
            "time": _time(position),
            "partition": partition,
            "position": str(position),
            "type": word,
            "v": v,
        }
        lines.append(_json({**row, **fields}))
    lines.append(b"")
    return b"\n".join(lines)


def rows(happened: Sequence[Happened]) -> bytes:
    """CSV (RFC 4180): COLUMNS, the last one a JSON object of the fields that have none."""
    written = StringIO()
    writer = csv.writer(written)
    for position, partition, entry in happened:
        word, v, fields = _taken_apart(partition, entry)
        raw = fields.get("raw", {})
        ids = [fields.pop(name, raw.get(name, "")) for name in IDS]
        cells = (_time(position), partition, str(position), word, v, *ids, _json(fields).decode())
        writer.writerow([_defused(cell) if isinstance(cell, str) else cell for cell in cells])
    return written.getvalue().encode()


def _defused(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


FORMS: dict[Form, Callable[[Sequence[Happened]], bytes]] = {
    "text": lines_of_text,
    "jsonl": json_lines,
    "csv": rows,
}


def heading(form: Form) -> bytes:
    """What stands in front of the first event."""
    return ",".join(COLUMNS).encode() + b"\r\n" if form == "csv" else b""


def chosen(
    happened: Sequence[Happened], *, types: frozenset[bytes], request_id: bytes
) -> Sequence[Happened]:
    """The events of these types (all, where none is named) that name this request (any, where it is
    empty)."""
    if types:
        happened = [each for each in happened if _type(each.entry) in types]
    if request_id:
        happened = [
            each
            for each in happened
            if any(request_id in value for value in each.entry.fields[1::2])
        ]
    return happened


def _type(entry: Raw) -> bytes:
    fields = entry.fields
    if fields[0] == b"type":
        return fields[1]
    return dict(zip(fields[::2], fields[1::2], strict=True)).get(b"type", b"")
