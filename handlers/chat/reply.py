"""What a worker's submit must be (spec, Structured submit)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from events.faults import MESSAGES
from events.types import Usage
from handlers.chat import documents
from handlers.errors import ChatModelMismatch, ChatSubmitInvalid
from handlers.reply import Reply

MAX_TOKENS = 10_000_000
MAX_REASONING_BYTES = 1_048_576
MAX_CALLS = 128


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v2/generate/text/submit`. Unknown keys are ignored, as on text routes.

    What makes up a reply stays raw until the job is known: a reply to an aborted job is refused as
    that, whatever it looks like.
    """

    id: Annotated[str, Meta(max_length=255)]
    state: Literal["ok", "censored", "csam", "faulted"] | None = None
    seed: int | Annotated[str, Meta(pattern=r"^[+-]?\d{1,20}$")] | None = None
    generation: Raw | UnsetType = UNSET
    message: Raw | UnsetType = UNSET
    finish_reason: Raw | UnsetType = UNSET
    native_finish_reason: Raw | UnsetType = UNSET
    prompt_tokens: Raw | UnsetType = UNSET
    completion_tokens: Raw | UnsetType = UNSET
    reasoning_tokens: Raw | UnsetType = UNSET
    model_id: Raw | UnsetType = UNSET
    fault_reason: Raw | UnsetType = UNSET
    gen_metadata: Raw | UnsetType = UNSET
    """Of a text job's reply; a chat job's has none."""

    @property
    def chat(self) -> bool:
        """Whether it has the form of a chat submit; any other is a text submit."""
        keys = (self.message, self.model_id, self.finish_reason, self.fault_reason)
        return any(key is not UNSET for key in keys)

    @property
    def faulted(self) -> bool:
        """Whether the worker gives the job up."""
        return self.state == "faulted"


class Function(msgspec.Struct, frozen=True):
    """The function that a call names, and its arguments as JSON text."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call, as minted by the backend."""

    id: Annotated[str, Meta(min_length=1)]
    type: Literal["function"]
    function: Function


class ReplyMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The reply. Null in an optional key is the same as leaving it out."""

    role: Literal["assistant"]
    content: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(min_length=1, max_length=MAX_CALLS)] | None = None
    reasoning_content: str | None = None


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The reply as the status shows it."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


# What stands in the raw fields of a chat submit, besides ReplyMessage.
Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None
FinishReason = Literal["stop", "length", "content_filter", "tool_calls"]
NativeFinishReason = Annotated[str, Meta(max_length=32)] | None

_submit: msgspec.json.Decoder[Submit] = msgspec.json.Decoder(Submit)
_message = msgspec.json.Decoder(ReplyMessage)
_finish: msgspec.json.Decoder[str] = msgspec.json.Decoder(FinishReason)
_native: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(NativeFinishReason)
_count: msgspec.json.Decoder[int | None] = msgspec.json.Decoder(Count)
_name = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode


def read(raw: bytes) -> Submit:
    """Read the body of a submit; raise BadRequest for what every submit must have."""
    try:
        return documents.decode(_submit, raw)
    except documents.Misfit as misfit:
        raise documents.invalid(misfit.fault) from None


def check_model(submit: Submit, assigned_model: str) -> None:
    """Raise ChatSubmitInvalid without a model_id, ChatModelMismatch for another model."""
    if submit.model_id is UNSET:
        raise ChatSubmitInvalid("model_id is required.")
    if _part(submit.model_id, _name, "model_id") != assigned_model:
        raise ChatModelMismatch(
            f"This job was assigned with the model {assigned_model!r}: model_id has to name it."
        )


def fault_reason(submit: Submit) -> str:
    """Why the worker gave the job up: a word of events/faults.py, `unknown` for anything else,
    `none` where it said nothing."""
    if submit.fault_reason is UNSET or bytes(submit.fault_reason) == b"null":
        return "none"
    try:
        word = _name.decode(submit.fault_reason)
    except msgspec.DecodeError:
        return "unknown"
    return word if word in MESSAGES else "unknown"


class Given(NamedTuple):
    """A reply of the right shape, not yet held to the rules of its request."""

    message: ReplyMessage
    finish_reason: str
    usage: Usage


def given(submit: Submit, assigned_model: str) -> Given:
    """What a submit of a chat job delivers; raise ChatSubmitInvalid or ChatModelMismatch."""
    if submit.message is UNSET:
        raise ChatSubmitInvalid("message is required: this is a chat job.")
    if submit.generation is not UNSET:
        raise ChatSubmitInvalid("A submit carries message or generation, not both.")
    check_model(submit, assigned_model)
    if submit.finish_reason is UNSET:
        raise ChatSubmitInvalid("finish_reason is required.")
    finish_reason = _part(submit.finish_reason, _finish, "finish_reason")
    message = _part(submit.message, _message, "message")
    if message.content is None and not message.tool_calls:
        raise ChatSubmitInvalid("message.content may be null only with message.tool_calls.")
    if finish_reason == "tool_calls" and not message.tool_calls:
        raise ChatSubmitInvalid("finish_reason tool_calls needs message.tool_calls.")
    reasoning = message.reasoning_content
    if reasoning is not None and len(reasoning.encode()) > MAX_REASONING_BYTES:
        raise ChatSubmitInvalid(
            f"message.reasoning_content may have at most {MAX_REASONING_BYTES} bytes."
        )
    native = _optional(submit.native_finish_reason, _native, "native_finish_reason")
    return Given(
        message,
        finish_reason,
        Usage(
            native_finish_reason=None if native is None else without_nul(native),
            prompt_tokens=_optional(submit.prompt_tokens, _count, "prompt_tokens"),
            completion_tokens=_optional(submit.completion_tokens, _count, "completion_tokens"),
            reasoning_tokens=_optional(submit.reasoning_tokens, _count, "reasoning_tokens"),
        ),
    )


def stored(submit: Submit, kept: Given) -> Reply:
    """What is stored of a reply that may stand, and what the log says of it."""
    message = kept.message
    calls = message.tool_calls or []
    return Reply(
        stored=_encode(_stored(message)),
        state=submit.state or "ok",
        finish_reason=kept.finish_reason,
        characters=len(message.content or "")
        + len(message.reasoning_content or "")
        + sum(len(call.function.name) + len(call.function.arguments) for call in calls),
        tool_calls=len(calls),
        seed=seed_of(submit.seed),
        usage=kept.usage,
        empty=not message.content and not calls,
    )


def _part(raw: Raw, decoder: msgspec.json.Decoder[Any], path: str) -> Any:
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError as error:
        fault = documents.fault_of(str(error))
        below = fault.path if fault.path.startswith("[") or not fault.path else f".{fault.path}"
        where = f"{path}{below}"
        raise ChatSubmitInvalid(f"{where}: {fault.reason}", errors={where: fault.reason}) from None


def _optional(raw: Raw | UnsetType, decoder: msgspec.json.Decoder[Any], path: str) -> Any:
    return None if raw is UNSET else _part(raw, decoder, path)


def _stored(message: ReplyMessage) -> StoredMessage:
    calls = message.tool_calls
    return StoredMessage(
        content=None if message.content is None else without_nul(message.content),
        tool_calls=UNSET if calls is None else [_stored_call(call) for call in calls],
        reasoning_content=UNSET
        if message.reasoning_content is None
        else without_nul(message.reasoning_content),
    )


def _stored_call(call: ToolCall) -> ToolCall:
    function = call.function
    return ToolCall(
        id=without_nul(call.id),
        type="function",
        function=Function(
            name=without_nul(function.name), arguments=without_nul(function.arguments)
        ),
    )


def without_nul(text: str) -> str:
    """As it may be stored: U+FFFD for U+0000."""
    return text.replace("\0", "\ufffd")


_SEEDS = range(-(2**63), 2**63)


def seed_of(seed: int | str | None) -> int:
    """Number text is read as a number; none, or one that no 64-bit field holds, is 0."""
    number = int(seed or 0)
    return number if number in _SEEDS else 0
