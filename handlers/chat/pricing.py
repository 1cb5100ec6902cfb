"""What a job is estimated to cost (text_path_reference.md, section 7)."""

from __future__ import annotations

import math


def quote(max_length: int, max_context_length: int, jobs: int = 1) -> int:
    """Kudos that a request of a model outside the model reference is expected to cost (7.4).

    It assumes that all `max_length` tokens are generated, so the charge is rarely higher.
    """
    context = min(max(1.2 + math.pow(2.2, math.log2(max_context_length / 1024)), 0.1), 30.0)
    tokens = round(max_length * context * 2.7 / 100, 2)
    return round((tokens + 1) * jobs + 1)
