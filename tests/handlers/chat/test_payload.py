"""What is kept of a request for its worker, and what the worker gets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from handlers.chat import payload
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

F, G = function("f", parameters={"type": "object"}), function("g")
FORM = schema_format({"type": "object"}, strict=False)


def job(**changed: Any) -> dict[str, Any]:
    """The payload of a body, but for its messages."""
    return dict(
        msgspec.json.decode(payload.of(read(**changed), max_length=300, max_context_length=4096))
    )


@spec("Chat job pop response", 3, 4, 5)
def test_every_sampling_key_is_present_with_its_default() -> None:
    assert job() == {
        "max_length": 300,
        "max_context_length": 4096,
        "temperature": 1.0,
        "top_p": 1.0,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "rep_pen": 1.0,
        "top_k": 0,
        "min_p": 0,
        "n": 1,
    }


@spec("Chat job pop response", 3, 4)
@spec("Request body", 5, 6, 7, 8, 9)
def test_what_the_client_sent_takes_the_place_of_a_default() -> None:
    sent = {
        "temperature": 0,
        "top_p": 0.5,
        "frequency_penalty": -2,
        "presence_penalty": 1.5,
        "seed": -1,
        "reasoning_effort": "none",
    }

    assert job(**sent, stop="END") == job() | sent | {"stop_sequence": ["END"]}


@spec("Chat job pop response", 5)
def test_the_budgets_are_the_ones_it_was_sized_to() -> None:
    assert job(max_tokens=16384, horde={"max_context_length": 80})["max_length"] == 300
    assert job(max_tokens=16384, horde={"max_context_length": 80})["max_context_length"] == 4096


@spec("Request body", 11)
def test_workers_are_told_to_stream_only_when_asked() -> None:
    assert job(stream=True) == job() | {"stream_progress": True}
    assert job(stream=False) == job()


@spec("Chat job pop response", 2)
@spec("Request body", 13, 14)
@pytest.mark.parametrize("chosen", ["auto", "required"])
def test_tool_keys_and_format_are_sent_as_stored(chosen: str) -> None:
    sent = {
        "tools": [F, G],
        "tool_choice": chosen,
        "parallel_tool_calls": False,
        "response_format": FORM,
    }

    assert job(**sent) == job() | sent
    assert job(tools=[F]) == job() | {"tools": [F]}


@spec("Chat job pop response", 6)
def test_the_choice_of_none_sends_no_tool_key() -> None:
    sent = {"tools": [F, G], "tool_choice": "none", "parallel_tool_calls": True}

    assert job(**sent) == job()
    assert job(**sent, response_format=FORM) == job() | {"response_format": FORM}


@spec("Chat job pop response", 7)
def test_a_forced_function_is_sent_alone_and_as_required() -> None:
    """C-035."""
    sent = {"tools": [F, G], "tool_choice": choice("g"), "parallel_tool_calls": False}

    assert job(**sent) == job() | {
        "tools": [G],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }


@spec("Tools", 19, 20)
@pytest.mark.parametrize("chosen", ["none", choice("g")])
def test_what_a_reply_is_verified_against_is_the_clients_not_the_narrowed(chosen: Any) -> None:
    sent = {"tools": [F, G], "tool_choice": chosen, "response_format": FORM}

    stored = payload.extras(read(**sent).extras)

    assert stored is not None
    assert msgspec.json.decode(stored) == sent


@spec("Tools", 19)
def test_a_request_without_any_has_no_extras() -> None:
    nothing = {"tools": [], "response_format": {"type": "text"}, "stream": True}

    assert payload.extras(read(**nothing).extras) is None


@spec("Chat job pop response", 1)
@spec("Tools", 18)
def test_messages_are_stored_as_workers_get_them() -> None:
    parts = [{"type": "text", "text": "18"}, {"type": "text", "text": "C"}]
    sent = [
        {"role": "developer", "content": "be kind"},
        shows({"type": "text", "text": "what is it?"}, image(detail="high")),
        called("a", "b"),
        answer("b", parts),
        answer("a"),
        {"role": "assistant", "content": ""},
        USER,
    ]

    stored = payload.messages(read(messages=sent).messages)

    assert msgspec.json.decode(stored) == [
        {"role": "system", "content": "be kind"},
        sent[1],
        called("a", "b") | {"content": None},
        *sent[3:],
    ]


@spec("Chat job pop response", 1)
def test_the_stored_messages_go_in_front_of_the_stored_payload() -> None:
    request = read(stop="END")

    rendered = payload.rendered(
        payload.messages(request.messages),
        payload.of(request, max_length=300, max_context_length=4096),
    )

    assert msgspec.json.decode(rendered) == {"messages": [USER]} | job(stop="END")
