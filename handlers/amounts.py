"""Amounts of kudos that people name: taken exactly, or not at all."""

from __future__ import annotations

from decimal import Decimal

from events.base import KUDOS
from handlers.errors import BadRequest

DIGITS = 4
"""Behind the point, that an amount may have."""
MOST = 2**53 // KUDOS
"""Kudos of one movement: scripts count in doubles."""


def amount_of(kudos: float | Decimal) -> int:
    """Kudos as 10^-4 kudos.

    Raise BadRequest for what is no number, finer than that, or more than MOST (or less than -MOST).
    """
    exact = Decimal(repr(kudos)) if isinstance(kudos, float) else Decimal(kudos)
    if not exact.is_finite() or abs(exact) > MOST:
        raise _refused(f"An amount of kudos is a number of at most {MOST}.")
    units = exact.scaleb(DIGITS)
    if units != units.to_integral_value():
        raise _refused(f"An amount of kudos has at most {DIGITS} digits behind the point.")
    return int(units)


def shown(amount: int) -> str:
    """10^-4 kudos as people read them, exact: 12.5 for 125000."""
    whole, fraction = divmod(abs(amount), KUDOS)
    digits = f".{fraction:0{DIGITS}d}".rstrip("0").rstrip(".")
    return f"{'-' if amount < 0 else ''}{whole}{digits}"


def _refused(sentence: str) -> BadRequest:
    return BadRequest(sentence, errors={"amount": sentence})
