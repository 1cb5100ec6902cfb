"""What a chat request's body means (spec, Request body; Refused keys and values)."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NoReturn

import msgspec
from msgspec import UNSET, Meta, UnsetType

from events.types import Demand
from handlers.chat import documents, payload
from handlers.errors import (
    BadRequest,
    ExcessiveStopSequence,
    TooManyStopSequences,
    UnsupportedChatParameter,
)
from handlers.submit import NewRequest

DEFAULT_MAX_LENGTH = 512
"""OpenAI clients usually send no limit, and the text default of 80 is too short for a reply."""
DEFAULT_MAX_CONTEXT_LENGTH = 2048
MAX_STOPS = 128
MAX_STOP_CHARACTERS = 2000
MAX_MODEL_CHARACTERS = 255
MAX_NAME_CHARACTERS = 256
"""Of a message's author. The text limit counts content; a name must not be a way around it."""
MAX_MESSAGES = 1024
MAX_TEXT_BYTES = 1_048_576
STRICT_GUARANTEES = ("prompt_overflow_refused",)
"""What every strict request needs of a worker (spec, Guarantees)."""


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)] | UnsetType | None = UNSET


class ChatBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v2/generate/chat/async`, as sent.

    Null in an optional key is the same as leaving it out.
    """

    model: Annotated[str, Meta(min_length=1, max_length=MAX_MODEL_CHARACTERS)]
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=16, le=16384)] | UnsetType | None = UNSET
    temperature: Annotated[float, Meta(ge=0, le=5)] | UnsetType | None = UNSET
    top_p: Annotated[float, Meta(ge=0.001, le=1)] | UnsetType | None = UNSET
    stop: str | list[str] | UnsetType | None = UNSET
    stream: bool | UnsetType | None = UNSET


_decoder = msgspec.json.Decoder(ChatBody)
_encode = msgspec.json.Encoder().encode
# A value that names something we do not serve, not one of a wrong type.
_NAMED = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)
_OPTIONAL = ("max_tokens", "temperature", "top_p", "stop", "stream")
_SHOWN = 80


def read(
    raw: bytes, *, max_messages: int = MAX_MESSAGES, max_text_bytes: int = MAX_TEXT_BYTES
) -> NewRequest:
    """Read the body of a chat request.

    Raise UnsupportedChatParameter for a key or a named value that is not supported, by its path;
    BadRequest for malformed JSON, repeated keys, wrong types and ranges; NulByteInPayload;
    TooManyStopSequences and ExcessiveStopSequence.
    """
    try:
        body = documents.decode(_decoder, raw)
    except documents.Misfit as misfit:
        _refuse(misfit.fault)
    if len(body.messages) > max_messages:
        raise UnsupportedChatParameter(
            f"messages: at most {max_messages} messages are allowed, not {len(body.messages)}."
        )
    if documents.count_keys(raw) != _sent_keys(body):
        raise BadRequest(
            "The body repeats a key: the meaning would depend on who reads it.",
            errors={"": "Repeated key"},
        )
    documents.refuse_nul(raw, body)
    size = _text_bytes(body.messages)
    if size > max_text_bytes:
        raise UnsupportedChatParameter(
            f"messages: their text may have at most {max_text_bytes} bytes, not {size}."
        )
    return _mapped(body, size)


def _refuse(fault: documents.Fault) -> NoReturn:
    if fault.unknown:
        raise UnsupportedChatParameter(f"{fault.path} is not supported on chat requests.")
    named = _NAMED.fullmatch(fault.reason)
    if named is not None:
        raise UnsupportedChatParameter(
            f"{fault.path}={named[1][:_SHOWN]} is not supported on chat requests."
        )
    raise documents.invalid(fault)


def _sent_keys(body: ChatBody) -> int:
    """How many keys a document has that decodes to `body` and repeats none."""
    count = 2 + sum(getattr(body, name) is not UNSET for name in _OPTIONAL)
    for message in body.messages:
        count += 2 if message.name is UNSET else 3
        if not isinstance(message.content, str):
            count += 2 * len(message.content)
    return count


def _text_bytes(messages: list[Message]) -> int:
    size = 0
    for message in messages:
        if isinstance(message.content, str):
            size += len(message.content.encode())
        else:
            size += sum(len(part.text.encode()) for part in message.content)
    return size


def _mapped(body: ChatBody, text_bytes: int) -> NewRequest:
    max_length = body.max_tokens or DEFAULT_MAX_LENGTH
    # A context that cannot hold the reply serves nobody (text path: TokenOverflow). It grows to fit
    # the messages too once contexts are sized.
    max_context_length = max(DEFAULT_MAX_CONTEXT_LENGTH, max_length)
    stream = body.stream is True
    job = payload.ChatPayload(
        max_length=max_length,
        max_context_length=max_context_length,
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        stop_sequence=_stop_sequence(body.stop),
        stream_progress=True if stream else UNSET,
    )
    return NewRequest(
        chat=True,
        jobs=1,
        max_length=max_length,
        stream=stream,
        demand=Demand(
            models=(body.model,),
            max_context_length=max_context_length,
            features=STRICT_GUARANTEES,
            messages=len(body.messages),
            prompt_bytes=text_bytes,
        ),
        content={
            "messages": _encode([_stored(message) for message in body.messages]),
            "payload": payload.stored(job),
        },
    )


def _or(value: float | UnsetType | None, default: float) -> float:
    return default if value is UNSET or value is None else value


def _stored(message: Message) -> Message:
    """As workers get it: `developer` is `system` to them, and an absent name is absent."""
    if message.role != "developer" and message.name is not None:
        return message
    return Message(
        role="system" if message.role == "developer" else message.role,
        content=message.content,
        name=message.name or UNSET,
    )


def _stop_sequence(stop: str | list[str] | UnsetType | None) -> list[str] | UnsetType:
    if stop is UNSET or stop is None or stop == []:
        return UNSET
    stops = [stop] if isinstance(stop, str) else stop
    distinct = list(dict.fromkeys(stops))
    if "" in distinct:
        path = "stop" if isinstance(stop, str) else f"stop[{stops.index('')}]"
        raise documents.invalid(documents.Fault(path, "Expected a non-empty string", False))
    if len(distinct) > MAX_STOPS:
        raise TooManyStopSequences
    if sum(map(len, distinct)) > MAX_STOP_CHARACTERS:
        raise ExcessiveStopSequence
    return distinct
