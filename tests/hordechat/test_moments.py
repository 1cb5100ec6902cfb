"""Moments as operators write them."""

from __future__ import annotations

import pytest

from events.base import START, Position
from hordechat.moments import Ago, Backwards, parse, span

NOON = 1_777_636_800_000
"""2026-05-01T12:00Z."""


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-05-01T12:00", NOON),
        ("2026-05-01 12:00:00", NOON),
        ("2026-05-01T12:00:00.250", NOON + 250),
        ("2026-05-01T12:00Z", NOON),
        ("2026-05-01T14:00+02:00", NOON),
        ("2026-05-01", NOON - 12 * 3_600_000),
        ("1969-07-20", 0),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise(text: str, ms: int) -> None:
    assert parse(text) == Position(ms, 0)


def test_a_position_is_itself() -> None:
    assert parse("1777638600000-12") == Position(1_777_638_600_000, 12)


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000), ("7d", 604_800_000)]
)
def test_how_long_ago_is_counted_from_the_log_s_now(text: str, ms: int) -> None:
    assert parse(text) == Ago(ms)
    assert span(parse(text), None, NOON) == (Position(NOON - ms, 0), None)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-05", "2026-13-01", "5", "1h30m", "-5m", "1.5h", "1-", "٣m"]
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_a_span_without_ends_is_the_whole_log() -> None:
    assert span(None, None, NOON) == (START, None)
    assert span(Ago(10**17), None, NOON) == (START, None)


def test_a_span_does_not_end_before_it_begins() -> None:
    later = Position(NOON, 1)

    assert span(later, later, NOON) == (later, later)
    with pytest.raises(Backwards):
        span(later, Position(NOON, 0), NOON)
    with pytest.raises(Backwards):
        span(Ago(60_000), Ago(120_000), NOON)
