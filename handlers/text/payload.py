"""The params of a text request, and what a worker gets to work on (text_path_reference.md 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from handlers.errors import ExcessiveStopSequence, TooManyStopSequences

LEAST_LENGTH = 16
LEAST_CONTEXT = 80
MOST_CONTEXT = 1_048_576
MAX_STOPS = 128
MAX_STOP_CHARACTERS = 2000
MAX_JOBS = 20
MAX_SAMPLERS = 64
"""Entries of `sampler_order`. There are about ten samplers; the page names no bound."""

# What chat requests have too.
MaxLength = Annotated[int, Meta(ge=LEAST_LENGTH, le=16_384)]
Temperature = Annotated[float, Meta(ge=0, le=5)]
TopP = Annotated[float, Meta(ge=0.001, le=1)]

_Unit = Annotated[float, Meta(ge=0, le=1)]


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """`params` as sent, with the defaults that a worker is told where the client said nothing.

    Lengths are tokens. What has no default here and was not sent is absent from the payload: the
    worker's own default applies. Unknown keys are ignored.
    """

    n: Annotated[int, Meta(ge=1, le=MAX_JOBS)] = 1
    max_length: MaxLength = 80
    max_context_length: Annotated[int, Meta(ge=LEAST_CONTEXT, le=MOST_CONTEXT)] = 2048
    temperature: Temperature | UnsetType = UNSET
    top_p: TopP | UnsetType = UNSET
    top_k: Annotated[int, Meta(ge=0, le=200)] | UnsetType = UNSET
    top_a: _Unit | UnsetType = UNSET
    tfs: _Unit | UnsetType = UNSET
    typical: _Unit | UnsetType = UNSET
    min_p: _Unit = 0.0
    rep_pen: Annotated[float, Meta(ge=1, le=3)] | UnsetType = UNSET
    rep_pen_range: Annotated[int, Meta(ge=0, le=4096)] | UnsetType = UNSET
    rep_pen_slope: Annotated[float, Meta(ge=0, le=10)] | UnsetType = UNSET
    smoothing_factor: Annotated[float, Meta(ge=0, le=10)] = 0.0
    dynatemp_range: Annotated[float, Meta(ge=0, le=5)] = 0.0
    dynatemp_exponent: Annotated[float, Meta(ge=0, le=5)] = 1.0
    sampler_order: (
        Annotated[
            list[Annotated[int, Meta(ge=0, le=2**31 - 1)]],
            Meta(max_length=MAX_SAMPLERS),
        ]
        | UnsetType
    ) = UNSET
    stop_sequence: list[str] | UnsetType = UNSET
    frmtadsnsp: bool | UnsetType = UNSET
    frmtrmblln: bool | UnsetType = UNSET
    frmtrmspch: bool | UnsetType = UNSET
    frmttriminc: bool | UnsetType = UNSET
    singleline: bool | UnsetType = UNSET
    use_default_badwordsids: bool | UnsetType = UNSET


def check_stops(stops: Sequence[str]) -> None:
    """Check stop sequences that differ from each other: raise TooManyStopSequences,
    ExcessiveStopSequence."""
    if len(stops) > MAX_STOPS:
        raise TooManyStopSequences
    if sum(map(len, stops)) > MAX_STOP_CHARACTERS:
        raise ExcessiveStopSequence


class Payload(Params, frozen=True, kw_only=True):
    """The payload of one text job. Every job of a request gets the same, `n` 1."""

    prompt: str


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Payload)


def stored(prompt: str, params: Params) -> bytes:
    """As the content hash keeps it and a pop hands it out, JSON."""
    return _encode(Payload(prompt=prompt, **(msgspec.structs.asdict(params) | {"n": 1})))


def read(payload: bytes) -> Payload:
    """A stored payload."""
    return _decoder.decode(payload)
