"""What output costs, as the log keeps it: the one place where kudos become integers
(text_path_reference.md 7.1 and 7.2; spec, Pricing).

A rate holds all that is known of a job before it ends. Where its output is counted by a script (a
cancel), whoever carries the fact on works out the amount from the rate in the event.
"""

from __future__ import annotations

from typing import NamedTuple

from events.base import KUDOS
from events.speed import tokens_of

_HUNDREDTHS = 2
_EXACT = 4
"""Digits behind the point that an amount has; those of the smallest one that the log knows."""


def quantised(kudos: float, *, hundredths: bool = False) -> int:
    """Kudos as 10^-4 kudos, rounded once, half to even; to whole hundredths where the formula that
    gave them rounds so."""
    return round(round(kudos, _HUNDREDTHS if hundredths else _EXACT) * KUDOS)


class Rate(NamedTuple):
    """The price of one job's output, by its tokens."""

    flat: float
    """Kudos, whatever the output."""

    per_token: float
    """Kudos for each token of it."""

    hundredths: bool
    """The formula rounds the price to hundredths of a kudos."""

    def price(self, characters: int, max_length: int) -> int:
        """10^-4 kudos for a reply of so many characters to a request of `max_length` tokens."""
        kudos = self.flat + self.per_token * tokens_of(characters, max_length)
        return quantised(kudos, hundredths=self.hundredths)

    def __str__(self) -> str:
        """As an event holds it: `<flat>:<per token>`, with a `~` behind it for hundredths."""
        return f"{self.flat!r}:{self.per_token!r}{'~' if self.hundredths else ''}"

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read it again; raise ValueError for anything else."""
        flat, per_token = text.removesuffix("~").split(":", 1)
        return cls(float(flat), float(per_token), text.endswith("~"))


def escrow_of(price: int) -> int:
    """What of a price waits for an owner who is not trusted: half, in hundredths of a kudos, half
    to even (text_path_reference.md 7.7)."""
    return quantised(price / KUDOS / 2, hundredths=True)
