"""Reading JSON that may be anything."""

from __future__ import annotations

import json
import random
import string
import time
from typing import Any

import msgspec
import pytest

from handlers.chat import documents
from handlers.errors import BadRequest, NulByteInPayload


class Box(msgspec.Struct, forbid_unknown_fields=True):
    """Something to read."""

    number: float = 0
    flag: bool = True
    anything: Any = None


def test_a_value_that_looks_like_a_place_costs_one_pass() -> None:
    """msgspec quotes the sender's value: a pattern that backtracked over it froze the process."""
    started = time.process_time()

    fault = documents.fault_of("Invalid enum value '" + " - at `$" * 100_000 + "'")

    assert time.process_time() - started < 0.5
    assert fault.path == ""


def test_a_place_is_believed_only_where_it_is_a_path() -> None:
    assert documents.fault_of("Expected `int`, got `str` - at `$.a[0].b`").path == "a[0].b"
    told = documents.fault_of("Object contains unknown field `x - at `$y`")
    assert (told.path, told.unknown) == ("x - at `$y", True)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "Expected `int`, got `str` - at `$.a[0].b`",
            ("a[0].b", "Expected `int`, got `str`", False),
        ),
        ("Expected `object`, got `array`", ("", "Expected `object`, got `array`", False)),
        ("Object contains unknown field `x`", ("x", "Unknown key", True)),
        ("Object contains unknown field `x` - at `$.a[1]`", ("a[1].x", "Unknown key", True)),
        ("Object missing required field `x` - at `$.a`", ("a.x", "Missing required key", False)),
    ],
)
def test_faults_are_read_from_msgspec(text: str, fault: tuple[str, str, bool]) -> None:
    assert documents.fault_of(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        '{"flag":true,"flag":true}',
        '{"flag":true,"fl\\u0061g":true}',
        '{"anything":{"a":1,"a":2}}',
        '{"anything":[[{"a":":"}, {"b" : 1, "b" : 1}]]}',
        '{"anything":{"":0,"":0}}',
    ],
)
def test_a_repeated_key_is_refused_at_any_level(text: str) -> None:
    with pytest.raises(BadRequest, match="repeats a key"):
        documents.read(Box, text.encode())


@pytest.mark.parametrize(
    "anything",
    [
        {"a": 1, "b": {"a": 1}, "c": [{"a": 1}, {"a": 1}]},
        'quotes ": " and {"a": 1, "a": 2} in a string',
        {'a key: with "quotes"\\': ":::", "\\": ":"},
        ["\\", ":", "\\\\:", '\\"'],
        {"é": "\u2028", "long": 10**200},
    ],
)
def test_what_looks_like_keys_in_strings_is_none(anything: Any) -> None:
    for text in (json.dumps({"anything": anything}), json.dumps({"anything": anything}, indent=1)):
        assert documents.read(Box, text.encode()).anything == anything


def test_a_key_sent_at_its_default_counts_once() -> None:
    assert documents.read(Box, b'{"flag":true,"number":0}') == Box()


@pytest.mark.parametrize(("number", "path"), [("1e999", "number"), ("9" * 5000, "number")])
def test_a_number_that_nothing_holds_is_refused_by_its_path(number: str, path: str) -> None:
    with pytest.raises(documents.Misfit) as misfit:
        documents.read(Box, f'{{"number":{number}}}'.encode())

    assert misfit.value.fault.path == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"anything":"a\\u0000"}', "anything"),
        ('{"anything":[1,{"b":["\\u0000"]}]}', "anything[1].b[0]"),
        ('{"anything":{"k\\u0000":1}}', "anything.k\\u0000"),
        (f'{{"anything":"{"x" * 70_000}\\u0000{"x" * 70_000}"}}', "anything"),
    ],
)
def test_nul_is_refused_in_keys_and_values_alike(text: str, path: str) -> None:
    with pytest.raises(NulByteInPayload) as refused:
        documents.read(Box, text.encode())

    assert list(refused.value.extra["errors"]) == [path]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"anything":"hi \\ud83d"}', "anything"),
        ('{"anything":[1,{"b":"\\ude00 rest"}]}', "anything[1].b"),
        ('{"anything":{"\\ud83d":1}}', "anything.\\ud83d"),
        ('{"anything":"' + "\ud83d" + '"}', "anything"),
    ],
)
def test_half_a_surrogate_pair_is_refused_by_its_path(text: str, path: str) -> None:
    """C-003."""
    with pytest.raises(BadRequest) as refused:
        documents.read(Box, text.encode("utf-8", "surrogatepass"))

    assert list(refused.value.extra["errors"]) == [path]


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert documents.read(Box, b'{"anything":"\\ud83d\\ude00"}').anything == "\U0001f600"


def test_a_path_of_long_keys_is_cut() -> None:
    with pytest.raises(NulByteInPayload) as refused:
        documents.read(Box, json.dumps({"anything": {"k" * 100_000: "\0"}}).encode())

    assert len(refused.value.message) < 300


def _outcome(document: str, padding: str) -> object:
    """What comes of a document in an array behind some padding."""
    raw = f'{{"anything":["{padding}",{document}]}}'.encode()
    try:
        return documents.read(Box, raw).anything[1:]
    except (BadRequest, NulByteInPayload, documents.Misfit) as refusal:
        return type(refusal), getattr(refusal, "errors", None)


def test_a_large_document_is_read_as_a_small_one() -> None:
    """Of a large one only the bones are looked at; a broken string must not hide what follows."""
    choose = random.Random(5)
    pieces = [
        *('"a":1', '"a":{"b":[', '"]', "[[", "{}", ":", ",", '"', "\\", '\\"', "\\\\", "\\u0041"),
        *(
            "\\u0000",
            "\\/",
            "\\n",
            "x",
            "g",
            "true",
            "0.5e1",
            "\\x",
            '"a:b"',
            '"a\\\\":',
            "é",
            "}",
            "]",
        ),
    ]
    padding = "".join(choose.choices(string.ascii_letters + string.digits + "+/=", k=70_000))
    seen = set()
    for _ in range(200):
        document = "".join(choose.choices(pieces, k=choose.randint(1, 6)))
        for each in (document, "{" + document + "}", '{"a":"' + document + '","a:":1}'):
            small = _outcome(each, "")
            assert _outcome(each, padding) == small, each
            seen.add(small[0] if isinstance(small, tuple) else "read")
    assert seen == {"read", BadRequest, NulByteInPayload}


def test_escaped_quotes_in_a_large_document_are_passed_in_linear_time() -> None:
    text = ("x" * 250 + "\\\\" * 100 + '\\"') * 4000
    raw = f'{{"anything":"{text}"}}'.encode()
    started = time.process_time()

    assert documents.read(Box, raw).anything == json.loads(f'"{text}"')

    assert time.process_time() - started < 0.5


def test_bounds_are_told_before_anything_is_built() -> None:
    deep, deeper = ("[" * levels + "]" * levels for levels in (63, 64))
    many = ",".join("0" * documents.MAX_VALUES)

    assert documents.read(Box, f'{{"anything":{deep}}}'.encode()).anything
    for anything in (deeper, f"[{many},0,0]", "[" * 10_000_000):
        with pytest.raises(BadRequest):
            documents.read(Box, f'{{"anything":{anything}}}'.encode())


def test_commas_in_a_string_are_no_values() -> None:
    text = "," * (documents.MAX_VALUES + 2)

    assert documents.read(Box, json.dumps({"anything": text}).encode()).anything == text
