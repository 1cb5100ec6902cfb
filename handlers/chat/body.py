"""The body of `POST /v2/generate/chat/async`, as sent (spec, Request body; Tools; horde object).

Shapes only: what JSON types and ranges can say. Null is the same as leaving out in every optional
key of the body, in an option of `horde` whose default is none, and in a message's `name`, which
clients that keep authors send so. Nowhere else in a message: its other keys are sent on unchanged.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from handlers.text.payload import MOST_CONTEXT, MaxLength, Temperature, TopP

MAX_MODEL_COUNT = 5
MAX_MODEL_CHARACTERS = 255
MAX_NAME_CHARACTERS = 256
"""Of a message's author. The text limit counts content; a name must not be a way around it."""
MAX_TOOL_CALL_ID_CHARACTERS = 256
MAX_TOOL_CALL_COUNT = 128
MAX_WORKERS = 100
"""In `only` and in `ignore`: each goes into the log and into the queue's row."""
DEFAULT_MAX_LENGTH = 512
"""OpenAI clients usually send no limit, and the text default of 80 is too short for a reply."""
DEFAULT_MAX_CONTEXT_LENGTH = 2048

# messages


class TextPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"
):
    """Text of a message."""

    text: str


class ImageUrl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where an image is: a data URL, or http(s)."""

    url: str
    detail: Literal["auto", "low", "high"] | UnsetType = UNSET


class ImagePart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="image_url"
):
    """An image of a user message."""

    image_url: ImageUrl


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function that a call of the history names; its arguments are JSON text."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of an assistant message of the history."""

    id: Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_CALL_ID_CHARACTERS)]
    type: Literal["function"]
    function: CalledFunction


_Text = str | list[TextPart]
_Name = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)] | UnsetType | None


class _Message(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role"
):
    """What the messages of every role share on the wire: the `role` that tells them apart."""


class SystemMessage(_Message, frozen=True, kw_only=True, tag="system"):
    """Instructions."""

    content: _Text
    name: _Name = UNSET


class DeveloperMessage(_Message, frozen=True, kw_only=True, tag="developer"):
    """Instructions, by OpenAI's newer name. Stored as `system`."""

    content: _Text
    name: _Name = UNSET


class UserMessage(_Message, frozen=True, kw_only=True, tag="user"):
    """What the user says and shows."""

    content: str | list[TextPart | ImagePart]
    name: _Name = UNSET


class AssistantMessage(_Message, frozen=True, kw_only=True, tag="assistant"):
    """What the model said, or called. Content may be null or absent beside calls only."""

    content: _Text | None = None
    name: _Name = UNSET
    tool_calls: (
        Annotated[list[ToolCall], Meta(min_length=1, max_length=MAX_TOOL_CALL_COUNT)] | UnsetType
    ) = UNSET


class ToolMessage(_Message, frozen=True, kw_only=True, tag="tool"):
    """The result of one call."""

    content: _Text
    tool_call_id: Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_CALL_ID_CHARACTERS)]


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage

# tools


class Function(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be called."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    description: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class Tool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tool definition."""

    type: Literal["function"]
    function: Function


class ChosenFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of the function that has to be called."""

    name: Annotated[str, Meta(min_length=1)]


class FunctionChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `tool_choice` that forces one function."""

    type: Literal["function"]
    function: ChosenFunction


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a reply has to match."""

    name: Annotated[str, Meta(min_length=1)]
    schema: dict[str, Any]
    description: str | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class _Format(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"
):
    """What every response format has on the wire: its `type`."""


class TextFormat(_Format, frozen=True, kw_only=True, tag="text"):
    """No format: the same as leaving `response_format` out."""


class JsonObjectFormat(_Format, frozen=True, kw_only=True, tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(_Format, frozen=True, kw_only=True, tag="json_schema"):
    """JSON that matches a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat

# the horde object

_Workers = Annotated[list[str], Meta(min_length=1, max_length=MAX_WORKERS)]


class HordeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What OpenAI has no key for, its defaults filled in (spec, Request body: the `horde` object).

    The front reads the same struct, so both accept the same keys and values.
    """

    only: Annotated[
        _Workers | None, Meta(description="Ids of the workers that may serve it, and no others.")
    ] = None
    ignore: Annotated[
        _Workers | None, Meta(description="Ids of workers that may not. Not beside `only`.")
    ] = None
    trusted_workers: Annotated[
        bool, Meta(description="Only workers of trusted accounts may serve it.")
    ] = False
    validated_backends: Annotated[
        bool, Meta(description="Only workers whose bridge is a known one may serve it.")
    ] = False
    slow_workers: Annotated[
        bool, Meta(description="False: only workers that are fast enough for their model's size.")
    ] = True
    max_context_length: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_CONTEXT)] | None,
        Meta(description="Tokens of prompt and reply to start from; 2048 where it is left out."),
    ] = None
    context_fit: Annotated[
        Literal["grow", "reject", "truncate_oldest"],
        Meta(description="What becomes of a conversation that does not fit the context."),
    ] = "truncate_oldest"
    conformance: Annotated[
        Literal["strict", "best_effort"],
        Meta(description="Whether the worker has to declare the guarantees too."),
    ] = "strict"
    openai_guards: Annotated[
        bool, Meta(description="Refuse what OpenAI does: `json_object` without the word 'json'.")
    ] = False
    include_reasoning: Annotated[bool, Meta(description="For a front; nothing here reads it.")] = (
        True
    )
    availability_mode: Annotated[
        Literal["wait", "fail_fast"], Meta(description="For a front; nothing here reads it.")
    ] = "wait"
    max_kudos: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Refuse the request if it is estimated to cost more."),
    ] = None
    dry_run: Annotated[bool, Meta(description="Tell the estimate, and queue nothing.")] = False
    operation_key: Annotated[
        str | None,
        Meta(description="A UUID. A repeat of the same request under it gets the first one's id."),
    ] = None


# the body

_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_MaxTokens = MaxLength | UnsetType | None
_Model = Annotated[str, Meta(min_length=1, max_length=MAX_MODEL_CHARACTERS)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)] | UnsetType | None


class ChatBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole body."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    model: _Model | UnsetType | None = UNSET
    models: (
        Annotated[list[_Model], Meta(min_length=1, max_length=MAX_MODEL_COUNT)] | UnsetType | None
    ) = UNSET
    max_tokens: _MaxTokens = UNSET
    max_completion_tokens: _MaxTokens = UNSET
    temperature: Temperature | UnsetType | None = UNSET
    top_p: TopP | UnsetType | None = UNSET
    frequency_penalty: _Penalty = UNSET
    presence_penalty: _Penalty = UNSET
    seed: _Int64 | UnsetType | None = UNSET
    reasoning_effort: (
        Literal["none", "minimal", "low", "medium", "high", "xhigh"] | UnsetType | None
    ) = UNSET
    stop: str | list[str] | UnsetType | None = UNSET
    n: _Int64 | UnsetType | None = UNSET
    stream: bool | UnsetType | None = UNSET
    stream_options: dict[str, Any] | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType | None = UNSET
    tools: list[Tool] | UnsetType | None = UNSET
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    response_format: ResponseFormat | UnsetType | None = UNSET
    horde: HordeOptions | UnsetType | None = UNSET


# what it means


class Extras(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client's tools and format: stored as sent, each only where it changes the answer (spec,
    Tools: `chat_extras`). Empty where the request applies none."""

    tools: list[Tool] | UnsetType = UNSET
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    response_format: JsonObjectFormat | JsonSchemaFormat | UnsetType = UNSET


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Text params of the request but for its lengths. UNSET: the client did not send it."""

    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    reasoning_effort: str | UnsetType = UNSET
    stop_sequence: list[str] | UnsetType = UNSET
    """Distinct and not empty."""


SAMPLING_DEFAULTS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
"""What a job carries where the client sent nothing. A value sent at its default is no other request
than one left out."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A valid body, mapped: what `request.read` returns and every later rule works on."""

    models: tuple[str, ...]
    models_key: str  # the key they came in, "model" or "models": refusals name it
    messages: list[Message]
    """As stored: `developer` is `system`. Images still as submitted."""
    max_length: int  # tokens, as asked for
    sampling: Sampling
    extras: Extras
    stream: bool
    horde: HordeOptions
    text_bytes: int  # UTF-8, of all message text and history calls
    images: int
