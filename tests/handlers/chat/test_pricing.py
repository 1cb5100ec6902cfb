"""Estimates of cost and of waiting."""

from __future__ import annotations

import pytest

from handlers.chat import estimate, pricing
from handlers.reference import Model, Reference

REFERENCE = Reference(
    lambda: {"8B": Model(8_030_000_000), "70B": Model(70_000_000_000), "1B": Model(10**9)}
)

TARIFF = pricing.Tariff(REFERENCE)


@pytest.mark.parametrize(
    ("max_length", "context", "quoted"),
    [(512, 2048, 49), (16, 2048, 3), (16384, 16384, 10896), (512, 2**31 - 1, 417)],
)
def test_the_quote_of_a_model_outside_the_reference(
    max_length: int, context: int, quoted: int
) -> None:
    """text_path_reference.md 7.4: max_length × context factor × 2.7 / 100, and the two taxes."""
    assert pricing.quote(max_length, context) == quoted


@pytest.mark.parametrize(
    ("models", "max_length", "context", "quoted"),
    [
        (["8B"], 200, 4096, 99),  # A: 97.00
        (["70B"], 512, 8192, 5948),  # B
        ([], 200, 4096, 159),  # D: 157.04
    ],
)
def test_the_worked_examples(models: list[str], max_length: int, context: int, quoted: int) -> None:
    """text_path_reference.md 7.10."""
    size = TARIFF.quoted_size(models)

    assert pricing.quote(max_length, context, size=size) == quoted


def test_the_first_listed_model_is_quoted() -> None:
    assert TARIFF.quoted_size(["70B", "1B"]) == 70
    assert TARIFF.quoted_size(["1B-Q4_K_M", "70B"]) == 1
    assert TARIFF.quoted_size(["who?", "70B"]) is None


def test_every_job_is_quoted_and_rounded_in_all() -> None:
    """(157.04 + 1) × 3 + 1."""
    assert pricing.quote(200, 4096, 3, size=13.0) == 475


def test_each_image_adds_its_tax_once() -> None:
    """It is part of the activation tax, not of a job."""
    assert pricing.quote(200, 4096, 3, size=13.0, images=4) == 475 + 20


def test_halves_are_rounded_to_even() -> None:
    """0.5 + 1 + 1 and 1.5 + 1 + 1: as Python rounds, and so the formula did."""
    assert pricing.quote(100, 1024, size=0.5 / 2.2) == 2
    assert pricing.quote(100, 1024, size=1.5 / 2.2) == 4


@pytest.mark.parametrize("context", [1, 80, 1024, 19_647, 1_048_576])
def test_the_context_factor_is_bounded(context: int) -> None:
    factor = (pricing.quote(1_000_000, context, size=1.0) - 2) / 10_000

    assert 1.2 <= factor <= 30


def test_jobs_of_idle_threads_are_not_worked_off_faster() -> None:
    """`tokens_per_second` is what all threads make together."""
    assert estimate.queue_seconds(1000, jobs=2, threads=8, tokens_per_second=80) == 50
    assert estimate.queue_seconds(1000, jobs=8, threads=2, tokens_per_second=20) == 50
    assert estimate.queue_seconds(1000, jobs=1, threads=0, tokens_per_second=0) == 0
    assert estimate.remaining_seconds(100, elapsed=4, speed=10) == 6
    assert estimate.remaining_seconds(100, elapsed=40, speed=10) == 0
