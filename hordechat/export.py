"""Events as people and programs read them: text, JSON lines, CSV. docs/events.md describes all
three, and every field.

An export is no reader that must not skip: what this build does not know is shown as it is stored,
as text under `raw`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from io import StringIO
from typing import Literal, NamedTuple

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

_NAMES = {
    str(kind.__struct_config__.tag): tuple(each.name for each in msgspec.structs.fields(kind))
    for kind in EVENTS
}
_json = msgspec.json.Encoder().encode


class _Told(NamedTuple):
    """An event of whatever build."""

    type: str
    v: int | str
    """Text where it is no number."""
    source: Event | dict[str, str]
    """Where single fields are."""
    fields: bytes
    """A JSON object: its fields by their names, in the order of the struct. `raw`, the last, is
    there where this build does not know the event, or a field of it."""


def _told(partition: int, entry: Raw) -> _Told:
    try:
        event = codec.decode(partition, entry.id, entry.fields).event
    except (codec.UnknownType, LookupError, ValueError, TypeError, msgspec.MsgspecError):
        return _unknown(entry)
    stored = entry.fields
    word = stored[1].decode()
    later = _later(word, tuple(stored[::2]))
    data = getattr(event, "data", None)
    if later or (data is not None and _json(data) not in stored):
        fields = _json(_with_all(event, entry, later))
    else:
        fields = b"{" + _json(event).partition(b",")[2]  # the encoder writes the type first
    return _Told(word, event.VERSION, event, fields)


def _unknown(entry: Raw) -> _Told:
    raw = {_text(name): _text(value) for name, value in _pairs(entry)}
    word, v = raw.pop("type", ""), raw.pop("v", "")
    return _Told(word, int(v) if v.isdecimal() else v, raw, _json({"raw": raw}))


def _with_all(event: Event, entry: Raw, later: Sequence[bytes]) -> dict[str, object]:
    """The fields of an event, and what a later build put into it."""
    stored = dict(_pairs(entry))
    fields: dict[str, object] = {name: getattr(event, name) for name in _names(event)}
    data = stored.get(b"data")
    if data is not None and b"\n" not in data and b"\r" not in data:
        fields["data"] = msgspec.Raw(data)
    if later:
        fields["raw"] = {_text(name): _text(stored[name]) for name in later}
    return fields


def _names(event: Event) -> Sequence[str]:
    return _NAMES[str(type(event).__struct_config__.tag)]


def _pairs(entry: Raw) -> Iterator[tuple[bytes, bytes]]:
    return zip(entry.fields[::2], entry.fields[1::2], strict=True)


@lru_cache(1024)
def _later(word: str, names: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Which of these stored fields this build does not know."""
    known = {name.encode() for name in (*_NAMES[word], "type", "v")}
    return tuple(name for name in names if name not in known)


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _time(position: Position) -> str:
    seconds, ms = divmod(min(position.ms, _LAST_MS), 1000)
    return f"{_second(seconds)}.{ms:03d}+00:00"


@lru_cache
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[: -len("+00:00")]


def lines_of_text(happened: Sequence[Happened]) -> bytes:
    """A line each, to read: time, partition, position, word, and the fields as they are stored."""
    lines = []
    for position, partition, entry in happened:
        told = " ".join(
            f"{_shown(name)}={_shown(value)}" for name, value in _pairs(entry) if name not in _HEAD
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
        told = _told(partition, entry)
        lines.append(
            b'{"time":"%b","partition":%d,"position":"%b","type":%b,"v":%b,%b'
            % (
                _time(position).encode(),
                partition,
                entry.id,
                _json(told.type),
                _json(told.v),
                told.fields[1:],
            )
        )
    lines.append(b"")
    return b"\n".join(lines)


def rows(happened: Sequence[Happened]) -> bytes:
    """CSV (RFC 4180): COLUMNS, the last one a JSON object."""
    written = StringIO()
    writer = csv.writer(written)
    for position, partition, entry in happened:
        word, v, source, fields = _told(partition, entry)
        if isinstance(source, Event):
            ids = [getattr(source, name, "") for name in IDS]
        else:
            ids = [source.get(name, "") for name in IDS]
        cells = [_defused(cell) if isinstance(cell, str) else cell for cell in (word, v, *ids)]
        writer.writerow((_time(position), partition, str(position), *cells, fields.decode()))
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
    return dict(_pairs(entry)).get(b"type", b"")
