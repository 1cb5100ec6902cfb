"""What a request costs, before, while and after it is served (text_path_reference.md, section 7;
spec, Pricing).

Kudos as the formulas give them, floats; what they come to is rounded once, in events/prices.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from events.base import KUDOS
from events.prices import Rate, quantised
from handlers import plausibility
from handlers.reference import Reference

EXTRA_SOURCE_IMAGE_HORDE_TAX = 5
"""Kudos that each image adds (spec, Images)."""

BURN = KUDOS
"""10^-4 kudos that a payer pays for each job beside its price; nobody gets them."""

_ACTIVATION_TAX = 1
_FREE_SIZE = 13.0
"""Billions of parameters up to which size earns no bonus, and that a request for any model is
counted with."""
_UNVALIDATED = 0.3
_TARGETED = 0.1
_UNKNOWN_OF_TRUSTED = 2.7 / 100
_UPTIME_CONTEXT = 262_144


class Terms(NamedTuple):
    """What the price of a job depends on beside its output: known when it is assigned."""

    model: str
    """The one that serves it."""
    prompt_tokens: int
    """As `events.speed.tokens_of` counts its prompt."""
    targeted: bool
    """Its request names the workers that may serve it."""
    validated: bool
    """The worker's backend is."""
    trusted: bool
    """The worker's owner is."""


class Tariff:
    """Prices by the text model reference."""

    def __init__(self, reference: Reference, *, matched_targeting: bool = False) -> None:
        """`matched_targeting`: jobs whose request names its workers are worth next to nothing, so
        that nobody earns by serving itself (HORDE_REQUIRE_MATCHED_TARGETING)."""
        self._reference = reference
        self._matched_targeting = matched_targeting

    def rate(self, terms: Terms) -> Rate:
        """What a job's output costs its payer and earns its worker's owner (7.2).

        A model that the reference does not list earns a flat price, or where its owner is trusted
        one by tokens that does not depend on its size.
        """
        if terms.targeted and self._matched_targeting:
            return Rate(_TARGETED, 0.0, hundredths=False)
        context = _context_factor(terms.prompt_tokens)
        if not self._reference.known(terms.model):
            if not terms.trusted:
                return Rate(context, 0.0, hundredths=False)
            return Rate(0.0, context * _UNKNOWN_OF_TRUSTED, hundredths=False)
        size = self._reference.multiplier(terms.model)
        validated = 1.0 if terms.validated else _UNVALIDATED
        return Rate(0.0, _bonus(size) * size / 125 * validated * context, hundredths=True)

    def believable(self, model: str, *, trusted: bool) -> int:
        """10^-3 tokens a second that a worker may reach and be paid without suspicion (6.6)."""
        return plausibility.believable(self._reference, model, trusted=trusted)

    def upfront(self, models: Sequence[str], max_length: int, jobs: int) -> int:
        """10^-4 kudos that have to be there for a request above its free output allowance (3.4).

        By the largest of its models, so that a cheap one beside it lowers nothing.
        """
        if not models:
            return 20 * jobs * KUDOS
        size = max(map(self._reference.multiplier, models))
        return quantised(max_length * size / 21, hundredths=True) * jobs

    def uptime(self, models: Sequence[str], max_context_length: int, *, validated: bool) -> int:
        """10^-4 kudos for ten minutes of being online, by the first model that is served (7.8)."""
        base = 25 + 15 * min(max_context_length, _UPTIME_CONTEXT) / 1024
        model = models[0] if models else ""
        if not self._reference.known(model):
            return quantised(base / 2)
        base *= 1.0 if validated else _UNVALIDATED
        size = self._reference.multiplier(model)
        return quantised(base * max(size / 7, 0.25), hundredths=True)

    def quoted_size(self, models: Sequence[str]) -> float | None:
        """Billions of parameters to quote with: those of the first listed model.

        None where the reference does not list that model.
        """
        if not models:
            return _FREE_SIZE
        known = self._reference.known(models[0])
        return self._reference.multiplier(models[0]) if known else None


def tax(images: int = 0) -> int:
    """10^-4 kudos that a request is charged when it is taken, whatever becomes of it (3.5)."""
    return (_ACTIVATION_TAX + EXTRA_SOURCE_IMAGE_HORDE_TAX * images) * KUDOS


def quote(
    max_length: int,
    max_context_length: int,
    jobs: int = 1,
    *,
    size: float | None = None,
    images: int = 0,
) -> int:
    """Kudos that a request is expected to cost: 7.4, and the tax on its images.

    size    as `Tariff.quoted_size` tells

    It assumes that every job generates `max_length` tokens, so the charge is rarely higher. Rounded
    where and as the formula was rounded: by Python, halves to even.
    """
    context = _context_factor(max_context_length)
    if size is None:
        job = max_length * context * _UNKNOWN_OF_TRUSTED
    else:
        job = round(max_length * _bonus(size) * size * context / 100, 2)
    return round((job + BURN / KUDOS) * jobs + tax(images) / KUDOS)


def _context_factor(tokens: int) -> float:
    return min(max(1.2 + math.pow(2.2, math.log2(max(tokens, 1) / 1024)), 0.1), 30.0)


def _bonus(size: float) -> float:
    return math.pow(max(size, _FREE_SIZE) / _FREE_SIZE, 0.20)
