"""Tools, choice and format as they are stored, and histories of calls."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from handlers.chat import tools
from handlers.errors import BadRequest, ChatRequestConflict, UnsupportedChatParameter
from tests.handlers.chat.bodies import (
    USER,
    answer,
    call,
    called,
    choice,
    function,
    raw,
    read,
    refused_at,
    schema_format,
)
from tests.spec import spec

F = function("f")
SAYS = {"role": "assistant", "content": "hi"}


def extras(**changed: Any) -> dict[str, Any]:
    """The tools and the format of a body, as they are stored."""
    return dict(msgspec.to_builtins(read(**changed).extras))


# what is stored


@spec("Request body", 13, 14)
@spec("Tools", 1, 2, 3, 4, 19, 20)
@pytest.mark.parametrize("chosen", ["none", "auto", "required", choice("get_weather")])
def test_what_changes_the_answer_is_stored_in_the_clients_shape(chosen: Any) -> None:
    sent = {
        "tools": [
            function(
                "get_weather",
                description="Of a place.",
                parameters={"type": "object", "x-unknown": [1, 2.5, None, 10**30]},
                strict=False,
            ),
            function("g", description=None, parameters=None, strict=None),
            function("_-Az09" + "x" * 58),
        ],
        "tool_choice": chosen,
        "parallel_tool_calls": False,
        "response_format": schema_format({"type": "object"}, description="d", strict=None),
    }

    assert extras(**sent) == sent


@spec("Tools", 1, 2, 3, 4, 19)
@pytest.mark.parametrize(
    "changed",
    [
        {"tools": []},  # C-027 (a)
        {"tools": None, "tool_choice": None, "parallel_tool_calls": None},
        {"response_format": {"type": "text"}},
        {"response_format": None},
    ],
)
def test_what_changes_nothing_is_not_stored(changed: dict[str, Any]) -> None:
    assert extras(**changed) == {}


@spec("Tools", 2, 3, 4)
def test_null_beside_tools_is_none() -> None:
    nulls = {"tool_choice": None, "parallel_tool_calls": None, "response_format": None}

    assert extras(tools=[F], **nulls) == {"tools": [F]}
    assert extras(tools=[F], parallel_tool_calls=True)["parallel_tool_calls"] is True
    assert extras(response_format={"type": "json_object"}) == {
        "response_format": {"type": "json_object"}
    }


@spec("Tools", 1, 2, 3, 4)
@spec("Refused keys and values", 10)
@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [F, {"type": "custom", "function": {"name": "f"}}]}, "tools[1].type"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [function("")]}, "tools[0].function.name"),
        ({"tools": [function("x" * 65)]}, "tools[0].function.name"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function("é")]}, "tools[0].function.name"),
        ({"tools": [function("f\n")]}, "tools[0].function.name"),
        ({"tools": [function("f", description=1)]}, "tools[0].function.description"),
        ({"tools": [function("f", parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function("f", parameters=True)]}, "tools[0].function.parameters"),
        ({"tools": [function("f", strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [F], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tools": [F], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [F], "tool_choice": ["f"]}, "tool_choice"),
        ({"tools": [F], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "J"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"response_format": schema_format(True)}, "response_format.json_schema.schema"),
        ({"response_format": schema_format({}, strict=1)}, "response_format.json_schema.strict"),
    ],
)
def test_a_wrong_form_is_refused_by_its_path(changed: dict[str, Any], path: str) -> None:
    assert refused_at(BadRequest, raw(**changed))[0] == path


@spec("Refused keys and values", 1)
@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"tools": [F | {"cache": 1}]}, "tools[0].cache"),
        ({"tools": [function("f", cache=1)]}, "tools[0].function.cache"),
        ({"tools": [F], "tool_choice": choice("f") | {"x": 1}}, "tool_choice.x"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": schema_format({}, x=1)}, "response_format.json_schema.x"),
        ({"messages": [called("1") | {"function_call": {}}]}, "messages[0].function_call"),
    ],
)
def test_an_unknown_key_is_refused_by_its_path(changed: dict[str, Any], path: str) -> None:
    assert refused_at(UnsupportedChatParameter, raw(**changed))[0] == path


# limits


@spec("Tools", 1)
def test_128_tools_are_the_most() -> None:
    many = [function(f"f{n}") for n in range(128)]

    assert len(extras(tools=many)["tools"]) == 128
    path, sentence = refused_at(UnsupportedChatParameter, raw(tools=[*many, F]))
    assert (path, "128" in sentence, "129" in sentence) == ("tools", True, True)


@spec("Tools", 5)
def test_256_kibibytes_are_the_most_of_tools_choice_and_format_together() -> None:
    def sent(more: int) -> dict[str, Any]:
        sent = {
            "tools": [function("f", description="é" * 60_000)],
            "tool_choice": "auto",
            "response_format": schema_format({"description": ""}),
        }
        size = sum(len(msgspec.json.encode(value)) for value in sent.values())
        sent["response_format"] = schema_format({"description": "x" * (262_144 - size + more)})
        return sent

    assert extras(**sent(0)) == sent(0)
    path, sentence = refused_at(UnsupportedChatParameter, raw(**sent(1)))
    assert (path, "262144" in sentence, "262145" in sentence) == ("tools", True, True)


# choices that contradict


@spec("Tools", 7)
@spec("Refused keys and values", 9)
@pytest.mark.parametrize("without", [{}, {"tools": []}, {"tools": None}])  # C-027 (b), (c)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tool_choice", "none"),
        ("tool_choice", "auto"),
        ("tool_choice", "required"),
        ("tool_choice", choice("f")),
        ("parallel_tool_calls", True),
        ("parallel_tool_calls", False),
    ],
)
def test_a_choice_without_tools_is_refused_in_openais_words(
    without: dict[str, Any], key: str, value: Any
) -> None:
    assert refused_at(ChatRequestConflict, raw(**without, **{key: value})) == (
        key,
        f"Invalid value for '{key}': '{key}' is only allowed when 'tools' are specified.",
    )


@spec("Tools", 8)
@spec("Refused keys and values", 9)
def test_a_forced_function_has_to_be_defined() -> None:
    assert extras(tools=[F], tool_choice=choice("f"))["tool_choice"] == choice("f")
    for name in ("g", "F", "f" * 1000):
        path, sentence = refused_at(ChatRequestConflict, raw(tools=[F], tool_choice=choice(name)))
        assert (path, len(sentence) < 200) == ("tool_choice", True)


# the history


@spec("Tools", 11, 12)
def test_calls_and_answers_of_a_history_are_kept_unchanged() -> None:
    """C-019: a tool answers in parts as well."""
    parts = [{"type": "text", "text": "18"}, {"type": "text", "text": "C"}]
    history = [
        USER,
        called("a", "b") | {"content": None},
        answer("b", parts),
        answer("a"),
        SAYS | {"tool_calls": [call("a" * 256, "g", '{"x": ')], "name": "bot"},
        answer("a" * 256, ""),
    ]

    kept = msgspec.to_builtins(read(messages=history).messages)

    assert kept == history
    assert read(messages=history).text_bytes == 1 + 6 + 3 + 2 + 2 + 7


@spec("Tools", 11)
@spec("Refused keys and values", 10)
@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "assistant"}, "content"),
        ({"role": "assistant", "content": None}, "content"),
        (called(), "tool_calls"),
        (called("1") | {"tool_calls": None}, "tool_calls"),
        (called(*map(str, range(129))), "tool_calls"),
        (called(""), "tool_calls[0].id"),
        (called("i" * 257), "tool_calls[0].id"),
        (called("1") | {"tool_calls": [call("1") | {"type": "custom"}]}, "tool_calls[0].type"),
        (
            called("1") | {"tool_calls": [call("1", arguments={})]},
            "tool_calls[0].function.arguments",
        ),
        (called("1") | {"tool_calls": [call("1", name="")]}, "tool_calls[0].function.name"),
    ],
)
def test_an_assistant_message_of_a_wrong_form_is_refused(message: Any, path: str) -> None:
    assert refused_at(BadRequest, raw(messages=[USER, message]))[0] == f"messages[1].{path}"


@spec("Tools", 11)
def test_128_calls_are_the_most_of_one_message() -> None:
    ids = [str(n) for n in range(128)]

    assert len(read(messages=[called(*ids), *map(answer, ids)]).messages) == 129


@spec("Tools", 12)
@spec("Refused keys and values", 10)
@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": "1"}, "content"),
        (answer("1", None), "content"),
        (answer(""), "tool_call_id"),
        (answer("i" * 257), "tool_call_id"),
        (answer("1") | {"tool_call_id": 1}, "tool_call_id"),
    ],
)
def test_a_tool_message_of_a_wrong_form_is_refused(message: Any, path: str) -> None:
    history = [called("1"), message]

    assert refused_at(BadRequest, raw(messages=history))[0] == f"messages[1].{path}"


UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: "
)
UNASKED = (
    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
    "'tool_calls'."
)
UNKNOWN = "Invalid parameter: 'tool_call_id' of 'c' not found in 'tool_calls' of previous message."


@spec("Tools", 13, 14, 15, 16, 17)
@pytest.mark.parametrize(
    ("history", "path", "sentence"),
    [
        # another message while calls are unanswered; the second is C-029's
        ([called("a"), USER], "messages[1].role", UNANSWERED + "a"),
        ([USER, called("a", "b"), answer("a"), USER], "messages[3].role", UNANSWERED + "b"),
        ([called("a", "b", "c"), answer("b"), SAYS], "messages[2].role", UNANSWERED + "a, c"),
        ([called("a"), called("b")], "messages[1].role", UNANSWERED + "a"),
        ([called("a"), {"role": "system", "content": ""}], "messages[1].role", UNANSWERED + "a"),
        # an answer to no open call; the first is C-029's
        ([USER, answer("a")], "messages[1].role", UNASKED),
        ([answer("a")], "messages[0].role", UNASKED),
        ([called("a"), answer("a"), answer("a")], "messages[2].role", UNASKED),
        ([called("a"), answer("a"), answer("b")], "messages[2].role", UNASKED),
        ([called("a"), answer("a"), USER, answer("a")], "messages[3].role", UNASKED),
        ([called("a", "b"), answer("a"), answer("a")], "messages[2].role", UNASKED),
        # an id that the message before did not issue
        ([called("a"), answer("c")], "messages[1].tool_call_id", UNKNOWN),
        (
            [called("c"), answer("c"), called("a"), answer("c")],
            "messages[3].tool_call_id",
            UNKNOWN,
        ),
        # an id twice
        ([USER, called("a", "b", "a")], "messages[1].tool_calls", "The id 'a' is repeated"),
        # the end
        ([USER, called("a", "b"), answer("b")], "messages", UNANSWERED + "a"),
        ([called("a")], "messages", UNANSWERED + "a"),
    ],
)
def test_a_history_that_breaks_the_rule_is_refused(
    history: list[Any], path: str, sentence: str
) -> None:
    told, message = refused_at(UnsupportedChatParameter, raw(messages=history))

    assert told == path
    assert message.startswith(f"{path}: {sentence}")


@spec("Tools", 13, 14, 15, 16, 17)
@pytest.mark.parametrize(
    "history",
    [
        [called("a", "b", "c"), answer("c"), answer("a"), answer("b")],
        [called("a"), answer("a"), called("a"), answer("a"), USER],
        [called("a"), answer("a"), called("b"), answer("b")],
        [USER, SAYS, USER],
        [SAYS],
    ],
)
def test_a_history_that_keeps_the_rule(history: list[Any]) -> None:
    assert tools.history_break(read(messages=history).messages) is None
