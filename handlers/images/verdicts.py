"""What normalising an image may come to, and how it is asked for.

Shared by who asks (`image_pool`) and the process that answers (`image_process`), so that who asks
imports no decoder.
"""

from __future__ import annotations

MAX_PIXELS = 3072 * 3072

ENCODED = b"base64"
"""The first part of a question whose image comes in base64; nothing where it comes as it is."""

NORMALISED = "normalised"
"""The JPEG goes with it."""
UNREADABLE = "unreadable"
TOO_MANY_PIXELS = "too many pixels"
