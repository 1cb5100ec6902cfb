"""Tools, tool choice, response format, and the calls of the history (spec, Tools).

Pure functions of the body's structs: the OpenAI-compatible front applies the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from handlers.chat import documents, schemas
from handlers.chat.body import (
    AssistantMessage,
    ChatBody,
    Extras,
    FunctionChoice,
    JsonSchemaFormat,
    Message,
    TextFormat,
    Tool,
    ToolMessage,
)

MAX_TOOLS = 128
MAX_SPEC_BYTES = 256 * 1024
"""Of the compact JSON of tools, tool_choice and response_format, each as it is stored, together."""

_UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: "
)
_UNASKED = (
    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
    "'tool_calls'."
)

_encode = msgspec.json.Encoder().encode


class Break(NamedTuple):
    """Where a history breaks the rule of tool calls, and OpenAI's sentence for it."""

    path: str
    sentence: str


def history_break(messages: Sequence[Message]) -> Break | None:
    """The first place where calls and their answers do not fit.

    An assistant message with calls is followed at once by one tool message for each of its ids, in
    any order. Its ids are unique; a later message may use them again.
    """
    calls: dict[str, bool] = {}
    """Ids of the latest assistant message with calls, in its order: whether each is answered."""
    left = 0
    for at, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            answered = calls.get(message.tool_call_id)
            if not left or answered:
                return Break(f"messages[{at}].role", _UNASKED)
            if answered is None:
                return Break(
                    f"messages[{at}].tool_call_id",
                    f"Invalid parameter: 'tool_call_id' of '{message.tool_call_id}' not found in "
                    "'tool_calls' of previous message.",
                )
            calls[message.tool_call_id] = True
            left -= 1
            continue
        if left:
            return Break(f"messages[{at}].role", _unanswered(calls))
        if isinstance(message, AssistantMessage) and message.tool_calls is not UNSET:
            calls = {}
            for call in message.tool_calls:
                if call.id in calls:
                    return Break(
                        f"messages[{at}].tool_calls",
                        f"The id '{call.id}' is repeated within one message.",
                    )
                calls[call.id] = False
            left = len(calls)
    return Break("messages", _unanswered(calls)) if left else None


def _unanswered(calls: dict[str, bool]) -> str:
    return _UNANSWERED + ", ".join(name for name, answered in calls.items() if not answered)


def extras(body: ChatBody) -> Extras:
    """The tools and the format that the body applies, as they are stored: in the client's shape,
    each only where it is one (null, an empty `tools` and a format of text are none).

    Raise ChatRequestConflict for a choice that the tools do not support; UnsupportedChatParameter
    past a limit and for a strict schema that breaks OpenAI's form.
    """
    tools = body.tools or UNSET
    choice = UNSET if body.tool_choice is None else body.tool_choice
    parallel = UNSET if body.parallel_tool_calls is None else body.parallel_tool_calls
    wanted = body.response_format
    form = UNSET if wanted is None or isinstance(wanted, TextFormat) else wanted
    if tools is UNSET:
        if choice is not UNSET:
            raise _needs_tools("tool_choice")
        if parallel is not UNSET:
            raise _needs_tools("parallel_tool_calls")
        if form is UNSET:
            return Extras()
    elif len(tools) > MAX_TOOLS:
        raise documents.unsupported(
            "tools", f"tools: at most {MAX_TOOLS} tools are allowed, not {len(tools)}."
        )
    elif isinstance(choice, FunctionChoice):
        _check_defined(choice.function.name, tools)
    _check_size(*(value for value in (tools, choice, form) if value is not UNSET))
    for at, tool in enumerate(() if tools is UNSET else tools):
        _check_tool(f"tools[{at}].function.parameters", tool)
    if isinstance(form, JsonSchemaFormat):
        _check_format(form)
    return Extras(
        tools=tools, tool_choice=choice, parallel_tool_calls=parallel, response_format=form
    )


def _needs_tools(key: str) -> Exception:
    return documents.conflict(
        key, f"Invalid value for '{key}': '{key}' is only allowed when 'tools' are specified."
    )


def _check_defined(name: str, tools: list[Tool]) -> None:
    if not any(tool.function.name == name for tool in tools):
        raise documents.conflict(
            "tool_choice",
            f"Invalid value for 'tool_choice': 'tools' defines no function "
            f"'{documents.shown(name)}'.",
        )


def _check_size(*values: Any) -> None:
    size = sum(len(_encode(value)) for value in values)
    if size > MAX_SPEC_BYTES:
        raise documents.unsupported(
            "tools",
            f"tools, tool_choice and response_format may have at most {MAX_SPEC_BYTES} bytes of "
            f"JSON together, not {size}.",
        )


def _check_tool(path: str, tool: Tool) -> None:
    function = tool.function
    schema = function.parameters if isinstance(function.parameters, dict) else {}
    _check_nesting(path, schema)
    fault = schemas.strict_fault(schema) if function.strict is True else None
    if fault is not None:
        raise documents.unsupported(path, f"Invalid schema for function '{function.name}': {fault}")


def _check_format(form: JsonSchemaFormat) -> None:
    path = "response_format.json_schema.schema"
    wanted = form.json_schema
    _check_nesting(path, wanted.schema)
    fault = schemas.strict_fault(wanted.schema) if wanted.strict is True else None
    if fault is not None:
        name = documents.shown(wanted.name)
        raise documents.unsupported(path, f"Invalid schema for response_format '{name}': {fault}")


def _check_nesting(path: str, schema: dict[str, Any]) -> None:
    if schemas.nests_too_deep(schema):
        raise documents.unsupported(
            path, f"{path}: at most {schemas.MAX_NESTING} levels may nest below the root."
        )
