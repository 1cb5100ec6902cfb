"""What a chat request's body means (spec, Request body; Refused keys and values).

Everything that the body alone can tell is told here, in one pass over it that is linear in its
size. What needs a user, a worker or a model comes after.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from handlers.chat import documents, images, tools
from handlers.chat.body import (
    DEFAULT_MAX_LENGTH,
    AssistantMessage,
    ChatBody,
    ChatRequest,
    DeveloperMessage,
    Extras,
    HordeOptions,
    JsonObjectFormat,
    Message,
    Sampling,
    SystemMessage,
    TextPart,
    ToolMessage,
)
from handlers.errors import BadRequest
from handlers.text.payload import LEAST_CONTEXT, check_stops

MAX_MESSAGES = 1024
MAX_TEXT_BYTES = 1_048_576

# A role or a part's type names something that chat requests do not have: not a value gone wrong.
_NAMING = re.compile(r"messages\[\d+\]\.(?:role|content\[\d+\]\.type)")
# Quoted as Python would; a long one is cut, and its last quote with it.
_NAMED = re.compile(r"""Invalid value (["'])(.*?)\1?""", re.DOTALL)
# Refused of other roles alone: whoever reads that it is not supported would look no further.
_IMAGE = "image_url"

NO_JSON = (
    "'messages' must contain the word 'json' in some form, to use 'response_format' of type "
    "'json_object'."
)


def read(
    raw: bytes, *, max_messages: int = MAX_MESSAGES, max_text_bytes: int = MAX_TEXT_BYTES
) -> ChatRequest:
    """Read the body of a chat request.

    Raise UnsupportedChatParameter for a key or a named value that is not supported, by its path,
    and past a limit on messages, text and tools; ChatRequestConflict for values that contradict
    each other; BadRequest for malformed JSON, repeated keys, wrong types, forms and ranges;
    NulByteInPayload; and what images.check raises.
    """
    try:
        body = documents.read(ChatBody, raw)
    except documents.Misfit as misfit:
        _refuse(misfit.fault)
    if isinstance(body.n, int) and body.n != 1:
        raise documents.unsupported_value("n", str(body.n))
    if len(body.messages) > max_messages:
        raise documents.unsupported(
            "messages",
            f"messages: at most {max_messages} messages are allowed, not {len(body.messages)}.",
        )
    size = _text_bytes(body.messages)
    if size > max_text_bytes:
        raise documents.unsupported(
            "messages",
            f"messages: their text may have at most {max_text_bytes} bytes, not {size}.",
        )
    messages = [_stored(at, message) for at, message in enumerate(body.messages)]
    broken = tools.history_break(messages)
    if broken is not None:
        raise documents.unsupported(broken.path, f"{broken.path}: {broken.sentence}")
    extras = tools.extras(body)
    horde = _options(body.horde or HordeOptions())
    if horde.openai_guards:
        _check_guards(messages, extras)
    return ChatRequest(
        models=_models(body),
        models_key="models" if body.models else "model",
        messages=messages,
        max_length=_max_length(body),
        sampling=_sampling(body),
        extras=extras,
        stream=body.stream is True,
        horde=horde,
        text_bytes=size,
        images=images.check(messages),
    )


def check_params(request: ChatRequest, max_context_length: int) -> None:
    """Check what else the text params bound, once the context is sized (spec, Routes, step 8).

    Raise BadRequest for a context below theirs, TooManyStopSequences, ExcessiveStopSequence.
    """
    if max_context_length < LEAST_CONTEXT:
        raise _invalid("horde.max_context_length", f"Expected `int` >= {LEAST_CONTEXT}")
    check_stops(request.sampling.stop_sequence or ())


def _refuse(fault: documents.Fault) -> NoReturn:
    if fault.unknown:
        raise documents.unsupported_key(fault.path)
    named = _NAMED.fullmatch(fault.reason)
    if named is not None and _NAMING.fullmatch(fault.path):
        if named[2] == _IMAGE:
            raise documents.unsupported(
                fault.path, f"{fault.path}={_IMAGE} is supported in user messages only."
            )
        raise documents.unsupported_value(fault.path, named[2])
    raise documents.invalid(fault)


def _invalid(path: str, reason: str) -> BadRequest:
    return documents.invalid(documents.Fault(path, reason, unknown=False))


def texts(messages: Iterable[Message]) -> Iterator[str]:
    """What the messages say: each content that is a string, and each text part."""
    for message in messages:
        content = message.content
        if isinstance(content, str):
            yield content
        elif content is not None:
            for part in content:
                if isinstance(part, TextPart):
                    yield part.text


def _text_bytes(messages: Iterable[Message]) -> int:
    """UTF-8 of all that is said, and of the names and arguments that the history's calls hold."""
    size = sum(map(_bytes, texts(messages)))
    for message in messages:
        if isinstance(message, AssistantMessage) and message.tool_calls is not UNSET:
            for call in message.tool_calls:
                size += _bytes(call.function.name) + _bytes(call.function.arguments)
    return size


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _stored(at: int, message: Message) -> Message:
    """A message as workers get it: `developer` is `system` to them, and a name of null is no name.

    Raise BadRequest for an assistant message that neither says nor calls anything.
    """
    if isinstance(message, ToolMessage):
        return message
    name = UNSET if message.name is None else message.name
    if isinstance(message, DeveloperMessage):
        return SystemMessage(content=message.content, name=name)
    silent = isinstance(message, AssistantMessage) and message.tool_calls is UNSET
    if silent and message.content is None:
        raise _invalid(f"messages[{at}].content", "Required unless the message has tool_calls")
    return message if message.name is name else msgspec.structs.replace(message, name=name)


def _models(body: ChatBody) -> tuple[str, ...]:
    model, models = body.model or None, body.models or None
    if models is None:
        if model is None:
            raise _invalid("model", "Expected one of model and models")
        return (model,)
    if model is not None:
        raise documents.conflict("models", "Only one of 'model' and 'models' may be sent.")
    for at, name in enumerate(models):
        if name in models[:at]:
            raise _invalid(f"models[{at}]", "Listed twice")
    return tuple(models)


def _max_length(body: ChatBody) -> int:
    old, new = body.max_tokens or None, body.max_completion_tokens or None
    if old is not None and new is not None and old != new:
        raise documents.conflict(
            "max_completion_tokens",
            "'max_tokens' and 'max_completion_tokens' differ: send one of them, or equal values.",
        )
    return new or old or DEFAULT_MAX_LENGTH


def _sampling(body: ChatBody) -> Sampling:
    return Sampling(
        temperature=_sent(body.temperature),
        top_p=_sent(body.top_p),
        frequency_penalty=_sent(body.frequency_penalty),
        presence_penalty=_sent(body.presence_penalty),
        seed=UNSET if body.seed is None else body.seed,
        reasoning_effort=UNSET if body.reasoning_effort is None else body.reasoning_effort,
        stop_sequence=_stop_sequence(body.stop),
    )


def _sent(value: float | UnsetType | None) -> float | UnsetType:
    if value is None or value is UNSET:
        return UNSET
    return value + 0.0  # -0.0 is 0.0: the same value must not be two operations


def _stop_sequence(stop: str | list[str] | UnsetType | None) -> list[str] | UnsetType:
    if stop is None or stop is UNSET or stop == []:
        return UNSET
    stops = [stop] if isinstance(stop, str) else stop
    if "" in stops:
        path = "stop" if isinstance(stop, str) else f"stop[{stops.index('')}]"
        raise _invalid(path, "Expected a non-empty string")
    return list(dict.fromkeys(stops))


def _options(sent: HordeOptions) -> HordeOptions:
    """The options with their ids in canonical form."""
    if sent.only is not None and sent.ignore is not None:
        raise documents.conflict(
            "horde.ignore", "Only one of 'horde.only' and 'horde.ignore' may be sent."
        )
    if sent.only is None and sent.ignore is None and sent.operation_key is None:
        return sent
    key = sent.operation_key
    return msgspec.structs.replace(
        sent,
        only=_ids("horde.only", sent.only),
        ignore=_ids("horde.ignore", sent.ignore),
        operation_key=None if key is None else _id("horde.operation_key", key),
    )


def _ids(path: str, sent: list[str] | None) -> list[str] | None:
    if sent is None:
        return None
    return list(dict.fromkeys(_id(f"{path}[{at}]", text) for at, text in enumerate(sent)))


def _id(path: str, text: str) -> str:
    try:
        return str(msgspec.convert(text, uuid.UUID))
    except msgspec.ValidationError:
        raise _invalid(path, "Expected a UUID") from None


def _check_guards(messages: Sequence[Message], extras: Extras) -> None:
    """What OpenAI refuses and we do not, unless asked to."""
    if isinstance(extras.response_format, JsonObjectFormat) and not any(
        "json" in text.lower() for text in texts(messages)
    ):
        raise documents.conflict("messages", NO_JSON)
