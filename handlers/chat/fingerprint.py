"""Which operation a body asks for: what a repeated operation key is compared by (spec, Operation
key)."""

from __future__ import annotations

import hashlib

import msgspec

from handlers.chat.body import SAMPLING_DEFAULTS, ChatRequest

LEFT_OUT = ("availability_mode", "dry_run", "include_reasoning", "max_kudos", "operation_key")
"""Options of `horde` that say how to answer, not what to do."""

_encode = msgspec.json.Encoder(order="sorted").encode


def of(request: ChatRequest) -> str:
    """SHA-256, in hex, of the request's canonical JSON: keys sorted, no white space, UTF-8.

    It covers the messages as stored, with images as submitted; the text params, which are
    `max_length` and the sampling ones; the models, sorted; the options of `horde`; and the tools
    and format if there are any. Whatever has a default is filled in, so that sending the default
    and leaving it out are the same operation.
    """
    params = SAMPLING_DEFAULTS | msgspec.to_builtins(request.sampling)
    options = msgspec.to_builtins(request.horde)
    operation = {
        "messages": request.messages,
        "params": params | {"max_length": request.max_length},
        "models": sorted(request.models),
        "horde": {name: value for name, value in options.items() if name not in LEFT_OUT},
    }
    extras = msgspec.to_builtins(request.extras)
    if extras:
        operation["chat_extras"] = extras
    return hashlib.sha256(_encode(operation)).hexdigest()
