"""A conversation as one string, and how many tokens it is estimated at (spec, Flattened prompt).

An estimate only: sizing, price and moderation read it, workers never receive it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from handlers.chat.body import AssistantMessage, ImagePart, Message, Tool

IMAGE = "[image]"
"""Stands for an image part."""

IMAGE_TOKENS = 512
"""Estimate of an image part, on top of its placeholder: what koboldcpp's worker counts for one."""

CHARACTERS_PER_TOKEN = 4

_encode = msgspec.json.Encoder().encode


def flatten(messages: Iterable[Message], tools: Sequence[Tool] | UnsetType = UNSET) -> str:
    """Every message, and then the stored tools, which the worker renders into its prompt too.

    A response format is not among them: workers compile it into a grammar.
    """
    return joined(map(flatten_message, messages), flatten_tools(tools))


def joined(messages: Iterable[str], tools: str | None) -> str:
    """The prompt, of messages and tools that are flattened already."""
    return "\n".join(messages if tools is None else [*messages, tools])


def flatten_message(message: Message) -> str:
    """`role: text`: parts on lines of their own, then an assistant's calls as compact JSON.

    An assistant's content that is null, or absent, is no line.
    """
    content = message.content
    if isinstance(content, str):
        lines = [content]
    else:
        lines = [IMAGE if isinstance(part, ImagePart) else part.text for part in content or ()]
    if isinstance(message, AssistantMessage) and message.tool_calls is not UNSET:
        lines.append(_encode(message.tool_calls).decode())
    return f"{message.__struct_config__.tag}: " + "\n".join(lines)


def flatten_tools(tools: Sequence[Tool] | UnsetType) -> str | None:
    """Compact JSON of the definitions; None where there are none."""
    return None if tools is UNSET else _encode(tools).decode()


def count_images(message: Message) -> int:
    """Image parts of a message."""
    content = message.content
    if content is None or isinstance(content, str):
        return 0
    return sum(isinstance(part, ImagePart) for part in content)


def estimate_tokens(prompt: str, images: int = 0) -> int:
    """Tokens of a flattened prompt with `images` image parts, or of a text request's prompt."""
    return tokens_of(len(prompt), images)


def tokens_of(characters: int, images: int) -> int:
    """Tokens of so many characters, rounded up, and image parts.

    Without the floor of 20 tokens that prices have: this decides what fits.
    """
    return -(-characters // CHARACTERS_PER_TOKEN) + IMAGE_TOKENS * images
