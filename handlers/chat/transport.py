"""How a chat job's images and messages travel to its worker (spec, Images; Messages offload)."""

from __future__ import annotations

from events.types import Declaration

URL = "url"
BASE64 = "base64"
MESSAGES_URL = "messages_url"

IMAGE_URL_SECONDS = 600
"""A signed image URL is valid at least as long, and as long as the job's lease."""
MESSAGES_URL_SECONDS = 120
"""A worker fetches messages right after its pop: a leaked URL is of little use."""


def transports(declaration: Declaration) -> dict[str, str]:
    """What a worker takes, as the scripts that choose are told (lua/lib/transport.lua).

    `images`: `url` where it declared that, else `base64`; `messages`: `messages_url`; or empty.
    """
    declared = declaration.image_transports
    return {
        "images": next((each for each in (URL, BASE64) if each in declared), ""),
        "messages": MESSAGES_URL if MESSAGES_URL in declared else "",
    }


def fetches(declaration: Declaration) -> bool:
    """Whether a worker fetches images itself; otherwise they are read for it."""
    return URL in declaration.image_transports
