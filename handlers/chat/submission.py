"""From a chat request that passed every check to what is stored of it."""

from __future__ import annotations

import msgspec

from events.base import KUDOS
from events.types import Demand
from handlers.admission import Operation
from handlers.chat import payload, requirements
from handlers.chat.body import ChatRequest
from handlers.chat.context import Fitted
from handlers.chat.flatten import flatten
from handlers.chat.pricing import tax
from handlers.submit import NewRequest


def new_request(
    asked: ChatRequest,
    fitted: Fitted,
    *,
    kudos: int,
    client_agent: bytes,
    operation: Operation | None = None,
) -> NewRequest:
    """What the log and the content hash hold.

    asked   as the client sent it, its messages not yet screened
    fitted  its messages as workers get them
    kudos   the estimate, in kudos

    Messages with images are left out: what is attached later brings them (handlers/submit.py).
    Content keeps `submitted_prompt` (spec, Flattened prompt) where it is not simply what flattening
    the stored messages gives; the flattened prompt itself is never stored beside them.
    """
    kept = msgspec.structs.replace(asked, messages=fitted.messages, images=fitted.images)
    horde = asked.horde
    content = {
        "payload": payload.of(
            asked, max_length=fitted.max_length, max_context_length=fitted.max_context_length
        ),
        "client_agent": client_agent,
    }
    if not fitted.images:
        content["messages"] = payload.messages(fitted.messages)
    extras = payload.extras(asked.extras)
    if extras is not None:
        content["extras"] = extras
    content["conformance"] = horde.conformance.encode()
    if fitted.messages is not asked.messages:
        content["submitted_prompt"] = flatten(asked.messages, asked.extras.tools).encode()
    return NewRequest(
        chat=True,
        jobs=1,
        max_length=fitted.max_length,
        stream=asked.stream,
        demand=Demand(
            models=asked.models,
            max_context_length=fitted.max_context_length,
            features=requirements.required_features(kept),
            conformance=horde.conformance,
            tools_temperature=requirements.tools_temperature(kept),
            images=fitted.images > 0,
            only=tuple(horde.only or ()),
            ignore=tuple(horde.ignore or ()),
            trusted_workers=horde.trusted_workers,
            validated_backends=horde.validated_backends,
            slow_workers=horde.slow_workers,
            messages=len(fitted.messages),
            prompt_bytes=len(fitted.prompt.encode()),
            prompt_characters=len(fitted.prompt),
            context_adjustments=fitted.adjustments,
        ),
        content=content,
        kudos=kudos * KUDOS,
        tax=tax(fitted.images),
        operation=operation,
    )
