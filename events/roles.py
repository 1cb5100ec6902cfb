"""What an account may be beside an account (text_path_reference.md 2.4)."""

from __future__ import annotations

ROLES = (
    "trusted",
    "moderator",
    "flagged",
    "service",
    "education",
    "patron",
    "special",
    "vpn",
    "customizer",
)
