"""Who may take what: the rules of eligibility, on one request and one worker (spec, Eligibility).

They stand twice. `fits` has all of them. The candidate query of `projections.queue` has those that
a whole class of workers shares (an `Offer`), because a pop must find the few rows that fit in a
long queue without walking it. A test compares the two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence, Set
from hashlib import blake2s
from typing import NamedTuple

from events.types import Declaration, Demand
from projections.changes import bounded

ANY_MODEL = ""
"""The model of a text request that names none."""

IMAGE_TRANSPORTS = frozenset({"url", "base64"})

UNMEASURED_SPEED = 10.0
"""Tokens a second that a worker without a measured speed is taken to make."""


class Wanted(NamedTuple):
    """What a request asks of a worker."""

    user_id: int
    chat: bool
    models: tuple[str, ...]  # (ANY_MODEL,) where a text request names none
    max_length: int
    max_context_length: int
    features: frozenset[str]
    images: bool
    tools_temperature: float | None
    only: tuple[str, ...]
    ignore: tuple[str, ...]
    trusted_workers: bool
    validated_backends: bool
    slow_workers: bool

    @classmethod
    def of(cls, demand: Demand, *, user_id: int, chat: bool, max_length: int) -> Wanted:
        """From the parts that a `submitted` event, or a submit before it, has.

        Features, images and the tool temperature are rules of chat requests alone.
        """
        return cls(
            user_id,
            chat,
            tuple(map(without_nul, demand.models)) or (ANY_MODEL,),
            max_length,
            demand.max_context_length,
            frozenset(demand.features if chat else ()),
            demand.images and chat,
            demand.tools_temperature if chat else None,
            demand.only,
            demand.ignore,
            demand.trusted_workers,
            demand.validated_backends,
            demand.slow_workers,
        )


def without_nul(model: str) -> str:
    """Postgres takes no NUL, neither in a row (`changes.encode`) nor in a query."""
    return model.replace("\0", "\ufffd")


def _unknown(_model: str) -> float:
    return 1.0


class Rules(NamedTuple):
    """What the operator decides of who may take what."""

    validated: frozenset[str] = frozenset()
    """Names of bridge agents that `validated_backends` asks for (text_path_reference.md, 13)."""
    size: Callable[[str], float] = _unknown
    """Billions of parameters of a model."""
    lease: int = 150
    """Seconds that a job may take before it shows any progress."""
    preparation: int = 30
    """Seconds of the lease that go by before the first token comes."""

    def capacity(self, speed: float | None) -> int:
        """The longest chat reply (tokens) that a worker finishes in its lease (spec, Job lease)."""
        return int(pace(speed) * (self.lease - self.preparation))

    def fast(self, models: Sequence[str], speed: float | None) -> bool:
        """Whether requests that allow no slow workers may go to this one, by the size of the first
        of its models (text_path_reference.md 5.4)."""
        size = self.size(models[0]) if models else math.inf
        least = next(least for billions, least in _LEAST_SPEEDS if size >= billions)
        return pace(speed) >= least


_LEAST_SPEEDS = ((20.0, 3.0), (13.0, 4.0), (-math.inf, 5.0))
"""Tokens a second by the billions of parameters from which they do."""


def pace(speed: float | None) -> float:
    """Tokens a second, measured or assumed."""
    return UNMEASURED_SPEED if speed is None else speed


class Offer(NamedTuple):
    """What a worker declared, as far as the rules look at it.

    Workers with equal offers share candidates.
    """

    chat_model: str | None  # None: no chat jobs
    chat_features: frozenset[str]
    chat_max_length: int
    chat_max_context_length: int
    tools_max_temperature: float | None
    receives_images: bool
    models: tuple[str, ...]  # of text jobs; empty: no text jobs
    max_length: int
    max_context_length: int
    validated: bool
    trusted: bool
    """Its owner is."""
    fast: bool
    """Fast enough for requests that allow no slow workers."""
    lease_length: int | None
    """The longest chat reply that it finishes in its lease, rounded up so that workers of like
    speeds share candidates; None where that is no less than its declared limit."""

    @classmethod
    def of(
        cls,
        declared: Declaration,
        rules: Rules = Rules(),  # noqa: B008 - immutable
        speed: float | None = None,
    ) -> Offer:
        """From a pop's declaration; `speed` in tokens a second, None where none was measured."""
        chat = declared.chat_jobs
        offer = cls(
            without_nul(declared.model_id) if chat and declared.model_id else None,
            frozenset(declared.chat_features if chat else ()),
            (declared.chat_max_length or 0) if chat else 0,
            (declared.chat_max_context_length or 0) if chat else 0,
            declared.chat_tools_max_temperature if chat else None,
            chat and not IMAGE_TRANSPORTS.isdisjoint(declared.image_transports),
            tuple(sorted(set(map(without_nul, declared.models)))) if declared.prompt_jobs else (),
            declared.max_length,
            declared.max_context_length,
            is_validated(declared.bridge_agent, rules.validated),
            trusted=False,
            fast=True,
            lease_length=None,
        )
        return offer.by(declared.models, rules, speed)

    def by(
        self, models: Sequence[str], rules: Rules, speed: float | None, *, trusted: bool = False
    ) -> Offer:
        """The same of a worker that is this fast (tokens a second) and whose owner is trusted or
        not; `models` as it listed them."""
        capacity = rules.capacity(speed)
        return self._replace(
            trusted=trusted,
            fast=rules.fast(models, speed),
            lease_length=_stepped(capacity) if capacity < self.chat_max_length else None,
        )


def _stepped(length: int) -> int:
    """A length rounded up by an eighth at most, to one of few numbers."""
    step = 1 << max(0, length.bit_length() - 4)
    return -(-length // step) * step


class Worker(NamedTuple):
    """Who asks for a job."""

    id: str
    user_id: int
    trusted: bool
    offer: Offer
    threads: int = 1
    maintenance: bool = False
    paused: bool = False
    speed: float | None = None
    """Tokens a second; None where none was measured."""
    capacity: int | None = None
    """The longest chat reply that it finishes in its lease, by `Rules.capacity`; None: any."""
    prefers: frozenset[int] = frozenset()
    """Accounts whose requests come first: its owner, and whom it names."""
    fetches: bool = True
    """Whether it fetches images itself; if not, they are read for it."""
    decoys: Set[str] | None = None
    """Of a paused worker that asks for a job: the requests that it had a decoy of. It is offered
    the others as if it were not paused."""


class Candidate(NamedTuple):
    """A waiting request as it was last projected. Times are milliseconds of the Redis clock."""

    request_id: str
    wanted: Wanted  # its models: those found for the offer that was asked with
    rank: int
    waiting: int
    holdoff_worker: str
    holdoff_ms: int
    created_ms: int
    expires_ms: int

    @property
    def place(self) -> Place:
        """Where the next page begins."""
        return Place(self.rank, self.request_id)


class Place(NamedTuple):
    """A point in the rank order: behind it is a lower rank, or the same with a lower id."""

    rank: int
    request_id: str


FIRST = Place(2**63 - 1, "ffffffff-ffff-ffff-ffff-ffffffffffff")


def fits(candidate: Candidate, worker: Worker, now_ms: int) -> str | None:
    """Why this worker may not have a job of this request now; None where it may."""
    if candidate.waiting < 1:
        return "not_waiting"
    if candidate.expires_ms <= now_ms:
        return "expired"
    if candidate.holdoff_worker == worker.id and candidate.holdoff_ms > now_ms:
        return "holdoff"
    own = candidate.wanted.user_id == worker.user_id
    if worker.decoys and not own and candidate.request_id in worker.decoys:
        return "secret"
    return refusal(candidate.wanted, worker)


def refusal(wanted: Wanted, worker: Worker) -> str | None:
    """Which rule of eligibility keeps them apart; None: none.

    The rules are those of the chat reference, *Eligibility*, and the text reference, 5.5. The first
    that fails is told, by the words of a pop's `skipped`. A missing feature or guarantee is named
    itself.
    """
    reason = restriction(wanted, worker)
    if reason is not None:
        return reason
    if not wanted.chat:
        return _text_refusal(wanted, worker.offer)
    reason = _chat_refusal(wanted, worker.offer)
    if reason is None and worker.capacity is not None and wanted.max_length > worker.capacity:
        return "lease_speed"
    return reason


def restriction(wanted: Wanted, worker: Worker) -> str | None:
    """Which of the request's own restrictions, or the worker's pause, keeps them apart."""
    away = worker.maintenance or (worker.paused and worker.decoys is None)
    if away and worker.user_id != wanted.user_id:
        return "maintenance"
    if wanted.trusted_workers and not worker.trusted:
        return "untrusted"
    if (wanted.only and worker.id not in wanted.only) or worker.id in wanted.ignore:
        return "worker_id"
    if not (wanted.slow_workers or worker.offer.fast):
        return "performance"
    if wanted.validated_backends and not worker.offer.validated:
        return "bridge_version"
    return None


def _chat_refusal(wanted: Wanted, offer: Offer) -> str | None:
    if offer.chat_model is None or offer.chat_model not in wanted.models:
        return "models"
    missing = wanted.features - offer.chat_features
    if missing:
        return min(missing)
    if wanted.images and not offer.receives_images:
        return "image_transports"
    asked, limit = wanted.tools_temperature, offer.tools_max_temperature
    if asked is not None and limit is not None and asked > limit:
        return "tools_max_temperature"
    return _size_refusal(wanted, offer.chat_max_context_length, offer.chat_max_length)


def _text_refusal(wanted: Wanted, offer: Offer) -> str | None:
    if not offer.models or not {ANY_MODEL, *offer.models}.intersection(wanted.models):
        return "models"
    return _size_refusal(wanted, offer.max_context_length, offer.max_length)


def _size_refusal(wanted: Wanted, context: int, length: int) -> str | None:
    if wanted.max_context_length > context:
        return "max_context_length"
    return "max_length" if wanted.max_length > length else None


_AGENT = re.compile(r"([^:]*):v?\d+(\.\d+)*[^:]*(:.*)?", re.S)


def is_validated(bridge_agent: str, validated_backends: Collection[str]) -> bool:
    """Whether an agent (`name:version:url`) has a listed name and something like a version."""
    match = _AGENT.fullmatch(bridge_agent)
    return match is not None and match[1] in validated_backends


LISTED = "~"
"""Before the class of a request that only certain workers may serve: behind all other classes."""


def requirement_class(wanted: Wanted) -> str:
    """A short name for what is needed, equal for requests of like needs.

    All rules that an offer alone decides are the same within a class, but for the three numeric
    limits, which are alike to a factor of two (half a degree): most classes fit an offer as a whole
    or not at all. Lists of workers do not count, or there would be a class for each list; requests
    that have an `only` list are found by the workers that it names.
    """
    needs = (
        sorted(wanted.features),
        wanted.images,
        wanted.validated_backends,
        wanted.slow_workers,
        wanted.trusted_workers,
        rounded_up(wanted.max_length),
        rounded_up(wanted.max_context_length),
        temperature_step(wanted.tools_temperature),
    )
    name = blake2s(repr(needs).encode(), digest_size=6).hexdigest()
    return LISTED + name if wanted.only else name


def rounded_up(limit: int) -> int:
    """As a class has a limit: the next power of two.

    If a class's first row is above that of an offer's limit, all its rows are above the limit.
    """
    return 1 << (max(1, bounded(limit)) - 1).bit_length()


def temperature_step(temperature: float | None) -> float | None:
    """As a class has it: the next half degree."""
    return None if temperature is None else math.ceil(temperature * 2) / 2
