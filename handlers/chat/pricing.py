"""What a request is estimated to cost (text_path_reference.md, section 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from handlers.reference import Reference

EXTRA_SOURCE_IMAGE_HORDE_TAX = 5
"""Kudos that each image adds (spec, Images)."""

_ACTIVATION_TAX = 1
_BURN = 1  # for each job
_FREE_SIZE = 13.0
"""Billions of parameters up to which size earns no bonus, and that a request for any model is
counted with."""


def quoted_size(models: Sequence[str], reference: Reference) -> float | None:
    """Billions of parameters to quote with: those of the first listed model.

    None where the reference does not list that model.
    """
    if not models:
        return _FREE_SIZE
    return reference.multiplier(models[0]) if reference.known(models[0]) else None


def quote(
    max_length: int,
    max_context_length: int,
    jobs: int = 1,
    *,
    size: float | None = None,
    images: int = 0,
) -> int:
    """Kudos that a request is expected to cost: 7.4, and the tax on its images.

    size    as `quoted_size` tells

    It assumes that every job generates `max_length` tokens, so the charge is rarely higher. Rounded
    where and as the formula was rounded: by Python, halves to even.
    """
    context = min(max(1.2 + math.pow(2.2, math.log2(max_context_length / 1024)), 0.1), 30.0)
    if size is None:
        job = max_length * context * 2.7 / 100
    else:
        bonus = math.pow(max(size, _FREE_SIZE) / _FREE_SIZE, 0.20)
        job = round(max_length * bonus * size * context / 100, 2)
    tax = _ACTIVATION_TAX + EXTRA_SOURCE_IMAGE_HORDE_TAX * images
    return round((job + _BURN) * jobs + tax)
