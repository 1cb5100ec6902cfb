"""How fast a worker can be believed to be (text_path_reference.md 6.6).

Replies that come faster are counted, of the worker for moderators to look at, and of its owner: too
many (`Limits.suspect`) keep that one from earning trust and from giving kudos.
"""

from __future__ import annotations

from handlers.reference import Reference

MOST = 150
"""Tokens a second, whoever the worker's owner is and whatever its model."""
_BY_SIZE = ((70, 30), (14, 100))
"""Tokens a second by the billions of parameters from which they hold, for untrusted owners."""
_EXPERTS = "8x"
"""In the name of a model that uses a part of its parameters at a time."""
_EXPERTS_FACTOR = 3


def believable(reference: Reference, model: str, *, trusted: bool) -> int:
    """10^-3 tokens a second that a worker of an owner who is trusted or not may reach."""
    most = MOST
    if not trusted and reference.known(model):
        size = reference.multiplier(model)
        most = next((most for billions, most in _BY_SIZE if size >= billions), MOST)
        if _EXPERTS in model:
            most = min(MOST, most * _EXPERTS_FACTOR)
    return most * 1000
