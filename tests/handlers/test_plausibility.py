"""How fast a worker can be believed to be."""

from __future__ import annotations

import pytest

from events.speed import implausible
from handlers.plausibility import believable
from handlers.reference import Model, Reference
from tests.spec import spec

MODELS = {
    "small": Model(8_000_000_000),
    "middle": Model(14_000_000_000),
    "large": Model(70_000_000_000),
    "8x22B": Model(140_000_000_000),
    "8x7B": Model(46_000_000_000),
}


@spec("Kudos", 12)
@pytest.mark.parametrize(
    ("model", "trusted", "speed"),
    [
        ("small", False, 150),
        ("middle", False, 100),
        ("large", False, 30),
        ("8x22B", False, 90),
        ("8x7B", False, 150),
        ("nobody knows it", False, 150),
        ("large", True, 150),
    ],
)
def test_what_is_believable_depends_on_the_model_and_on_trust(
    model: str, trusted: bool, speed: int
) -> None:
    assert believable(Reference(lambda: MODELS), model, trusted=trusted) == speed * 1000


@spec("Kudos", 12)
@pytest.mark.parametrize(
    ("tokens", "elapsed_ms", "told"),
    [
        (150, 1000, False),
        (151, 1000, True),
        (300, 2000, False),
        (301, 2000, True),
        (1, 1, False),  # a word at once is no wonder
        (150, 1, False),
        (151, 1, True),
    ],
)
def test_a_reply_that_came_faster_is_implausible(tokens: int, elapsed_ms: int, told: bool) -> None:
    assert implausible(tokens * 4, 4096, elapsed_ms, 150_000) is told
