"""Events as text, JSON lines and CSV: what is known is typed, what is not is shown as it is."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from archive.segments import Raw
from events.base import Position
from events.types import EVENTS
from handlers.history import Happened
from hordechat.export import COLUMNS, ENVELOPE, FORMS, IDS, chosen, heading

GOLDEN = sorted((Path(__file__).parent.parent / "events" / "golden").glob("*.json"))
AT = b"1777636800250-3"


def happened(*fields: bytes, partition: int = 2) -> Happened:
    return Happened(Position.parse(AT), partition, Raw(AT, list(fields)))


def told(*fields: bytes) -> dict[str, Any]:
    line = FORMS["jsonl"]([happened(*fields)])
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line)


def cells(*fields: bytes) -> dict[str, str]:
    table = heading("csv") + FORMS["csv"]([happened(*fields)])
    (row,) = csv.DictReader(io.StringIO(table.decode(), newline=""))
    return row


def text(*fields: bytes) -> str:
    return FORMS["text"]([happened(*fields)]).decode()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_an_event_is_an_object_of_its_typed_fields_in_a_fixed_order(path: Path) -> None:
    stored = json.loads(path.read_text())
    (kind,) = (each for each in EVENTS if each.__struct_config__.tag == stored["fields"][1])

    row = told(*(each.encode() for each in stored["fields"]))

    names = [each.name for each in msgspec.structs.fields(kind)]
    assert list(row) == [*ENVELOPE, *names]
    head = [row[name] for name in ENVELOPE]
    at = "2026-05-01T12:00:00.250+00:00"
    assert head == [at, 2, AT.decode(), stored["fields"][1], kind.VERSION]
    typed = {name: row[name] for name in stored["decoded"] if name != "type"}
    assert typed == {name: stored["decoded"][name] for name in typed}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_csv_row_says_the_same_as_the_object(path: Path) -> None:
    fields = [each.encode() for each in json.loads(path.read_text())["fields"]]

    row = cells(*fields)

    assert tuple(row) == COLUMNS
    whole = told(*fields)
    for name in (*ENVELOPE, *IDS):
        assert row[name] == str(whole.get(name, ""))
    assert json.loads(row["fields"]) == {k: v for k, v in whole.items() if k not in ENVELOPE}


def test_no_field_of_an_event_has_a_name_of_the_envelope() -> None:
    taken = {*ENVELOPE, "raw", "fields"}

    assert not [k for k in EVENTS if taken & {f.name for f in msgspec.structs.fields(k)}]


@pytest.mark.parametrize(
    ("word", "v", "shown"),
    [(b"invented", b"1", 1), (b"settled", b"2", 2), (b"settled", b"x", "x")],
)
def test_an_event_that_this_build_does_not_know_is_shown_as_it_is_stored(
    word: bytes, v: bytes, shown: object
) -> None:
    fields = (b"type", word, b"v", v, b"user_id", b"7", b"odd", b"\xff\n")

    row = told(*fields)

    assert (row["type"], row["v"]) == (word.decode(), shown)
    assert row["raw"] == {"user_id": "7", "odd": "\\xff\n"}
    assert cells(*fields)["user_id"] == "7"
    assert text(*fields).endswith(" user_id=7 odd=\\xff\\n\n")


@pytest.mark.parametrize(
    "fields",
    [
        (b"type", b"settled", b"v", b"1"),
        (b"type", b"settled", b"v", b"1", b"source", b"none", b"source_position", b"1-0"),
        (b"type", b"settled", b"v", b"1", b"source", b"0", b"source_position", b"\xff"),
        (b"source", b"0", b"source_position", b"1-0"),
    ],
)
def test_an_event_that_cannot_be_read_does_not_stop_the_rest(fields: tuple[bytes, ...]) -> None:
    assert "raw" in told(*fields)
    assert "raw" in json.loads(cells(*fields)["fields"])
    assert text(*fields).count("\n") == 1


def test_fields_that_a_later_build_added_are_told_as_text() -> None:
    fields = (b"type", b"settled", b"v", b"1", b"source", b"0", b"source_position", b"1-0")
    profile = b'{"info":"x","later":[1]}'

    row = told(*fields, b"later", b"1")

    assert (row["source"], row["raw"]) == (0, {"later": "1"})
    changed = (b"type", b"worker-changed", b"v", b"1", b"worker_id", b"w", b"changed", b"info")
    assert told(*changed, b"data", profile)["data"] == {"info": "x", "later": [1]}
    assert told(*changed, b"data", b'{"info":\n"x"}')["data"] == {"info": "x"}


def test_a_field_that_an_older_build_did_not_write_has_its_default() -> None:
    row = told(b"type", b"account-opened", b"v", b"1", b"name", b"n", b"key", b"k")

    assert (row["kudos"], row["trusted"], row["roles"], row["kind"]) == (0, False, [], "registered")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@a", "\tx", "\rx"])
def test_no_cell_is_a_formula(name: str) -> None:
    fields = (b"type", name.encode(), b"v", name.encode(), b"worker_id", name.encode())

    row = cells(*fields)

    assert [row["type"], row["v"], row["worker_id"]] == [f"'{name}"] * 3
    assert row["fields"].startswith("{")


def test_rows_are_as_rfc_4180_has_them() -> None:
    fields = (b"type", b"name-freed", b"v", b"1", b"name", b'a,"b"\r\nc', b"worker_id", b"w")
    more = (b"source", b"0", b"source_position", b"1-0")

    table = heading("csv") + FORMS["csv"]([happened(*fields, *more)])

    first, row, end = table.split(b"\r\n")
    assert (first.decode().split(","), end) == (list(COLUMNS), b"")
    assert row.startswith(b"2026-05-01T12:00:00.250+00:00,2,1777636800250-3,name-freed,1,,,w,,")
    assert json.loads(cells(*fields, *more)["fields"])["name"] == 'a,"b"\r\nc'


def test_what_people_wrote_has_no_effect_on_a_terminal() -> None:
    wild = "gr\u00fcn\x1b[2J\u202e\n\x7f"
    fields = (b"type", b"checked-in", b"v", b"1", b"name", wild.encode())

    assert text(*fields).endswith(" name=grün\\x1b[2J\\u202e\\n\\x7f\n")
    assert text(*fields).startswith("2026-05-01T12:00:00.250+00:00 2 1777636800250-3 checked-in ")


def test_an_event_at_the_end_of_all_time_is_told() -> None:
    last = Position(2**64 - 1, 2**64 - 1)
    event = Happened(last, 0, Raw(str(last).encode(), [b"type", b"x", b"v", b"1"]))

    for write in FORMS.values():
        assert b"9999-12-31T23:59:59.000+00:00" in write([event])


def test_events_are_chosen_by_type_and_by_the_request_that_they_name() -> None:
    id_ = b"b23f5d2e-2fd6-4a90-ab0c-9e9e18d362ee"
    one = happened(b"type", b"charged", b"v", b"1", b"requests", b"x," + id_)
    other = happened(b"v", b"1", b"type", b"charged", b"requests", b"x")
    third = happened(b"type", b"expired", b"v", b"1", b"request_id", id_)
    all_ = [one, other, third]

    assert chosen(all_, types=frozenset(), request_id=b"") == all_
    assert chosen(all_, types=frozenset([b"charged"]), request_id=b"") == [one, other]
    assert chosen(all_, types=frozenset(), request_id=id_) == [one, third]
    assert chosen(all_, types=frozenset([b"charged"]), request_id=id_) == [one]


def test_nothing_chosen_is_nothing_written() -> None:
    assert [write([]) for write in FORMS.values()] == [b"", b"", b""]
