"""A conversation as one string, and its estimate in tokens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from handlers.chat.body import Message, Tool
from handlers.chat.flatten import count_images, estimate_tokens, flatten
from tests.spec import spec

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"ü": {}}}},
}


def messages(*sent: dict[str, Any]) -> list[Message]:
    return msgspec.convert(list(sent), list[Message])


def tools(*sent: dict[str, Any]) -> list[Tool]:
    return msgspec.convert(list(sent), list[Tool])


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def image(url: str = "https://example.org/cat.png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@spec("Flattened prompt", 1)
def test_messages_and_their_parts_are_joined_by_newlines() -> None:
    sent = messages(
        {"role": "system", "content": "Be brief.", "name": "ops"},
        {"role": "user", "content": [text("One."), text("Two.\nThree.")]},
        {"role": "assistant", "content": ""},
    )

    assert flatten(sent) == "system: Be brief.\nuser: One.\nTwo.\nThree.\nassistant: "


@spec("Flattened prompt", 2)
def test_an_image_is_a_placeholder() -> None:
    sent = messages({"role": "user", "content": [text("What is this?"), image(), image()]})

    assert flatten(sent) == "user: What is this?\n[image]\n[image]"
    assert [count_images(each) for each in sent] == [2]


@spec("Flattened prompt", 3)
def test_calls_follow_their_text_as_compact_json() -> None:
    said = {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]}
    silent = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL | {"id": "c2"}]}
    json = '{"id":"c1","type":"function","function":{"name":"f","arguments":"{\\"a\\": \\"é\\"}"}}'

    assert flatten(messages(said)) == f"assistant: Let me see.\n[{json}]"
    assert flatten(messages(silent)) == f"assistant: [{json},{json.replace('c1', 'c2')}]"


@spec("Flattened prompt", 3)
def test_a_tool_message_is_its_text() -> None:
    """cases.md C-019: tool results come as parts, too."""
    sent = messages({"role": "tool", "tool_call_id": "c1", "content": [text("18"), text("C")]})

    assert flatten(sent) == "tool: 18\nC"


@spec("Flattened prompt", 4)
def test_the_stored_tools_follow_the_messages() -> None:
    """Nothing else does: a response format is no argument."""
    sent = messages({"role": "user", "content": "Hot?"})

    assert flatten(sent, tools(WEATHER)) == (
        'user: Hot?\n[{"type":"function","function":{"name":"weather",'
        '"parameters":{"type":"object","properties":{"ü":{}}}}}]'
    )
    assert flatten(sent, UNSET) == "user: Hot?"


@spec("Flattened prompt", 5)
@pytest.mark.parametrize(
    ("prompt", "images", "tokens"),
    [
        ("", 0, 0),
        ("a", 0, 1),
        ("abcd", 0, 1),
        ("abcde", 0, 2),
        ("日本語!!", 0, 2),
        ("abcde", 1, 514),
        ("a" * 4000, 20, 11240),
    ],
)
def test_four_characters_are_a_token_and_an_image_is_512(
    prompt: str, images: int, tokens: int
) -> None:
    assert estimate_tokens(prompt, images) == tokens
