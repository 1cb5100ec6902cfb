"""Bodies that may be anything: each is read or refused, at once, and nothing else happens."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handlers.chat import fingerprint, payload, request, requirements
from handlers.chat.body import ChatRequest
from handlers.errors import Refused
from tests.handlers.chat.bodies import (
    USER,
    answer,
    called,
    choice,
    function,
    image,
    schema_format,
    shows,
)

SECONDS = 2.0
"""Of CPU, for one body, whatever it is."""

WORKER = "6b7a4f1e-0c55-4f3a-9f6e-2f0d7c1b8a9e"
CLOSED = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
NESTED = CLOSED | {"properties": {"a": CLOSED}, "required": ["a"]}
VALID: list[dict[str, Any]] = [
    {"model": "m", "messages": [USER]},
    {
        "models": ["a", "b"],
        "messages": [
            {"role": "system", "content": "s", "name": "n"},
            {"role": "developer", "content": [{"type": "text", "text": "d"}]},
            shows({"type": "text", "text": "é"}, image(), image("data:image/png;base64,AAAA")),
            called("1", "2"),
            answer("2"),
            answer("1", [{"type": "text", "text": "json"}]),
            {"role": "assistant", "content": "a"},
        ],
        "tools": [
            function("f", parameters=NESTED, strict=True),
            function("g", description="d"),
        ],
        "tool_choice": choice("f"),
        "parallel_tool_calls": False,
        "response_format": schema_format(NESTED, strict=True),
        "max_tokens": 20,
        "max_completion_tokens": 20,
    },
    {
        "model": "m",
        "messages": [USER],
        "temperature": 0.5,
        "top_p": 1,
        "frequency_penalty": 1,
        "presence_penalty": -1,
        "seed": 3,
        "reasoning_effort": "low",
        "stop": ["a", "b"],
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "u",
        "metadata": {"k": "v"},
        "response_format": {"type": "text"},
        "horde": {
            "only": [WORKER],
            "max_context_length": 4096,
            "context_fit": "grow",
            "conformance": "best_effort",
            "openai_guards": True,
            "max_kudos": 10,
            "dry_run": True,
            "operation_key": WORKER,
        },
    },
]

# As they stand in JSON: some are none, and no Python value spells the others.
SCRAPS = st.sampled_from(
    [
        *("null", "true", "0", "-0.0", "1", "1.0", "0.5", "-1", '""', '"x"', "[]", "{}", "[[]]"),
        *("NaN", "Infinity", "-Infinity", "1e999", "1e308", "9" * 30, "9" * 5000, "01", "tru"),
        *('"\\ud83d"', '"\\ude00x"', '"\\u0000"', '{"\\u0000":1}', '"\\x"', '"\t"', '"open'),
        *('{"a":1,"a":2}', '{"role":"user","content":"x","content":"y"}', '{"role":"function"}'),
        *('{"type":"input_audio"}', '{"type":"image_url","image_url":{"url":"data:"}}'),
        *("[" * 70 + "]" * 70, '{"a":' * 70 + "1" + "}" * 70, "[" * 5000, "]" * 3),
        *(f'"{"long " * 20_000}"', "[" + "0," * 20_000 + "0]", f'"{WORKER}"', '"none"', '"auto"'),
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
).map(json.dumps)

MARK = "@@{}@@"


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every holder and key of a document."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        found.append((value, key))
        if isinstance(item, dict | list):
            found += places(item)
    return found


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A valid body with up to four of its values or keys changed, added, taken out or repeated."""
    body = copy.deepcopy(draw(st.sampled_from(VALID)))
    scraps: list[str] = []
    for _ in range(draw(st.integers(0, 4))):
        found = places(body)
        if not found:
            break
        holder, key = draw(st.sampled_from(found))
        how = draw(st.sampled_from(["change", "drop", "rename", "repeat"]))
        if how == "drop":
            del holder[key]
        elif how == "rename" and isinstance(holder, dict):
            name = draw(st.text(max_size=10) | st.sampled_from(["role", "type", "tool_calls"]))
            holder[name] = holder.pop(key)
        elif how == "repeat" and isinstance(holder, list):
            holder += [copy.deepcopy(holder[key])] * draw(st.sampled_from([1, 2, 130, 1100]))
        else:
            holder[key] = MARK.format(len(scraps))
            scraps.append(draw(SCRAPS | ANYTHING))
    text = json.dumps(body, ensure_ascii=draw(st.booleans()))
    for number, scrap in enumerate(scraps):
        text = text.replace(f'"{MARK.format(number)}"', scrap)
    raw = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 19)) == 0:
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=4)) + raw[at + draw(st.integers(0, 4)) :]
    return raw


def outcome(raw: bytes) -> ChatRequest | Refused:
    """What becomes of a body. Any other exception is a bug."""
    try:
        read = request.read(raw)
        request.check_params(read, read.horde.max_context_length or 2048)
    except Refused as refused:
        return refused
    return read


def read_or_refused(raw: bytes) -> None:
    """What follows from a body that is read is sound JSON; what is refused is told in UTF-8."""
    started = time.process_time()

    came = outcome(raw)

    if isinstance(came, Refused):
        assert len(came.message) < 40_000
        told = [json.dumps([came.message, came.extra], ensure_ascii=False).encode()]
    else:
        assert len(fingerprint.of(came)) == 64
        assert requirements.required_features(came) is not None
        told = [
            payload.messages(came.messages),
            payload.of(came, max_length=16, max_context_length=80),
            payload.extras(came.extras) or b"{}",
        ]
    for document in told:
        json.loads(document, parse_constant=_refuse_constant)
    assert time.process_time() - started < SECONDS


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def fuzzed(examples: int) -> Callable[..., Any]:
    """Settings of a fuzz: bodies are large, and slow to draw."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def test_the_bodies_that_are_changed_are_valid() -> None:
    for body in VALID:
        request.read(json.dumps(body).encode())


@fuzzed(150)
@given(bodies())
def test_a_changed_body_is_read_or_refused(raw: bytes) -> None:
    read_or_refused(raw)


@pytest.mark.soak
@fuzzed(10_000)
@given(bodies() | st.binary(max_size=200))
def test_many_changed_bodies_are_read_or_refused(raw: bytes) -> None:
    read_or_refused(raw)
