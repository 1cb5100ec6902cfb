"""Moments as operators write them: a time, a date, how long ago, or a place in the log."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from events.base import START, Position

SPELLED = (
    "a time (2026-05-01T12:30, UTC unless it says otherwise), a date, how long ago "
    "(90s, 15m, 2h, 7d), or a position (1777638600000-0)"
)
_POSITION = re.compile(r"([0-9]{5,15})-([0-9]{1,10})")  # a year and its month are none
_AGO = re.compile(r"([0-9]{1,9})([smhd])")
_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Ago(NamedTuple):
    """So long before now."""

    ms: int


Moment = Position | Ago


class Backwards(Exception):
    """A span of time ends before it begins."""


def parse(text: str) -> Moment:
    """Read a moment; raise ValueError for anything else."""
    if found := _POSITION.fullmatch(text):
        return Position(int(found[1]), int(found[2]))
    if found := _AGO.fullmatch(text):
        return Ago(int(found[1]) * _MS[found[2]])
    at = datetime.fromisoformat(text)
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return Position(max(0, round(at.timestamp() * 1000)), 0)


def span(
    since: Moment | None, until: Moment | None, now_ms: int
) -> tuple[Position, Position | None]:
    """Where in a log a span begins and ends; `now_ms` is the log's own clock. Raise Backwards."""
    begins = START if since is None else _place(since, now_ms)
    ends = None if until is None else _place(until, now_ms)
    if ends is not None and begins > ends:
        raise Backwards
    return begins, ends


def _place(moment: Moment, now_ms: int) -> Position:
    if isinstance(moment, Ago):
        return Position(max(0, now_ms - moment.ms), 0)
    return moment
