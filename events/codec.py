"""Between events and stream entries: flat field/value maps, `type` and `v` first, `data` as JSON
bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, get_origin, get_type_hints

import msgspec

from events.base import PASSED, Event, Former, Position, Recorded
from events.types import EVENTS, FORMER


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
        self.version = str(kind.VERSION).encode()
        names = [field.encode_name for field in info]
        self.plain = tuple(name for name in names if name != "data" and name not in kind.SCRIPT)
        self.has_data = "data" in names
        self.parts = tuple(
            (name, _reader(hints[name]))
            for name in names
            if name == "data" or get_origin(hints[name]) is tuple
        )
        """The fields that are more than a text or a number, and what reads them."""
        self.seen: tuple[list[bytes], list[str]] = ([], [])
        """The names of the last entry's fields, as stored and as text: the next one has the same,
        mostly."""
        self.newest = kind
        self.former: dict[bytes, _Shape] = {}
        """The versions before this one, by their number as stored."""


def _reader(hint: Any) -> Callable[[str], Any]:
    if get_origin(hint) is tuple:
        return lambda text: text.split(",") if text else ()
    return msgspec.json.Decoder(hint).decode


def _text(value: Any) -> str:
    if value is True:
        return "1"
    if value is False:
        return "0"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


Shapes = Mapping[bytes, _Shape]
"""By stored word: the newest version, which knows those before it."""


def shapes_of(events: Iterable[type[Event]], former: Iterable[type[Former]] = ()) -> Shapes:
    """What `decode` needs to know of types and their former versions.

    Raise ValueError for a former version that has no newer one, or that stands there twice.
    """
    shapes = {shape.tag.encode(): shape for shape in map(_Shape, events)}
    for kind in former:
        shape = _Shape(kind)
        newest = shapes.get(shape.tag.encode())
        if newest is None or kind.VERSION >= newest.kind.VERSION or shape.version in newest.former:
            raise ValueError(f"{kind.__name__} is no former version of {shape.tag}")
        shape.newest = newest.kind
        newest.former[shape.version] = shape
    return shapes


_SHAPES = shapes_of(EVENTS, FORMER)
_BY_KIND = {shape.kind: shape for shape in _SHAPES.values()}
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
    partition: int,
    position: bytes,
    fields: Sequence[bytes] | Mapping[bytes, bytes],
    wanted: Collection[type[Event]] | None = None,
    shapes: Shapes = _SHAPES,
) -> Recorded:
    """Read one stream entry; what was stored in a former version is told in the newest one.

    PASSED stands for an event that is not of a `wanted` type: its entry is not taken apart. Raise
    UnknownType for a type or version that this build does not know, wanted or not. Fields that the
    struct does not know are passed over: a later build may add one with a default.
    """
    if isinstance(fields, Mapping):
        fields = [each for pair in fields.items() for each in pair]
    shape = shapes.get(fields[1])
    if shape is not None and fields[3] != shape.version:
        shape = shape.former.get(fields[3])
    if shape is None:
        raise UnknownType(f"{position.decode()}: {fields[1]!r} v{fields[3]!r}")
    if wanted is not None and shape.newest not in wanted:
        return Recorded(partition, Position.parse(position), PASSED)
    stored, names = shape.seen
    here = fields[4::2]
    if here != stored:
        names = list(map(bytes.decode, here))
        shape.seen = (list(here), names)
    values: dict[str, Any] = dict(zip(names, map(bytes.decode, fields[5::2]), strict=True))
    for name, read in shape.parts:
        if name in values:
            values[name] = read(values[name])
    event = msgspec.convert(values, shape.kind, strict=False)  # texts of numbers become numbers
    while isinstance(event, Former):
        event = event.newer()
    return Recorded(partition, Position.parse(position), event)
