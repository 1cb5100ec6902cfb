"""Ids as they come in URLs and bodies."""

from __future__ import annotations

import re

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def canonical(text: str) -> str | None:
    """A UUID as we spell it, in lower case; None for anything else."""
    lower = text.lower()
    return lower if _UUID.fullmatch(lower) else None
