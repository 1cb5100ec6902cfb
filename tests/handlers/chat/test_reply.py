"""What a worker's reply must be, and what is stored of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from events.types import Usage
from handlers.chat import reply
from handlers.errors import BadRequest, ChatModelMismatch, ChatSubmitInvalid
from tests.spec import spec

ID = "00000000-0000-4000-8000-000000000000"
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def message(**changed: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "hello"} | changed


def raw(**changed: Any) -> bytes:
    body = {"id": ID, "message": message(), "finish_reason": "stop", "model_id": "m"} | changed
    return json.dumps({name: value for name, value in body.items() if value is not ...}).encode()


def stored(**changed: Any) -> Any:
    submit = reply.read(raw(**changed))
    return reply.stored(submit, reply.given(submit, "m"))


@spec("Structured submit", 1, 2, 3, 4, 5, 7)
def test_a_reply_is_stored_as_its_message() -> None:
    found = stored(
        native_finish_reason="eos",
        prompt_tokens=10,
        completion_tokens=2,
        reasoning_tokens=0,
        seed="12",
        state="censored",
    )

    assert json.loads(found.stored) == message()
    assert (found.state, found.finish_reason, found.characters, found.seed) == (
        "censored",
        "stop",
        5,
        12,
    )
    assert found.usage == Usage(
        native_finish_reason="eos", prompt_tokens=10, completion_tokens=2, reasoning_tokens=0
    )


@spec("Reasoning", 1, 2)
@spec("Pricing", 2)
def test_calls_and_reasoning_are_stored_and_counted() -> None:
    sent = message(content=None, tool_calls=[CALL | {"index": 0}], reasoning_content="hm", audio=1)
    found = stored(message=sent, finish_reason="tool_calls")

    assert json.loads(found.stored) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
        "reasoning_content": "hm",
    }
    assert (found.tool_calls, found.characters) == (1, len("f") + len("{}") + len("hm"))


def test_an_empty_content_is_a_reply() -> None:
    assert stored(message=message(content="")).characters == 0


@spec("Structured submit", 14)
@spec("Reasoning", 1)
def test_nul_is_replaced_in_every_string() -> None:
    call = {"id": "\0", "type": "function", "function": {"name": "f\0", "arguments": "\0"}}
    found = stored(
        message=message(content="x\0y", tool_calls=[call], reasoning_content="\0"),
        native_finish_reason="\0",
    )

    assert "\\u0000" not in found.stored.decode()
    assert json.loads(found.stored)["content"] == "x\ufffdy"
    assert found.usage.native_finish_reason == "\ufffd"


def test_a_backslash_before_u0000_stays() -> None:
    assert json.loads(stored(message=message(content="\\u0000")).stored)["content"] == "\\u0000"


@spec("Structured submit", 1, 2, 3, 4, 5, 6, 10)
@spec("Reasoning", 3)
@pytest.mark.parametrize(
    "changed",
    [
        {"message": ...},
        {"message": None},
        {"message": "hello"},
        {"message": message(role="user")},
        {"message": message(content=None)},
        {"message": message(content=1)},
        {"message": message(tool_calls=[])},
        {"message": message(tool_calls=[CALL] * 129)},
        {"message": message(tool_calls=[CALL | {"function": {"name": "f", "arguments": {}}}])},
        {"message": message(tool_calls=[CALL | {"type": "custom"}])},
        {"message": message(reasoning_content="é" * 524_289)},
        {"finish_reason": ...},
        {"finish_reason": "eos"},
        {"finish_reason": "tool_calls"},
        {"native_finish_reason": "x" * 33},
        {"prompt_tokens": -1},
        {"completion_tokens": 10_000_001},
        {"reasoning_tokens": "3"},
        {"model_id": ...},
        {"model_id": 3},
        {"generation": "hello"},
    ],
)
def test_what_is_no_reply_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ChatSubmitInvalid):
        stored(**changed)


def test_a_lone_surrogate_is_refused() -> None:
    body = raw().replace(b'"hello"', b'"\\ud83d"')

    with pytest.raises(BadRequest):
        reply.read(body)


@spec("Structured submit", 6, 10)
def test_another_model_is_a_mismatch() -> None:
    with pytest.raises(ChatModelMismatch):
        stored(model_id="other")


@pytest.mark.parametrize("changed", [{"id": 3}, {"id": ...}, {"state": "fine"}, {"seed": "x"}])
def test_what_no_submit_may_be_is_a_bad_request(changed: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        reply.read(raw(**changed))


@spec("Structured submit", 9)
@pytest.mark.parametrize(
    ("body", "chat"),
    [
        ({"message": message()}, True),
        ({"model_id": "m"}, True),
        ({"finish_reason": "stop"}, True),
        ({"fault_reason": "generation_error"}, True),
        ({"generation": "text"}, False),
        ({}, False),
    ],
)
def test_a_chat_submit_is_told_from_a_text_submit(body: dict[str, Any], chat: bool) -> None:
    assert reply.read(json.dumps({"id": ID} | body).encode()).chat is chat


def test_a_seed_that_no_field_holds_is_none() -> None:
    assert stored(seed=2**70).seed == 0
    assert stored(seed=None).seed == 0
    assert stored(seed=-(2**63)).seed == -(2**63)
