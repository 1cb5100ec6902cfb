"""Estimates of cost and of waiting."""

from __future__ import annotations

import pytest

from handlers.chat import estimate, pricing


@pytest.mark.parametrize(
    ("max_length", "context", "quoted"),
    [(512, 2048, 49), (16, 2048, 3), (16384, 16384, 10896), (512, 2**31 - 1, 417)],
)
def test_the_quote_of_a_model_outside_the_reference(
    max_length: int, context: int, quoted: int
) -> None:
    """text_path_reference.md 7.4: max_length × context factor × 2.7 / 100, and the two taxes."""
    assert pricing.quote(max_length, context) == quoted


def test_jobs_of_idle_threads_are_not_worked_off_faster() -> None:
    assert estimate.queue_seconds(1000, jobs=2, threads=8) == 50
    assert estimate.queue_seconds(1000, jobs=8, threads=2) == 50
    assert estimate.queue_seconds(1000, jobs=1, threads=0) == 0
    assert estimate.remaining_seconds(100, elapsed=4) == 6
    assert estimate.remaining_seconds(100, elapsed=40) == 0
