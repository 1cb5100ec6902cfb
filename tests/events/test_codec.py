"""Events as the log stores them: golden entries that never change, and the round trip."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from events import codec, types
from events.base import PASSED, START, Event, Position
from events.types import EVENTS

GOLDEN = Path(__file__).parent / "golden"


def tag(kind: type[Event]) -> str:
    """The stored word."""
    return str(kind.__struct_config__.tag)


PATHS = sorted(GOLDEN.glob("*.json"))
"""`<tag>.<version>.json` as it was first stored; `….<what>.json` with what came later."""

Pairs = list[tuple[str, str]]


def _pairs(flat: Sequence[str | bytes]) -> Pairs:
    texts = [each if isinstance(each, str) else each.decode() for each in flat]
    return list(zip(texts[::2], texts[1::2], strict=True))


def _kind(path: Path) -> type[Event]:
    (kind,) = (kind for kind in EVENTS if tag(kind) == path.name.split(".")[0])
    return kind


def _is_newest(path: Path) -> bool:
    return path.name.split(".")[1] == str(_kind(path).VERSION)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_event_still_decodes_as_it_was_stored(path: Path) -> None:
    stored = json.loads(path.read_text())

    recorded = codec.decode(
        0, stored["position"].encode(), [each.encode() for each in stored["fields"]]
    )

    assert type(recorded.event) is _kind(path)
    assert str(recorded.position) == stored["position"]
    assert path.name.split(".")[:2] == [stored["fields"][1], stored["fields"][3]]
    told = json.loads(msgspec.json.encode(recorded.event))
    assert {name: told[name] for name in stored["decoded"]} == stored["decoded"]


@pytest.mark.parametrize("path", [*filter(_is_newest, PATHS)], ids=lambda path: path.stem)
def test_every_event_is_encoded_as_it_was_stored(path: Path) -> None:
    stored, kind = json.loads(path.read_text()), _kind(path)
    event = _decoded(stored)

    # What the script adds stands behind what Python encodes; what an older build did not know has
    # its default now.
    pairs = _pairs(stored["fields"])
    names = [name for name, _ in pairs]
    by_python = [pair for pair in pairs if pair[0] not in kind.SCRIPT]
    assert names[len(by_python) :] == [name for name in kind.SCRIPT if name in names]
    encoded = _pairs(codec.encode(event))
    assert [pair for pair in encoded if pair[0] in names] == by_python


@pytest.mark.parametrize("kind", EVENTS, ids=tag)
def test_every_field_of_every_event_is_stored_in_some_golden_entry(kind: type[Event]) -> None:
    paths = [path for path in PATHS if _kind(path) is kind and _is_newest(path)]
    goldens = [json.loads(path.read_text()) for path in paths]

    newest = max(goldens, key=lambda golden: len(golden["fields"]))
    assert [name for name, _ in _pairs(newest["fields"])] == [
        *(name for name, _ in _pairs(codec.encode(_decoded(newest)))),
        *kind.SCRIPT,
    ]


def _decoded(golden: dict[str, list[str]]) -> Event:
    return codec.decode(0, b"1-0", [each.encode() for each in golden["fields"]]).event


def stored(kind: type[Event]) -> list[Event]:
    """What the golden entries of a type tell."""
    return [_decoded(json.loads(path.read_text())) for path in PATHS if _kind(path) is kind]


def test_golden_files_are_of_known_events_only() -> None:
    known = {tag(kind) for kind in EVENTS}

    assert {path.name.split(".")[0] for path in PATHS} == known


@pytest.mark.parametrize(
    "fields",
    [[b"type", b"invented", b"v", b"1"], [b"type", b"settled", b"v", b"2", b"source", b"0"]],
)
def test_an_event_that_this_build_does_not_know_stops_the_reader(fields: list[bytes]) -> None:
    with pytest.raises(codec.UnknownType, match="1-0"):
        codec.decode(0, b"1-0", fields)


def test_one_that_is_not_wanted_stops_the_reader_all_the_same() -> None:
    with pytest.raises(codec.UnknownType, match="1-0"):
        codec.decode(0, b"1-0", [b"type", b"invented", b"v", b"1"], wanted=())


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_an_event_that_is_not_wanted_is_known_but_not_read(path: Path) -> None:
    fields = [each.encode() for each in json.loads(path.read_text())["fields"]]
    kind = _kind(path)

    read = codec.decode(3, b"1-2", fields, wanted={kind})
    passed = codec.decode(3, b"1-2", [*fields[:5], b"not read"], wanted=set(EVENTS) - {kind})

    assert read == codec.decode(3, b"1-2", fields)
    assert passed == (3, Position(1, 2), PASSED)


def test_entries_of_two_builds_may_follow_one_another() -> None:
    older = [b"type", b"account-opened", b"v", b"1", b"name", b"n", b"key", b"k"]
    newer = [*older, b"kudos", b"5"]
    swapped = [*older[:4], b"key", b"k", b"name", b"n"]

    read = [codec.decode(0, b"1-0", each).event for each in (older, newer, swapped, older)]

    assert read == [types.AccountOpened(name="n", key="k", kudos=kudos) for kudos in (0, 5, 0, 0)]


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
