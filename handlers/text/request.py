"""What a text request's body means (text_path_reference.md, sections 3.1 to 3.3).

`read` tells all that the body alone can say about types and ranges. The checks that come later in
the order of a submission (3.3) are functions of their own, for the route to call in that order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from handlers.chat import documents
from handlers.errors import (
    BadRequest,
    InvalidExtraSourceImages,
    MissingFullSamplerOrder,
    MissingPrompt,
    MoreThanMinExtraSourceImage,
    OnlyServiceAccountProxy,
    RequiresTrust,
    TokenOverflow,
    TooManyExtraSourceImages,
    WorkerNotFound,
)
from handlers.text.payload import Params, check_stops

MAX_BODY_BYTES = 8 * 2**20
"""The page sets no bound. The longest context, 1,048,576 tokens, is about 4 MiB of prompt."""
MAX_MODEL_CHARACTERS = 255
MAX_MODELS = 200
"""Distinct ones: each is a row of the queue, and no worker serves more (5.1)."""
MAX_WORKERS = 200
"""Listed ones, which are all looked for."""
KEPT_WORKERS = 5
MAX_IMAGES = 5
SAMPLERS = 7
_SHOWN = 100


class TextBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v2/generate/text/async`, as sent.

    Unknown keys are ignored at every level; null is a wrong type everywhere (3.1).
    """

    prompt: str
    params: Params = Params()
    models: list[Annotated[str, Meta(min_length=1, max_length=MAX_MODEL_CHARACTERS)]] = []
    workers: Annotated[list[str], Meta(max_length=MAX_WORKERS)] = []
    worker_blacklist: bool = False
    trusted_workers: bool = False
    validated_backends: bool = False
    slow_workers: bool = True
    context_fit: Literal["ignore", "reject", "grow"] = "ignore"
    dry_run: bool = False
    allow_downgrade: bool = False
    disable_batching: bool = False
    # Checked, then ignored or refused: out of scope (docs/text.md).
    extra_slow_workers: bool = False
    nsfw: bool = True
    softprompt: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    proxied_account: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET
    webhook: Annotated[str, Meta(max_length=1024)] | UnsetType = UNSET
    extra_source_images: list[Any] | UnsetType = UNSET
    style: Annotated[str, Meta(min_length=3, max_length=1024)] | UnsetType = UNSET


class TextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A body of valid types and ranges, mapped: what every later rule works on."""

    prompt: str
    params: Params
    """Stop sequences distinct and not empty, UNSET where there is none."""
    models: tuple[str, ...]  # each once; empty: any
    workers: tuple[str, ...]  # each once, in lower case, as listed: all of them
    worker_blacklist: bool
    trusted_workers: bool
    validated_backends: bool
    slow_workers: bool
    context_fit: Literal["ignore", "reject", "grow"]
    dry_run: bool
    allow_downgrade: bool
    disable_batching: bool
    proxied: bool  # it names an account behind the caller's
    images: int

    @property
    def only(self) -> tuple[str, ...]:
        """The workers that alone may serve it; empty: any."""
        return () if self.worker_blacklist else self.workers[:KEPT_WORKERS]

    @property
    def ignore(self) -> tuple[str, ...]:
        """The workers that may not serve it."""
        return self.workers[:KEPT_WORKERS] if self.worker_blacklist else ()


def lowered(request: TextRequest, max_length: int) -> TextRequest:
    """The same for at most so many tokens, and for slow workers too (spec, Free output allowance).

    Its context stays as it was sized: a shorter output fits it as well.
    """
    params = msgspec.structs.replace(request.params, max_length=max_length)
    return msgspec.structs.replace(request, params=params, slow_workers=True)


_decoder = msgspec.json.Decoder(TextBody)


def read(raw: bytes) -> TextRequest:
    """Read the body of a text request.

    Raise BadRequest, with a dotted path, for what is malformed, has a wrong type or is out of range
    or of scope; NulByteInPayload.
    """
    try:
        body = documents.decode(_decoder, raw)
    except documents.Misfit as misfit:
        raise documents.invalid(misfit.fault.dotted()) from None
    documents.refuse_nul(raw, body, spelled=documents.dotted)
    if body.style is not UNSET:
        raise _unserved("style", "Styles are not available here: send prompt, params and models.")
    if body.webhook is not UNSET:
        raise _unserved("webhook", "Webhooks are not available here: read the status instead.")
    models = tuple(dict.fromkeys(body.models))
    if len(models) > MAX_MODELS:
        reason = f"Expected at most {MAX_MODELS} different models"
        raise documents.invalid(documents.Fault("models", reason, unknown=False))
    images = body.extra_source_images
    return TextRequest(
        prompt=body.prompt,
        params=_with_distinct_stops(body.params),
        models=models,
        workers=tuple(dict.fromkeys(worker.lower() for worker in body.workers)),
        worker_blacklist=body.worker_blacklist,
        trusted_workers=body.trusted_workers,
        validated_backends=body.validated_backends,
        slow_workers=body.slow_workers,
        context_fit=body.context_fit,
        dry_run=body.dry_run,
        allow_downgrade=body.allow_downgrade,
        disable_batching=body.disable_batching,
        proxied=body.proxied_account is not UNSET,
        images=0 if images is UNSET else len(images),
    )


def _unserved(path: str, reason: str) -> BadRequest:
    return BadRequest(reason, errors={path: reason})


def _with_distinct_stops(params: Params) -> Params:
    """Each once, and none that is empty: there is nothing to stop at."""
    if params.stop_sequence is UNSET:
        return params
    distinct = [stop for stop in dict.fromkeys(params.stop_sequence) if stop]
    return msgspec.structs.replace(params, stop_sequence=distinct or UNSET)


# the later checks, in the order of section 3.3


def check_proxy(request: TextRequest, *, service: bool) -> None:
    """Raise OnlyServiceAccountProxy where it names an account behind the caller's, which is none of
    a service."""
    if request.proxied and not service:
        raise OnlyServiceAccountProxy


def check_image_count(request: TextRequest, *, trusted: bool) -> None:
    """Raise TooManyExtraSourceImages; MoreThanMinExtraSourceImage for several of a user without
    trust. Any image at all is refused by `check_images`, later."""
    if request.images > MAX_IMAGES:
        raise TooManyExtraSourceImages(
            f"A request takes at most {MAX_IMAGES} extra source images, not {request.images}."
        )
    if request.images > 1 and not trusted:
        raise MoreThanMinExtraSourceImage


def check_prompt(request: TextRequest) -> None:
    """Raise MissingPrompt for an empty prompt."""
    if not request.prompt:
        raise MissingPrompt


def check_workers(workers: Sequence[str], known: Collection[str]) -> None:
    """Raise WorkerNotFound, naming the first listed worker that does not exist."""
    for worker in workers:
        if worker not in known:
            raise WorkerNotFound(f"There is no worker with the ID {worker[:_SHOWN]!r}.")


def check_batching(request: TextRequest, *, trusted: bool) -> None:
    """Raise RequiresTrust for several jobs that may not share a batch, of a user without trust."""
    if request.params.n > 1 and request.disable_batching and not trusted:
        raise RequiresTrust


def check_params(params: Params) -> None:
    """Check the params that a request would run under: its context has grown where it may.

    Raise TokenOverflow, MissingFullSamplerOrder, TooManyStopSequences, ExcessiveStopSequence.
    """
    if params.max_context_length < params.max_length:
        raise TokenOverflow(
            f"max_context_length ({params.max_context_length}) must be at least max_length "
            f"({params.max_length})."
        )
    order = params.sampler_order
    if order is not UNSET and len(set(order)) < SAMPLERS:
        raise MissingFullSamplerOrder
    check_stops(params.stop_sequence or ())


def check_images(request: TextRequest) -> None:
    """Raise InvalidExtraSourceImages for any image."""
    if request.images:
        raise InvalidExtraSourceImages
