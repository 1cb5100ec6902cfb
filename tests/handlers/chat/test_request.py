"""What a chat body means, and what is refused: nothing is silently ignored."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from handlers.chat import documents, request
from handlers.errors import (
    BadRequest,
    ExcessiveStopSequence,
    NulByteInPayload,
    Refused,
    TooManyStopSequences,
    UnsupportedChatParameter,
)

USER = {"role": "user", "content": "x"}


def raw(**changed: Any) -> bytes:
    body = {"model": "m", "messages": [USER]} | changed
    return json.dumps(body).encode()


def with_text(text: str) -> bytes:
    """The smallest valid body with something put in as it is."""
    return b'{"model":"m","messages":[{"role":"user","content":"x"}]' + text.encode() + b"}"


def payload(body: bytes) -> dict[str, Any]:
    return dict(json.loads(request.read(body).content["payload"]))


def messages(body: bytes) -> list[Any]:
    return list(json.loads(request.read(body).content["messages"]))


def test_every_sampling_key_is_present_with_its_default() -> None:
    assert payload(raw()) == {
        "max_length": 512,
        "max_context_length": 2048,
        "temperature": 1.0,
        "top_p": 1.0,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "rep_pen": 1.0,
        "top_k": 0,
        "min_p": 0,
        "n": 1,
    }


def test_a_strict_request_needs_a_worker_that_refuses_overflow() -> None:
    demand = request.read(raw()).demand

    assert demand.features == ("prompt_overflow_refused",)
    assert (demand.models, demand.messages, demand.prompt_bytes) == (("m",), 1, 1)


def test_null_is_the_same_as_not_sent() -> None:
    nulls = dict.fromkeys(("max_tokens", "temperature", "top_p", "stop", "stream"))

    assert request.read(raw(**nulls)) == request.read(raw())


def test_zero_is_a_value() -> None:
    assert payload(raw(temperature=0))["temperature"] == 0.0


def test_the_context_holds_the_reply() -> None:
    assert payload(raw(max_tokens=4096))["max_context_length"] == 4096


@pytest.mark.parametrize(
    ("stop", "stored"),
    [("END", ["END"]), (["END"], ["END"]), (["a", "b", "a"], ["a", "b"]), ([], None), (None, None)],
)
def test_stop_is_a_list_without_repeats(stop: Any, stored: Any) -> None:
    assert payload(raw(stop=stop)).get("stop_sequence") == stored


def test_workers_are_told_to_stream_only_when_asked() -> None:
    assert payload(raw(stream=True))["stream_progress"] is True
    assert "stream_progress" not in payload(raw(stream=False))
    assert request.read(raw(stream=True)).stream


def test_developer_is_system_to_workers_and_names_stay() -> None:
    sent = [
        {"role": "developer", "content": "be kind", "name": "dev"},
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": None},
        {"role": "assistant", "content": ""},
    ]

    assert messages(raw(messages=sent)) == [
        {"role": "system", "content": "be kind", "name": "dev"},
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"logit_bias": {}}, "logit_bias"),
        ({"n": 2}, "n"),
        ({"tools": []}, "tools"),
        ({"horde": {}}, "horde"),
        ({"max_completion_tokens": 20}, "max_completion_tokens"),
        ({"messages": [USER | {"tool_calls": []}]}, "messages[0].tool_calls"),
        ({"messages": [USER, USER | {"refusal": None}]}, "messages[1].refusal"),
        ({"messages": [{"role": "function", "content": ""}]}, "messages[0].role=function"),
        (
            {"messages": [USER | {"content": [{"type": "input_audio"}]}]},
            "messages[0].content[0].type=input_audio",
        ),
        (
            {"messages": [USER | {"content": [{"type": "text", "text": "", "cache": 1}]}]},
            "messages[0].content[0].cache",
        ),
        ({"messages": [USER] * 1025}, "messages"),
        ({"messages": [USER | {"content": "é" * 524_289}]}, "messages"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_path(changed: dict[str, Any], path: str) -> None:
    with pytest.raises(UnsupportedChatParameter) as refused:
        request.read(raw(**changed))

    assert refused.value.message.startswith(path)


def test_1024_messages_and_one_mebibyte_are_accepted() -> None:
    assert request.read(raw(messages=[USER] * 1024)).demand.messages == 1024
    assert request.read(raw(messages=[USER | {"content": "é" * 524_288}])).demand.messages == 1


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"model": "m" * 256}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [USER | {"content": None}]}, "messages[0].content"),
        ({"messages": [USER | {"content": 1}]}, "messages[0].content"),
        ({"max_tokens": 15}, "max_tokens"),
        ({"max_tokens": 16385}, "max_tokens"),
        ({"max_tokens": 16.5}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 5.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": {}}, "stop"),
        ({"stream": 1}, "stream"),
    ],
)
def test_a_wrong_value_is_refused_by_its_path(changed: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequest) as refused:
        request.read(raw(**changed))

    assert list(refused.value.extra["errors"]) == [path]


@pytest.mark.parametrize(
    "text",
    [
        ',"temperature":NaN',
        ',"temperature":Infinity',
        ',"temperature":1e999',
        ',"top_p":-1e999',
        ',"max_tokens":' + "9" * 5000,
        ',"stop":"\\ud83d"',
        ',"stop":"\\ud83d rest"',
        ',"stop":"\\ude00"',
        ',"stop":"a\tb"',
        ',"model":"twice"',
        ',"mod\\u0065l":"twice"',
        ',"x":' + "[" * 20_000 + "]" * 20_000,
        ',"stop":' + "[" * 1_000_000,
        ',"stop":' + '{"a":' * 10_000,
        "}",
        "",
    ],
)
def test_what_is_no_clean_json_is_refused(text: str) -> None:
    body = with_text(text) if text else b""
    started = time.monotonic()

    with pytest.raises(BadRequest):
        request.read(body)

    assert time.monotonic() - started < 0.5


@pytest.mark.parametrize(
    "body",
    [b"[]", b"null", b'"x"', b"1", b"{}", b"\xef\xbb\xbf{}", b"\xff", b'{"model":"\xed\xa0\xbd"}'],
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        request.read(body)


def test_a_repeated_key_below_is_refused() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"a","content":"b"}]}'

    with pytest.raises(BadRequest, match="repeats a key"):
        request.read(body)


def test_colons_and_quotes_in_strings_are_no_keys() -> None:
    text = '"a": "b", {"c": [1]} \\ " \\\\" :'

    assert messages(raw(messages=[USER | {"content": text}]))[0]["content"] == text


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"model": "m\0"}, "model"),
        ({"stop": ["a", "b\0"]}, "stop[1]"),
        ({"messages": [USER, USER | {"name": "\0"}]}, "messages[1].name"),
        (
            {"messages": [USER | {"content": [{"type": "text", "text": "\0"}]}]},
            "messages[0].content[0].text",
        ),
    ],
)
def test_nul_is_refused_by_its_path(changed: dict[str, Any], path: str) -> None:
    with pytest.raises(NulByteInPayload) as refused:
        request.read(raw(**changed))

    assert list(refused.value.extra["errors"]) == [path]


def test_a_backslash_before_u0000_is_no_nul() -> None:
    assert payload(raw(stop="\\u0000"))["stop_sequence"] == ["\\u0000"]


def test_stops_are_bounded() -> None:
    request.read(raw(stop=[str(n) for n in range(128)] + ["0"]))
    request.read(raw(stop="a" * 2000))
    with pytest.raises(TooManyStopSequences):
        request.read(raw(stop=[str(n) for n in range(129)]))
    with pytest.raises(ExcessiveStopSequence):
        request.read(raw(stop=["a" * 1000, "b" * 1001]))


@pytest.mark.parametrize(
    "hostile",
    [
        b'{"a":' + b"[" * 100 + b'"' + b'\\"' * 1_900_000,
        b'{"a":[' + b"[]," * 3_000_000,
        b'{"a":[' + b'"",' * 3_000_000,
        b'{"model":"m","messages":[' + b'{"role":"user","content":""},' * 300_000 + b"{}]}",
    ],
    ids=["unterminated", "containers", "strings", "messages"],
)
def test_a_hostile_body_is_refused_in_linear_time(hostile: bytes) -> None:
    started = time.monotonic()

    with pytest.raises(Refused):
        request.read(hostile)

    assert time.monotonic() - started < 2


def test_a_long_key_is_not_given_back_in_full() -> None:
    with pytest.raises(UnsupportedChatParameter) as refused:
        request.read(raw(**{"k" * 100_000: 1}))

    assert len(refused.value.message) < 200


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
