"""What a request needs of a worker: the only place that derives it (spec, Guarantees).

Derived once, of the request as it is stored: after turns were dropped, and before any pop.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from handlers.chat import images
from handlers.chat.body import (
    SAMPLING_DEFAULTS,
    AssistantMessage,
    ChatRequest,
    Extras,
    FunctionChoice,
    JsonSchemaFormat,
    Message,
    ToolMessage,
)


def required_features(request: ChatRequest) -> tuple[str, ...]:
    """The features, and under strict the guarantees, that a worker has to declare; sorted.

    `chat_required_features` of the specification, in the words of vocabulary.py.
    """
    needed = set(_features(request))
    if request.horde.conformance == "strict":
        needed.update(_guarantees(request.extras))
    return tuple(sorted(needed))


def forwards_tools(extras: Extras) -> bool:
    """Whether the worker gets tool definitions: it has none of them under the choice `none`."""
    return extras.tools is not UNSET and extras.tool_choice != "none"


def tools_temperature(request: ChatRequest) -> float | None:
    """The temperature that the job carries, if it forwards tools: what a worker's
    `tools_max_temperature` is compared with."""
    if not forwards_tools(request.extras):
        return None
    temperature = request.sampling.temperature
    return SAMPLING_DEFAULTS["temperature"] if temperature is UNSET else temperature


def _features(request: ChatRequest) -> Iterator[str]:
    sampling, form = request.sampling, request.extras.response_format
    if sampling.seed is not UNSET:
        yield "seed"
    if sampling.reasoning_effort is not UNSET:
        yield "reasoning_effort"
    if sampling.presence_penalty is not UNSET and sampling.presence_penalty != 0:
        yield "presence_penalty"
    if sampling.frequency_penalty is not UNSET and sampling.frequency_penalty != 0:
        yield "frequency_penalty"
    if any(images.placed(request.messages)):
        yield "vision"
    if forwards_tools(request.extras) or any(map(_is_tool_history, request.messages)):
        yield "tools"
    if form is not UNSET:
        yield "json_schema" if isinstance(form, JsonSchemaFormat) else "json_object"
        if forwards_tools(request.extras):
            yield "tools_with_response_format"


def _is_tool_history(message: Message) -> bool:
    return isinstance(message, ToolMessage) or (
        isinstance(message, AssistantMessage) and message.tool_calls is not UNSET
    )


def _guarantees(extras: Extras) -> Iterator[str]:
    yield "prompt_overflow_refused"
    choice, form = extras.tool_choice, extras.response_format
    if choice == "required" or isinstance(choice, FunctionChoice):
        yield "tool_choice_enforced"
    if isinstance(form, JsonSchemaFormat) and form.json_schema.strict is True:
        yield "structured_output_enforced"
