"""What a worker declares with a pop (spec, Chat declaration on pop; text_path_reference.md 5.1)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from events.types import Declaration
from handlers.chat import documents
from handlers.chat.vocabulary import FEATURES, GUARANTEES, IMAGE_TRANSPORTS
from handlers.errors import BadRequest, ChatDeclarationInvalid, InvalidPriorityUsername

MAX_MODELS = 200
MAX_PRIORITIES = 100
"""Accounts that a worker serves first. Each is looked for in the queue, and for all workers that
declare the same at once."""
MAX_TOKENS = 2**31 - 1
"""A declared limit above this says no more than this."""

_CHAT_KEYS = (
    "chat_jobs",
    "prompt_jobs",
    "chat_features",
    "chat_limits",
    "model_id",
    "image_transports",
)
_KNOWN = FEATURES | GUARANTEES


class ChatLimits(msgspec.Struct, frozen=True):
    """The limits that chat jobs run under, in tokens."""

    max_context_length: Annotated[int, Meta(ge=0)]
    max_length: Annotated[int, Meta(ge=0)]
    tools_max_temperature: Annotated[float, Meta(ge=0)] | None = None


class Pop(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v2/generate/text/pop`. Unknown keys are ignored, as on text routes.

    Null in an optional key is the same as leaving it out.
    """

    name: Annotated[str, Meta(max_length=1000)]
    models: list[Annotated[str, Meta(min_length=1, max_length=255)]] | None = None
    bridge_agent: Annotated[str, Meta(max_length=1000)] | None = None
    threads: Annotated[int, Meta(ge=1, le=50)] | None = None
    amount: Annotated[int, Meta(ge=1, le=20)] | None = None
    max_length: int | None = None
    max_context_length: int | None = None
    nsfw: bool | None = None
    """Told of the worker, and without effect: so are all three that follow."""
    require_upfront_kudos: bool | None = None
    extra_slow_worker: bool | None = None
    softprompts: list[str] | None = None
    chat_jobs: bool | None = None
    prompt_jobs: bool | None = None
    chat_features: Annotated[
        list[str] | None,
        Meta(
            description="What the backend can do and guarantees: of "
            + ", ".join(f"`{word}`" for word in sorted(_KNOWN))
            + ". Other words are ignored."
        ),
    ] = None
    chat_limits: ChatLimits | None = None
    model_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    image_transports: list[str] | None = None
    priority_usernames: Annotated[
        list[str] | None,
        Meta(
            description="Accounts as `name#id`, whose requests come first: "
            f"the first {MAX_PRIORITIES} of them."
        ),
    ] = None


class Declared(NamedTuple):
    """Who pops, and what for."""

    name: str
    declaration: Declaration


_decoder = msgspec.json.Decoder(Pop)
MAX_NAME = 100
MOST_TEMPERATURE = 1000.0


def read(raw: bytes) -> Pop:
    """Read the body of a pop.

    Raise ChatDeclarationInvalid for a misfit in the chat fields, BadRequest for any other,
    NulByteInPayload, InvalidPriorityUsername.
    """
    try:
        pop = documents.decode(_decoder, raw)
    except documents.Misfit as misfit:
        fault = misfit.fault
        if fault.path.startswith(_CHAT_KEYS):
            raise _invalid(fault.path, fault.reason) from None
        raise documents.invalid(fault.dotted()) from None
    except BadRequest:
        limit = _no_number(raw)
        if limit is not None:
            raise _invalid(f"chat_limits.{limit}", "Expected a number") from None
        raise
    documents.refuse_nul(raw, pop, spelled=documents.dotted)
    for username in pop.priority_usernames or ():
        number = username.rpartition("#")[2]  # the whole name where it has no #
        if number == username or not (number.isascii() and number.isdigit()):
            raise InvalidPriorityUsername
    return pop


_MOST_ACCOUNT = 2**63 - 1


def preferred(pop: Pop) -> frozenset[int]:
    """The ids of the accounts that the pop names in `priority_usernames`: the first of them."""
    names = (pop.priority_usernames or ())[:MAX_PRIORITIES]
    numbers = (int(name.rpartition("#")[2][:20]) for name in names)
    return frozenset(number for number in numbers if number <= _MOST_ACCOUNT)


def _invalid(path: str, reason: str) -> ChatDeclarationInvalid:
    return ChatDeclarationInvalid(f"{path}: {reason}", errors={path: reason})


def _no_number(raw: bytes) -> str | None:
    """The limit that is NaN or Infinity, which some write though JSON has no word for them."""
    if b"NaN" not in raw and b"Infinity" not in raw:
        return None
    no_number = object()
    try:
        body = json.loads(raw, parse_constant=lambda _: no_number)
    except (ValueError, RecursionError):
        return None
    limits = body.get("chat_limits") if isinstance(body, dict) else None
    if not isinstance(limits, dict):
        return None
    return next(
        (each for each in ChatLimits.__struct_fields__ if limits.get(each) is no_number), None
    )


def declared(pop: Pop, owner: str) -> Declared:
    """What a worker of `owner` (the alias, `name#id`) declares.

    Raise ChatDeclarationInvalid for a chat declaration that is incomplete or contradicts itself,
    BadRequest for a name that is none, and without a model that this owner may serve.
    """
    name = pop.name.strip()
    if not 1 <= len(name) <= MAX_NAME:
        reason = f"Expected 1 to {MAX_NAME} characters"
        raise documents.invalid(documents.Fault("name", reason, unknown=False))
    return Declared(name, _declaration(pop, _servable(pop.models or (), owner)))


def _servable(models: Iterable[str], owner: str) -> tuple[str, ...]:
    """Each once; `model::name#id` is a private model, which only its owner's workers serve."""
    own = dict.fromkeys(
        model for model in models if "::" not in model or model.rsplit("::", 1)[1] == owner
    )
    if not own:
        raise BadRequest("Unfortunately we cannot accept workers serving no model of their own.")
    return tuple(own)


def _declaration(pop: Pop, models: tuple[str, ...]) -> Declaration:
    chat = pop.chat_jobs is True
    prompts = pop.prompt_jobs is not False
    if not prompts and not chat:
        raise ChatDeclarationInvalid("prompt_jobs false needs chat_jobs true.")
    texts = Declaration(
        models=models[:MAX_MODELS],
        bridge_agent=(pop.bridge_agent or "").strip() or "unknown:0:unknown",
        nsfw=pop.nsfw is not False,
        threads=pop.threads or 1,
        max_length=_tokens(pop.max_length, 512),
        max_context_length=_tokens(pop.max_context_length, 2048),
    )
    if not chat:
        return texts
    limits = pop.chat_limits
    if limits is None:
        raise ChatDeclarationInvalid("chat_jobs needs chat_limits.")
    if pop.model_id is None:
        raise ChatDeclarationInvalid("chat_jobs needs model_id.")
    if pop.model_id not in models:
        raise ChatDeclarationInvalid("model_id must be one of models.")
    return msgspec.structs.replace(
        texts,
        chat_jobs=True,
        prompt_jobs=prompts,
        model_id=pop.model_id,
        chat_features=tuple(sorted(_KNOWN.intersection(pop.chat_features or ()))),
        chat_max_context_length=_tokens(limits.max_context_length, 0),
        chat_max_length=_tokens(limits.max_length, 0),
        # Above every temperature that may be asked for, a limit is none; infinities are no numbers.
        chat_tools_max_temperature=None
        if limits.tools_max_temperature is None
        else min(limits.tools_max_temperature, MOST_TEMPERATURE),
        image_transports=tuple(sorted(IMAGE_TRANSPORTS.intersection(pop.image_transports or ()))),
    )


def _tokens(value: int | None, default: int) -> int:
    return default if value is None else max(0, min(value, MAX_TOKENS))
