"""What a request needs of a worker: features, guarantees, and the tools' temperature."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.chat import requirements
from handlers.chat.vocabulary import FEATURES, GUARANTEES
from tests.handlers.chat.bodies import (
    USER,
    answer,
    called,
    choice,
    function,
    image,
    read,
    schema_format,
    shows,
)
from tests.spec import spec

F = function("f")
CLOSED = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
JSON_OBJECT = {"type": "json_object"}
LOOSE = {"conformance": "best_effort"}


def features(**changed: Any) -> list[str]:
    """What a best_effort request needs: features alone."""
    return list(requirements.required_features(read(**changed, horde=LOOSE)))


def guarantees(**changed: Any) -> list[str]:
    """What strict adds."""
    strict = requirements.required_features(read(**changed))
    assert list(strict) == sorted(strict)
    return [word for word in strict if word not in features(**changed)]


@spec("Features", 1, 2, 3, 4, 5, 6, 7, 8, 9)
@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ({"seed": 0}, ["seed"]),
        ({"reasoning_effort": "none"}, ["reasoning_effort"]),
        ({"reasoning_effort": "high"}, ["reasoning_effort"]),
        ({"presence_penalty": -0.5}, ["presence_penalty"]),
        ({"frequency_penalty": 2}, ["frequency_penalty"]),
        ({"messages": [shows(image()), USER]}, ["vision"]),
        ({"tools": [F]}, ["tools"]),
        ({"tools": [F], "tool_choice": "auto"}, ["tools"]),
        ({"tools": [F], "tool_choice": choice("f")}, ["tools"]),
        ({"messages": [called("1"), answer("1")]}, ["tools"]),
        (
            {"messages": [called("1"), answer("1")], "tools": [F], "tool_choice": "none"},
            ["tools"],
        ),
        ({"response_format": JSON_OBJECT}, ["json_object"]),
        ({"response_format": schema_format({})}, ["json_schema"]),
        ({"response_format": schema_format(CLOSED, strict=True)}, ["json_schema"]),
        (
            {"tools": [F], "response_format": JSON_OBJECT},
            ["json_object", "tools", "tools_with_response_format"],
        ),
        (
            {"tools": [F], "tool_choice": "required", "response_format": schema_format({})},
            ["json_schema", "tools", "tools_with_response_format"],
        ),
        (
            {"tools": [F], "tool_choice": "none", "response_format": JSON_OBJECT},
            ["json_object"],
        ),
        (
            {"messages": [called("1"), answer("1")], "response_format": JSON_OBJECT},
            ["json_object", "tools"],
        ),
    ],
)
def test_a_feature_is_needed_under_both_conformance_modes(
    changed: dict[str, Any], needed: list[str]
) -> None:
    assert features(**changed) == needed
    assert set(requirements.required_features(read(**changed))) & FEATURES == set(needed)


@spec("Features", 10)
@spec("Guarantees", 5)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"presence_penalty": 0, "frequency_penalty": -0.0},
        {"temperature": 1.0, "top_p": 1, "max_tokens": 512, "stop": "x", "stream": True},
        {"tools": [F], "tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"tools": [], "seed": None, "reasoning_effort": None},
    ],
)
def test_a_field_at_its_default_needs_none(changed: dict[str, Any]) -> None:
    assert features(**changed) == []


@spec("Guarantees", 1, 2, 3, 4)
@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ({}, []),
        ({"tools": [F]}, []),
        ({"tools": [F], "tool_choice": "auto", "parallel_tool_calls": False}, []),
        ({"tools": [F], "tool_choice": "none"}, []),
        ({"tools": [F], "tool_choice": "required"}, ["tool_choice_enforced"]),
        ({"tools": [F], "tool_choice": choice("f")}, ["tool_choice_enforced"]),
        ({"response_format": JSON_OBJECT}, []),
        ({"response_format": schema_format(CLOSED)}, []),
        ({"response_format": schema_format(CLOSED, strict=False)}, []),
        (
            {"response_format": schema_format(CLOSED, strict=True)},
            ["structured_output_enforced"],
        ),
    ],
)
def test_a_strict_request_needs_guarantees(changed: dict[str, Any], needed: list[str]) -> None:
    assert guarantees(**changed) == sorted(["prompt_overflow_refused", *needed])


@spec("Guarantees", 5)
def test_best_effort_drops_every_guarantee() -> None:
    needed = features(
        tools=[F],
        tool_choice="required",
        response_format=schema_format(CLOSED, strict=True),
    )

    assert not GUARANTEES.intersection(needed)


@spec("Features", 9)
def test_tools_with_a_format_ask_for_one_word_more() -> None:
    """C-033: a worker without that word does not get the request."""
    needed = requirements.required_features(
        read(tools=[F], response_format=schema_format(CLOSED, strict=True))
    )

    declared = {"tools", "json_schema", "prompt_overflow_refused", "structured_output_enforced"}
    assert set(needed) - declared == {"tools_with_response_format"}


@spec("Guarantees", 6)
@pytest.mark.parametrize("horde", [{}, LOOSE])
@pytest.mark.parametrize(
    ("changed", "temperature"),
    [
        ({}, None),
        ({"temperature": 0.5}, None),
        ({"tools": [F]}, 1.0),
        ({"tools": [F], "temperature": 0}, 0.0),
        ({"tools": [F], "temperature": 1.5, "tool_choice": "auto"}, 1.5),
        ({"tools": [F], "temperature": 1.5, "tool_choice": "none"}, None),
        ({"messages": [called("1"), answer("1")], "temperature": 1.5}, None),
    ],
)
def test_the_temperature_counts_where_tools_are_forwarded(
    changed: dict[str, Any], temperature: float | None, horde: dict[str, Any]
) -> None:
    assert requirements.tools_temperature(read(**changed, horde=horde)) == temperature
