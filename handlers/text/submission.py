"""From a text request that passed every check to what is stored of it, and back to its client."""

from __future__ import annotations

from typing import Literal

import msgspec

from events.base import KUDOS
from events.types import Demand
from handlers.chat.context import SizedPrompt
from handlers.chat.pricing import tax
from handlers.submit import NewRequest
from handlers.text import payload
from handlers.text.payload import Params
from handlers.text.request import TextRequest

CONTENT = ("payload", "options", "submitted_prompt")
"""Fields of the content hash that `stored_parameters` reads."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for beside its prompt and params, in the body's own words."""

    models: tuple[str, ...]
    workers: tuple[str, ...]  # those that count
    worker_blacklist: bool
    trusted_workers: bool
    validated_backends: bool
    slow_workers: bool
    context_fit: Literal["ignore", "reject", "grow"]
    allow_downgrade: bool
    disable_batching: bool


class Parameters(Options, frozen=True, kw_only=True):
    """A request as its client may have it back: the shape of the body, defaults filled in.

    The prompt is the one that was submitted. What moderation made of it is never told: it would
    tell what the filters look for.
    """

    prompt: str
    params: Params


_encode = msgspec.json.Encoder().encode
_options = msgspec.json.Decoder(Options)


def new_request(
    asked: TextRequest, prompt: str, sized: SizedPrompt, *, kudos: int, client_agent: bytes
) -> NewRequest:
    """What the log and the content hash hold.

    prompt  as workers get it
    kudos   the estimate, in kudos

    Content keeps `submitted_prompt` where it is another one.
    """
    params = sized_params(asked, sized)
    content = {
        "messages": b"null",  # a text job has none
        "payload": payload.stored(prompt, params),
        "options": _encode(_options_of(asked)),
        "client_agent": client_agent,
    }
    if prompt != asked.prompt:
        content["submitted_prompt"] = asked.prompt.encode()
    return NewRequest(
        chat=False,
        jobs=params.n,
        max_length=params.max_length,
        stream=False,
        demand=Demand(
            models=asked.models,
            max_context_length=params.max_context_length,
            only=asked.only,
            ignore=asked.ignore,
            trusted_workers=asked.trusted_workers,
            validated_backends=asked.validated_backends,
            slow_workers=asked.slow_workers,
            prompt_bytes=len(prompt.encode()),
            prompt_characters=len(prompt),
            context_adjustments=sized.adjustments,
        ),
        content=content,
        kudos=kudos * KUDOS,
        tax=tax(),
    )


def sized_params(asked: TextRequest, sized: SizedPrompt) -> Params:
    """The params that the request runs under."""
    return msgspec.structs.replace(asked.params, max_context_length=sized.max_context_length)


def stored_parameters(
    jobs: int, stored: bytes, options: bytes, submitted_prompt: bytes | None
) -> Parameters:
    """From how many jobs a request has and its fields of the content hash."""
    job = msgspec.structs.asdict(payload.read(stored))
    prompt = job.pop("prompt")
    return Parameters(
        prompt=prompt if submitted_prompt is None else submitted_prompt.decode(),
        params=Params(**(job | {"n": jobs})),
        **msgspec.structs.asdict(_options.decode(options)),
    )


def _options_of(asked: TextRequest) -> Options:
    return Options(
        models=asked.models,
        workers=asked.only or asked.ignore,
        worker_blacklist=asked.worker_blacklist,
        trusted_workers=asked.trusted_workers,
        validated_backends=asked.validated_backends,
        slow_workers=asked.slow_workers,
        context_fit=asked.context_fit,
        allow_downgrade=asked.allow_downgrade,
        disable_batching=asked.disable_batching,
    )
