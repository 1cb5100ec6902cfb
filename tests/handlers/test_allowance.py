"""The free output allowance at its corners, and who needs kudos upfront."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from handlers.allowance import Terms, allowance, upfront
from tests.handlers.pool import request_of
from tests.spec import spec


@spec("Free output allowance", 5, 6, 7, 9, 11, 12, 13, 14)
@pytest.mark.parametrize(
    ("wait", "tokens"),
    [
        (None, 512),  # nobody could take it
        (0.0, 4096),
        (60.0, 4096),
        (60.01, 4096),  # 4095.85
        (60.04, 4095),  # 4095.40
        (61.0, 4081),  # 4081.07
        (120.0, 3200),
        (180.0, 2304),
        (299.0, 527),  # 526.93
        (299.97, 512),  # 512.45
        (299.95, 513),  # 512.75
        (300.0, 512),
        (1e9, 512),
    ],
)
def test_what_is_free_falls_from_the_ceiling_to_the_floor_with_the_wait(
    wait: float | None, tokens: int
) -> None:
    assert allowance(wait) == tokens


@spec("Free output allowance", 11, 12, 13, 14)
@pytest.mark.parametrize(
    ("wait", "tokens"), [(None, 100), (10.0, 900), (15.0, 500), (20.0, 100), (19.99, 101)]
)
def test_the_corners_are_settings(wait: float | None, tokens: int) -> None:
    terms = Terms(ceiling=900, floor=100, full_wait=10, floor_wait=20)

    assert allowance(wait, terms) == tokens


@pytest.mark.parametrize(("wait", "tokens"), [(30.0, 4096), (30.01, 512)])
def test_with_both_waits_the_same_there_is_a_step(wait: float, tokens: int) -> None:
    assert allowance(wait, Terms(full_wait=30, floor_wait=30)) == tokens


@spec("Free output allowance", 1, 17, 18)
@pytest.mark.parametrize(
    ("max_length", "demand", "listed", "needed"),
    [
        (512, {}, False, False),
        (513, {}, False, True),
        (16, {"slow_workers": False}, False, True),
        (512, {"only": ("a",)}, False, False),
        (16, {"only": ("a",)}, True, True),
        (16, {"ignore": ("a",)}, True, True),
        (16, {}, True, False),
    ],
)
def test_kudos_are_needed_upfront_above_the_allowance_for_fast_workers_and_for_lists(
    max_length: int, demand: dict[str, Any], listed: bool, needed: bool
) -> None:
    new = request_of(max_length=max_length)
    new = new._replace(demand=msgspec.structs.replace(new.demand, **demand))

    assert upfront(new, 512, Terms(upfront_for_listed=listed)) == needed
