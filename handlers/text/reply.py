"""What a worker's submit of a text job must be (text_path_reference.md 6.1, 6.3)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw

from events.types import Usage
from handlers.chat import documents
from handlers.chat.reply import Submit, seed_of, without_nul
from handlers.reply import Reply

MAX_METADATA = 50


class Metadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker says of its own reply: of text jobs only that it held back child abuse."""

    type: Literal["censorship"]
    value: Literal["csam"]
    ref: Annotated[str, Meta(max_length=255)] | None = None


CSAM = Metadata(type="censorship", value="csam")


class StoredText(msgspec.Struct, frozen=True, kw_only=True):
    """The reply as content keeps it and the status shows it."""

    text: str
    gen_metadata: list[Metadata] = []


class Generated(NamedTuple):
    """What the body of a text submit says of the reply itself."""

    text: str
    metadata: tuple[Metadata, ...]


_text: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_metadata: msgspec.json.Decoder[tuple[Metadata, ...] | None] = msgspec.json.Decoder(
    Annotated[tuple[Metadata, ...], Meta(max_length=MAX_METADATA)] | None
)
_encode = msgspec.json.Encoder().encode
_stored = msgspec.json.Decoder(StoredText)


def read(submit: Submit) -> Generated:
    """The text parser's part of a submit, faults included.

    Raise BadRequest without a `generation`, or for one or a `gen_metadata` of the wrong shape.
    """
    if submit.generation is UNSET:
        raise documents.invalid(
            documents.Fault("generation", "Missing required key", unknown=False)
        )
    text = _part(submit.generation, _text, "generation")
    if submit.gen_metadata is UNSET:
        return Generated(text, ())
    return Generated(text, _part(submit.gen_metadata, _metadata, "gen_metadata") or ())


def reply(submit: Submit, generated: Generated) -> Reply:
    """The reply to store. A worker tells child abuse by the state or by metadata: either implies
    the other (6.3)."""
    text, metadata = without_nul(generated.text), [_clean(each) for each in generated.metadata]
    state = submit.state or "ok"
    if metadata:
        state = "csam"
    elif state == "csam":
        metadata = [CSAM]
    return Reply(
        stored=_encode(StoredText(text=text, gen_metadata=metadata)),
        state=state,
        finish_reason="",  # a text job has none
        characters=len(text),
        tool_calls=0,
        seed=seed_of(submit.seed),
        usage=Usage(),
        empty=not text,
    )


def stored(raw: bytes) -> StoredText:
    """A reply as `reply` encoded it."""
    return _stored.decode(raw)


def _clean(metadata: Metadata) -> Metadata:
    if metadata.ref is None:
        return metadata
    return msgspec.structs.replace(metadata, ref=without_nul(metadata.ref))


def _part(raw: Raw, decoder: msgspec.json.Decoder[Any], path: str) -> Any:
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError as error:
        fault = documents.fault_of(str(error))
        below = fault.path if fault.path.startswith("[") or not fault.path else f".{fault.path}"
        raise documents.invalid(fault._replace(path=f"{path}{below}").dotted()) from None
