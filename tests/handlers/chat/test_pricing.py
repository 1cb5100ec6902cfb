"""Estimates of cost and of waiting."""

from __future__ import annotations

import pytest

from events.base import KUDOS
from events.prices import Rate, escrow_of, quantised
from handlers.chat import estimate, pricing
from handlers.reference import Model, Reference
from tests.spec import spec

REFERENCE = Reference(
    lambda: {"8B": Model(8_030_000_000), "70B": Model(70_000_000_000), "1B": Model(10**9)}
)

TARIFF = pricing.Tariff(REFERENCE)


@spec("Kudos", 5)
@pytest.mark.parametrize(
    ("max_length", "context", "quoted"),
    [(512, 2048, 49), (16, 2048, 3), (16384, 16384, 10896), (512, 2**31 - 1, 417)],
)
def test_the_quote_of_a_model_outside_the_reference(
    max_length: int, context: int, quoted: int
) -> None:
    """text_path_reference.md 7.4: max_length × context factor × 2.7 / 100, and the two taxes."""
    assert pricing.quote(max_length, context) == quoted


@spec("Kudos", 2)
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


@spec("Pricing", 5)
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


def terms(model: str = "8B", tokens: int = 200, **other: bool) -> pricing.Terms:
    """A job of a validated backend and a trusted owner."""
    made = pricing.Terms(model, tokens, targeted=False, validated=True, trusted=True)
    return made._replace(**other)


@spec("Kudos", 4, 5)
@pytest.mark.parametrize(
    ("tokens", "factor"),
    [
        *((20, 1.2114), (80, 1.2550), (256, 1.4066), (512, 1.6545), (1024, 2.2), (2048, 3.4)),
        *((4096, 6.04), (8192, 11.848), (16_384, 24.6256), (19_647, 30), (10**9, 30)),
    ],
)
def test_the_context_factor_of_a_prompt(tokens: int, factor: float) -> None:
    """7.2: what a model outside the reference earns an owner who is not trusted is just that."""
    rate = TARIFF.rate(terms("who?", tokens, trusted=False))

    assert {rate.price(characters, 4096) for characters in (0, 9999)} == {round(factor * KUDOS)}


@spec("Pricing", 3)
@pytest.mark.parametrize(
    ("asked", "characters", "max_length", "price"),
    [
        (terms(), 1000, 200, 17.42),
        (terms(), 100_000, 200, 17.42),  # no more than was asked for
        (terms(tokens=100), 250, 200, 5.14),
        (terms(tokens=100), 0, 200, 1.63),  # as 80 characters
        (terms(tokens=100), 80, 200, 1.63),
        (terms(tokens=100), 81, 200, 1.71),
        (terms(tokens=16), 81, 16, 1.24),  # fewer than the least were asked for
        (terms(tokens=100, validated=False), 800, 200, 4.90),
        (terms("70B", 512), 2000, 512, 648.74),
        (terms("70B", 512, trusted=False), 2000, 512, 648.74),
        (terms("1B", 1024), 400, 1024, 1.76),
        (terms("who?", 300, validated=False), 1200, 300, 11.7244),
    ],
)
def test_the_price_of_a_reply(
    asked: pricing.Terms, characters: int, max_length: int, price: float
) -> None:
    assert TARIFF.rate(asked).price(characters, max_length) == round(price * KUDOS)


@spec("Kudos", 6)
@pytest.mark.parametrize("characters", [0, 9999])
def test_a_request_for_certain_workers_is_worth_next_to_nothing_where_that_is_set(
    characters: int,
) -> None:
    """HORDE_REQUIRE_MATCHED_TARGETING."""
    targeted = terms()._replace(targeted=True)
    guarded = pricing.Tariff(REFERENCE, matched_targeting=True)

    assert guarded.rate(targeted).price(characters, 512) == 0.1 * KUDOS
    assert guarded.rate(terms()) == TARIFF.rate(targeted) == TARIFF.rate(terms())


@spec("Pricing", 4)
@pytest.mark.parametrize(
    ("models", "max_length", "jobs", "upfront"),
    [
        (["8B"], 200, 1, 76.48),  # A
        (["70B"], 512, 1, 1706.67),  # B
        (["8B"], 200, 3, 229.44),  # what one needs, rounded, for each
        (["1B", "70B", "8B"], 512, 1, 1706.67),  # the largest, wherever it stands
        (["who?"], 210, 1, 10),
        (["who?", "8B"], 200, 1, 76.48),
        ([], 4096, 1, 20),
        ([], 16, 4, 80),
    ],
)
def test_what_has_to_be_there_upfront(
    models: list[str], max_length: int, jobs: int, upfront: float
) -> None:
    """3.4."""
    assert TARIFF.upfront(models, max_length, jobs) == round(upfront * KUDOS)


@spec("Kudos", 16)
@pytest.mark.parametrize(
    ("models", "context", "validated", "reward"),
    [
        (["8B"], 8192, True, 166.34),
        (["8B"], 8192, False, 49.90),
        (["who?"], 8192, True, 72.5),
        (["who?"], 8192, False, 72.5),
        ([], 8192, True, 72.5),
        (["8B", "70B"], 8192, True, 166.34),  # the first one
        (["1B"], 8192, True, 36.25),  # a quarter, at least
        (["70B"], 10**9, True, 38_650),  # of a context of 262144, at most
    ],
)
def test_what_ten_minutes_of_uptime_earn(
    models: list[str], context: int, validated: bool, reward: float
) -> None:
    """7.8, with its example."""
    assert TARIFF.uptime(models, context, validated=validated) == round(reward * KUDOS)


@pytest.mark.parametrize("half", [0.125, 0.375, 2.625])
def test_halves_of_amounts_are_rounded_to_even(half: float) -> None:
    """0.12, 0.38, 2.62: these have no error as floats."""
    assert quantised(half, hundredths=True) % 200 == 0
    assert abs(quantised(half, hundredths=True) - half * KUDOS) == 50
    assert quantised(half / 4 + 1) == {0.125: 10_312, 0.375: 10_938, 2.625: 16_562}[half]


@spec("Kudos", 10)
def test_half_of_a_price_waits_in_hundredths() -> None:
    """7.7, as Python rounds: 0.815 is a little less than that, and 0.005 a little more."""
    prices = (6_487_400, 14_475, 16_300, 100, 0)

    assert [escrow_of(price) for price in prices] == [3_243_700, 7200, 8100, 100, 0]


@pytest.mark.parametrize(
    "rate", [Rate(0.0, 0.1 + 0.2, hundredths=True), Rate(1 / 3, 1e-12, hundredths=False)]
)
def test_a_rate_is_read_as_it_was_written(rate: Rate) -> None:
    assert Rate.parse(str(rate)) == rate


@pytest.mark.parametrize("text", ["", "1", "a:b", "1:2:3"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"convert|unpack"):
        Rate.parse(text)


def test_jobs_of_idle_threads_are_not_worked_off_faster() -> None:
    """`tokens_per_second` is what all threads make together."""
    assert estimate.queue_seconds(1000, jobs=2, threads=8, tokens_per_second=80) == 50
    assert estimate.queue_seconds(1000, jobs=8, threads=2, tokens_per_second=20) == 50
    assert estimate.queue_seconds(1000, jobs=1, threads=0, tokens_per_second=0) == 0
    assert estimate.remaining_seconds(100, elapsed=4, speed=10) == 6
    assert estimate.remaining_seconds(100, elapsed=40, speed=10) == 0
