"""What a worker gets to work on (spec, Chat job pop response)."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class ChatPayload(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a chat job but for its messages. Stored when the request is created.

    Every sampling key is always present, so that no worker's defaults apply to a chat job.
    """

    max_length: int  # tokens
    max_context_length: int  # tokens
    temperature: float = 1.0
    top_p: float = 1.0
    frequency_penalty: float = 0
    presence_penalty: float = 0
    rep_pen: float = 1.0
    top_k: int = 0
    min_p: float = 0
    n: int = 1
    stop_sequence: list[str] | UnsetType = UNSET
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


def stored(payload: ChatPayload) -> bytes:
    """As the content hash keeps it, JSON."""
    return _encode(payload)


def rendered(messages: bytes, payload: bytes) -> msgspec.Raw:
    """The payload as it goes out: the stored one with the stored messages in front, both JSON."""
    return msgspec.Raw(b'{"messages":' + messages + b"," + payload[1:])
