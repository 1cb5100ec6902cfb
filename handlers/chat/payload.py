"""What of a chat request is kept for its worker, and what the worker gets (spec, Chat job pop
response)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from handlers.chat.body import (
    SAMPLING_DEFAULTS,
    ChatRequest,
    Extras,
    FunctionChoice,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    Tool,
)


class ToolKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The tool keys as a worker gets them: `none` and the choice of one function never reach it."""

    tools: list[Tool] | UnsetType = UNSET
    tool_choice: Literal["auto", "required"] | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET


class ChatPayload(ToolKeys, frozen=True, kw_only=True):
    """The payload of a chat job but for its messages. Stored when the request is created.

    Every sampling key is always present, so that no worker's defaults apply to a chat job.
    """

    max_length: int  # tokens
    max_context_length: int  # tokens
    temperature: float
    top_p: float
    frequency_penalty: float
    presence_penalty: float
    rep_pen: float = 1.0
    top_k: int = 0
    min_p: float = 0
    n: int = 1
    stop_sequence: list[str] | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    reasoning_effort: str | UnsetType = UNSET
    response_format: JsonObjectFormat | JsonSchemaFormat | UnsetType = UNSET
    stream_progress: Literal[True] | UnsetType = UNSET


class NoJob(msgspec.Struct, frozen=True):
    """The payload of a pop that found nothing: the text path's injected defaults (5.7)."""

    max_context_length: int = 2048
    max_length: int = 80
    min_p: float = 0.0
    smoothing_factor: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0


_encode = msgspec.json.Encoder().encode


def of(request: ChatRequest, *, max_length: int, max_context_length: int) -> bytes:
    """The payload of the request's job but for its messages, JSON, under the budgets (in tokens)
    that the request was sized to."""
    narrowed = _narrowed(request.extras)
    return _encode(
        ChatPayload(
            max_length=max_length,
            max_context_length=max_context_length,
            tools=narrowed.tools,
            tool_choice=narrowed.tool_choice,
            parallel_tool_calls=narrowed.parallel_tool_calls,
            response_format=request.extras.response_format,
            stream_progress=True if request.stream else UNSET,
            **(SAMPLING_DEFAULTS | msgspec.to_builtins(request.sampling)),
        )
    )


def _narrowed(extras: Extras) -> ToolKeys:
    """Under `none` nothing; of a forced function that one alone, as required; else as stored."""
    tools, choice = extras.tools, extras.tool_choice
    if tools is UNSET or choice == "none":
        return ToolKeys()
    if isinstance(choice, FunctionChoice):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
        choice = "required"
    return ToolKeys(tools=tools, tool_choice=choice, parallel_tool_calls=extras.parallel_tool_calls)


def messages(kept: Sequence[Message]) -> bytes:
    """Messages as they are stored and sent, JSON: an assistant's absent content is null."""
    return _encode(kept)


def extras(kept: Extras) -> bytes | None:
    """The client's tools and format, JSON: what a reply is verified against. None without any."""
    stored = _encode(kept)
    return None if stored == b"{}" else stored


def rendered(messages: bytes, payload: bytes) -> msgspec.Raw:
    """The payload as it goes out: the stored one with the stored messages in front, both JSON."""
    return msgspec.Raw(b'{"messages":' + messages + b"," + payload[1:])


def rendered_url(url: str, payload: bytes) -> msgspec.Raw:
    """The same with the URL of the messages in place of them."""
    return msgspec.Raw(b'{"messages_url":' + _encode(url) + b"," + payload[1:])
