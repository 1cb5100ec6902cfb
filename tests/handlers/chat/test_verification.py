"""What the request of a reply asks of it, under both conformance modes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handlers.chat import reply, verification
from handlers.chat.schema_pool import SchemaPool
from handlers.errors import ChatSubmitInvalid, ChatSubmitNonconformant
from tests.spec import spec

ID = "00000000-0000-4000-8000-000000000000"
BOTH = pytest.mark.parametrize("mode", ["strict", "best_effort"])
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
FORCED = {"type": "function", "function": {"name": "f"}}
COLOUR = {
    "type": "object",
    "properties": {"shade": {"type": "string"}},
    "required": ["shade"],
    "additionalProperties": False,
}


@pytest.fixture
async def pool() -> AsyncIterator[SchemaPool]:
    """For what costs little, on a machine that may be busy."""
    opened = SchemaPool(seconds=60, processes=1)
    yield opened
    await opened.close()


def call(name: str = "f", id_: str = "c1") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}


def given(*calls: dict[str, Any], content: str | None = "hello", finish: str = "stop") -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    body = {"id": ID, "message": message, "finish_reason": finish, "model_id": "m"}
    return reply.given(reply.read(json.dumps(body).encode()), "m")


def rules(mode: str = "strict", **extras: Any) -> verification.Rules:
    return verification.rules(json.dumps(extras).encode() if extras else None, mode.encode())


def schema(document: Any, *, strict: bool | None = True) -> dict[str, Any]:
    spelled = {"name": "colour", "schema": document}
    if strict is not None:
        spelled["strict"] = strict
    return {"response_format": {"type": "json_schema", "json_schema": spelled}}


def judge(mode: str, *calls: dict[str, Any], **extras: Any) -> verification.Judged:
    return verification.judge(given(*calls), rules(mode, **extras))


async def check(pool: SchemaPool, content: str, mode: str = "strict", **extras: Any) -> None:
    await verification.verify(given(content=content), rules(mode, **extras), pool)


@BOTH
@spec("Reply verification", 1)
def test_a_call_of_no_tool_of_the_request_is_invalid(mode: str) -> None:
    for extras in ({}, {"tools": TOOLS}):
        with pytest.raises(ChatSubmitInvalid, match="no tool 'h'"):
            judge(mode, call("h"), **extras)


@BOTH
@spec("Reply verification", 2)
def test_two_calls_with_one_id_are_invalid(mode: str) -> None:
    with pytest.raises(ChatSubmitInvalid, match="'c1' is repeated"):
        judge(mode, call("f"), call("g"), tools=TOOLS)


@spec("Reply verification", 3, 4, 5)
@pytest.mark.parametrize(
    ("choice", "calls"),
    [
        ("none", [call()]),
        ("required", []),
        (FORCED, []),
        (FORCED, [call("g")]),
        (FORCED, [call("f"), call("g", "c2")]),
    ],
)
def test_a_strict_reply_follows_the_tool_choice(choice: Any, calls: list[Any]) -> None:
    with pytest.raises(ChatSubmitNonconformant):
        judge("strict", *calls, tools=TOOLS, tool_choice=choice)

    judge("best_effort", *calls, tools=TOOLS, tool_choice=choice)


@pytest.mark.parametrize(
    ("choice", "calls"),
    [("none", []), ("required", [call()]), (FORCED, [call()]), ("auto", []), (..., [call("g")])],
)
def test_what_the_tool_choice_allows_passes(choice: Any, calls: list[Any]) -> None:
    extras = {"tools": TOOLS} | ({} if choice is ... else {"tool_choice": choice})

    judged = judge("strict", *calls, **extras)

    assert judged == (given(*calls), 0, None)


@spec("Reply verification", 6, 9)
def test_of_several_calls_the_first_is_kept_before_any_is_checked() -> None:
    calls = (call("f"), call("unknown"), call("f"))
    extras = {"tools": TOOLS, "tool_choice": FORCED, "parallel_tool_calls": False}

    judged = judge("strict", *calls, **extras)

    assert judged.dropped_tool_calls == 2
    assert judged.given.message == given(calls[0]).message
    with pytest.raises(ChatSubmitInvalid):
        judge("best_effort", *calls, **extras)
    kept = judge("best_effort", call("f"), call("g", "c2"), **extras)
    assert (kept.dropped_tool_calls, len(kept.given.message.tool_calls)) == (0, 2)


@BOTH
@spec("Reply verification", 10)
def test_a_forced_function_ends_with_stop(mode: str) -> None:
    for choice, finish, stored in (
        (FORCED, "tool_calls", "stop"),
        (FORCED, "stop", "stop"),
        (FORCED, "length", "length"),
        ("required", "tool_calls", "tool_calls"),
        ("auto", "tool_calls", "tool_calls"),
    ):
        judged = verification.judge(
            given(call(), finish=finish), rules(mode, tools=TOOLS, tool_choice=choice)
        )
        assert judged.given.finish_reason == stored


@pytest.mark.parametrize(
    "form", [{"response_format": {"type": "json_object"}}, schema({}, strict=None)]
)
@pytest.mark.parametrize(
    "content",
    [
        "[1]",
        '"s"',
        '{"a":NaN}',
        '{"a":-Infinity}',
        "```json\n{}\n```",
        '{"a":1} trailing',
        "",
        "{" * 5000,
        "\ufeff{}",
        "{\0}\0",
        "\0{\0}",
        '{"a":"\0"}',
        '{"a":' + "1" * 5000 + "}",
    ],
)
@spec("Reply verification", 7, 12)
async def test_a_format_of_json_asks_for_an_object(
    pool: SchemaPool, form: dict[str, Any], content: str
) -> None:
    with pytest.raises(ChatSubmitNonconformant):
        await check(pool, content, **form)

    await check(pool, content, "best_effort", **form)
    await check(pool, ' {"a": [1, 1e400], "\\u0000": "\\ud83d", "a": "\\\\u0000"}\n', **form)


@spec("Reply verification", 8)
async def test_a_strict_schema_is_matched(pool: SchemaPool) -> None:
    for content in ("{}", '{"shade":1}', '{"shade":"x","more":1}', "[]", "red", '{"shade":NaN}'):
        with pytest.raises(ChatSubmitNonconformant, match=r"does not match|not JSON"):
            await check(pool, content, **schema(COLOUR))
        await check(pool, content, "best_effort", **schema(COLOUR))
        if content != "red":
            await check(
                pool,
                content.replace("NaN", "0").replace("[]", "{}"),
                **schema(COLOUR, strict=False),
            )

    await check(pool, '{"shade":"red"}', **schema(COLOUR))
    with pytest.raises(ChatSubmitNonconformant, match="not JSON"):
        await check(pool, "\0".join('{"shade":"red"}') + "\0", **schema(COLOUR))  # as UTF-16


@spec("Reply verification", 11)
async def test_calls_without_text_are_exempt_from_the_format(pool: SchemaPool) -> None:
    wanted = rules(tools=TOOLS, **schema(COLOUR))

    for content in (None, ""):
        await verification.verify(given(call(), content=content), wanted, pool)
    with pytest.raises(ChatSubmitNonconformant):
        await verification.verify(given(call(), content="x"), wanted, pool)
    with pytest.raises(ChatSubmitNonconformant):
        await verification.verify(given(content=""), wanted, pool)


@spec("Reply verification", 13)
async def test_a_schema_is_of_the_draft_that_it_declares(pool: SchemaPool) -> None:
    bound = {"minimum": 3, "exclusiveMinimum": True}
    draft4 = {"$schema": "http://json-schema.org/draft-04/schema#", **bound}

    with pytest.raises(ChatSubmitNonconformant, match="does not match"):
        await check(pool, "3", **schema(draft4))
    await check(pool, "4", **schema(draft4))
    with pytest.raises(ChatSubmitNonconformant, match="cannot be compiled"):
        await check(pool, "4", **schema(bound))
    await check(pool, '"no address"', **schema({"format": "email"}))


@spec("Reply verification", 14, 15)
@pytest.mark.parametrize(
    "document",
    [
        {"$ref": "file:///etc/passwd"},
        {"$ref": "other.json"},
        {"$ref": "#/$defs/missing"},
        {"properties": {"never": {"$ref": "https://example.invalid/x.json"}}},
        {"pattern": "("},
        {"type": "nothing"},
        {"$schema": ["x"]},
        {"$schema": 5},
    ],
)
async def test_a_schema_that_cannot_be_compiled_matches_nothing(
    pool: SchemaPool, document: dict[str, Any]
) -> None:
    with pytest.raises(ChatSubmitNonconformant, match="cannot be compiled"):
        await check(pool, "{}", **schema(document))


@spec("Reply verification", 14)
async def test_references_within_the_schema_are_followed(pool: SchemaPool) -> None:
    for document in (
        {"$ref": "#/$defs/a", "$defs": {"a": COLOUR}},
        {"$ref": "#a", "$defs": {"a": {"$anchor": "a", **COLOUR}}},
        {"$id": "http://x/y", "$ref": "z", "$defs": {"a": {"$id": "z", **COLOUR}}},
    ):
        await check(pool, '{"shade":"red"}', **schema(document))
        with pytest.raises(ChatSubmitNonconformant, match="does not match"):
            await check(pool, "{}", **schema(document))


async def test_huge_numbers_get_a_verdict(pool: SchemaPool) -> None:
    """C-043."""
    document = {"properties": {"n": {"multipleOf": 0.5}}}

    await check(pool, '{"n":1e308}', **schema(document))
    with pytest.raises(ChatSubmitNonconformant, match="cannot be shown"):
        await check(pool, '{"n":1' + "0" * 400 + "}", **schema(document))
    with pytest.raises(ChatSubmitNonconformant):
        await check(pool, '{"n":1' + "0" * 5000 + "}", **schema(document))


async def test_a_content_that_is_too_large_to_check_is_refused(pool: SchemaPool) -> None:
    content = json.dumps({"shade": "x" * verification.MAX_INLINE_BYTES})
    form = {"response_format": {"type": "json_object"}}

    await check(pool, content, **form)
    with pytest.raises(ChatSubmitNonconformant, match="at most"):
        await check(pool, json.dumps({"a": "x" * verification.MAX_DOCUMENT_BYTES}), **form)
