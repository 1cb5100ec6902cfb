"""Events as the log stores them: golden entries that never change, and the round trip."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from events import codec, types
from events.base import START, Event, Position
from events.types import EVENTS

GOLDEN = Path(__file__).parent / "golden"


def tag(kind: type[Event]) -> str:
    """The stored word."""
    return str(kind.__struct_config__.tag)


@pytest.mark.parametrize("kind", EVENTS, ids=tag)
def test_every_stored_version_of_every_event_still_decodes(kind: type[Event]) -> None:
    golden = GOLDEN / f"{tag(kind)}.{kind.VERSION}.json"
    stored = json.loads(golden.read_text())

    recorded = codec.decode(
        0, stored["position"].encode(), [each.encode() for each in stored["fields"]]
    )

    assert type(recorded.event) is kind
    assert str(recorded.position) == stored["position"]
    # What the script adds stands behind what Python encodes.
    encoded = [
        each if isinstance(each, str) else each.decode() for each in codec.encode(recorded.event)
    ]
    assert stored["fields"][: len(encoded)] == encoded
    assert stored["fields"][len(encoded) :: 2] == list(kind.SCRIPT)
    told = json.loads(msgspec.json.encode(recorded.event))
    assert {name: told[name] for name in stored["decoded"]} == stored["decoded"]


def test_golden_files_are_of_known_events_only() -> None:
    known = {tag(kind) for kind in EVENTS}

    assert {path.name.split(".")[0] for path in GOLDEN.glob("*.json")} == known


@pytest.mark.parametrize(
    "fields",
    [[b"type", b"invented", b"v", b"1"], [b"type", b"settled", b"v", b"2", b"source", b"0"]],
)
def test_an_event_that_this_build_does_not_know_stops_the_reader(fields: list[bytes]) -> None:
    with pytest.raises(codec.UnknownType, match="1-0"):
        codec.decode(0, b"1-0", fields)


def test_fields_of_a_later_build_are_passed_over() -> None:
    event = types.Settled(source=0, source_position="5-0")
    fields = [each if isinstance(each, bytes) else each.encode() for each in codec.encode(event)]

    assert codec.decode(0, b"1-0", [*fields, b"later", b"1"]).event == event


def test_a_field_that_an_older_build_did_not_write_gets_its_default() -> None:
    fields = [b"type", b"account-opened", b"v", b"1", b"name", b"n", b"key", b"k"]

    event = codec.decode(0, b"1-0", fields).event

    assert isinstance(event, types.AccountOpened)
    assert (event.kudos, event.trusted, event.user_id) == (0, False, 0)


def test_positions_compare_as_numbers() -> None:
    assert Position.parse("5-10") > Position.parse("5-9")
    assert Position.parse(b"10-0") > Position.parse("9-99")
    assert Position.parse("0-0") == START


@pytest.mark.parametrize("text", ["", "5", "a-b", "1-2-3"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|unpack"):
        Position.parse(text)
