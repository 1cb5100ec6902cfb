"""Between events and stream entries: flat field/value maps, `type` and `v` first, `data` as JSON
bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from events.base import Event, Position, Recorded
from events.types import EVENTS


class UnknownType(Exception):
    """The log holds an event that this build does not know.

    Its reader stops: skipping would lose it for good.
    """


class _Shape:
    """How the fields of one event type travel, worked out once from its annotations."""

    def __init__(self, kind: type[Event]) -> None:
        info = msgspec.structs.fields(kind)
        hints = get_type_hints(kind)
        self.kind = kind
        self.tag = str(kind.__struct_config__.tag)
        self.head = ("type", self.tag, "v", str(kind.VERSION))
        names = [field.encode_name for field in info]
        self.plain = tuple(name for name in names if name != "data" and name not in kind.SCRIPT)
        self.has_data = "data" in names
        self.readers: dict[bytes, tuple[str, Callable[[bytes], Any]]] = {
            name.encode(): (name, _reader(hints[name])) for name in names
        }


def _reader(hint: Any) -> Callable[[bytes], Any]:
    if hint is str:
        return bytes.decode
    if hint is int:
        return int
    if hint is bool:
        return b"1".__eq__
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return lambda raw: tuple(item(part) for part in raw.decode().split(",")) if raw else ()
    return msgspec.json.Decoder(hint).decode


def _text(value: Any) -> str:
    if value is True:
        return "1"
    if value is False:
        return "0"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


_SHAPES = {shape.tag: shape for shape in map(_Shape, EVENTS)}
_BY_KIND = {shape.kind: shape for shape in _SHAPES.values()}
_BY_TAG = {tag.encode(): shape for tag, shape in _SHAPES.items()}
_encode_data = msgspec.json.Encoder().encode


def encode(event: Event) -> list[str | bytes]:
    """The flat fields of the event, in a fixed order, without those that its script adds."""
    shape = _BY_KIND[type(event)]
    flat: list[str | bytes] = list(shape.head)
    for name in shape.plain:
        flat.append(name)
        flat.append(_text(getattr(event, name)))
    if shape.has_data:
        flat.append("data")
        flat.append(_encode_data(event.data))  # type: ignore[attr-defined]
    return flat


def decode(
    partition: int, position: bytes, fields: Sequence[bytes] | Mapping[bytes, bytes]
) -> Recorded:
    """Read one stream entry.

    Raise UnknownType for a type or version that this build does not know. Fields that the struct
    does not know are passed over: a later build may add one with a default.
    """
    if isinstance(fields, Mapping):
        pairs: Any = fields.items()
        tag, version = fields.get(b"type", b""), fields.get(b"v", b"")
    else:
        flat = iter(fields)
        pairs = zip(flat, flat, strict=True)
        tag, version = fields[1], fields[3]
    shape = _BY_TAG.get(tag)
    if shape is None or int(version) != shape.kind.VERSION:
        raise UnknownType(f"{position.decode()}: {tag!r} v{version!r}")
    known = shape.readers
    values = {}
    for name, raw in pairs:
        reader = known.get(name)
        if reader is not None:
            values[reader[0]] = reader[1](raw)
    return Recorded(partition, Position.parse(position), shape.kind(**values))
