"""Rate limits as settings write them: flask-limiter's notation, `5/second` or `2 per second; 90 per
minute`."""

from __future__ import annotations

from limits import RateLimitItem, parse_many

LONGEST_SECONDS = 366 * 86_400


def items_of(text: str) -> tuple[RateLimitItem, ...]:
    """The limits that a text names; raise ValueError where it is no notation."""
    try:
        items = tuple(parse_many(text))
    except ValueError:
        items = ()
    if not items:
        raise ValueError(f"{text!r} is no rate limit like `2/second` or `5/second; 300/minute`")
    if any(item.get_expiry() > LONGEST_SECONDS for item in items):
        raise ValueError(f"{text!r} has a window of more than a year")
    return items
