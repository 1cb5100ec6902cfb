"""How long a call waits for what is behind, within the second in which it is answered."""

from __future__ import annotations

from typing import NamedTuple


class Patience(NamedTuple):
    """Seconds. A call that waits for several of these in turn is still answered within one."""

    limits: float = 0.1
    """For Redis, to count the call. What comes after the limits waits for it, too."""
    shown: float = 0.3
    """For the model before the first and before the last look at a request: with a query that times
    out, the answer still comes in time."""
    sure: float = 0.3
    """For the model of workers, before it is said that none can serve a request."""
    settled: float = 0.3
    """For the settler, before it is said that an account has too many jobs waiting."""
    warning: float = 0.35
    """For finding out whether a request that was taken comes with a warning."""
    measure: float = 0.15
    """For what is free just now."""


PATIENCE = Patience()
