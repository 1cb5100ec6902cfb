"""What a request keeps in the object store, and under which names (spec, Images; Messages offload).

Each of its images is an object, and its whole messages array may be one. Which of them there are is
told by its admission before the first is stored, and by the request itself from then on, so that
whoever ends either knows what to delete (ADR 16).
"""

from __future__ import annotations

import re
from typing import NamedTuple

REFERENCE = "horde-r2://"
"""In front of an image's key: stands for its URL in the stored messages."""

_NAMED = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})_chat_(?:(0|[1-9][0-9]*)\.jpg|messages\.json)"
)
_WORD = re.compile(r"(\d+)(m?)")


class Kept(NamedTuple):
    """How much of a request is in the store."""

    images: int = 0
    offloaded: bool = False
    """Whether its messages are an object, too."""

    @classmethod
    def parse(cls, word: str) -> Kept:
        """From the word that an admission and a request keep (lua/lib/objects.lua); raise
        ValueError for any other."""
        if not word:
            return NOTHING
        found = _WORD.fullmatch(word)
        if found is None:
            raise ValueError(f"{word!r} does not tell of objects")
        return cls(int(found[1]), bool(found[2]))

    def keys(self, request_id: str) -> list[str]:
        """The names of all of them."""
        names = [image_key(request_id, n) for n in range(self.images)]
        return [*names, messages_key(request_id)] if self.offloaded else names

    def holds(self, named: Named) -> bool:
        """Whether an object of the request is one of them."""
        return self.offloaded if named.image is None else named.image < self.images


NOTHING = Kept()


class Named(NamedTuple):
    """What an object's name says."""

    request_id: str
    image: int | None
    """Which of its images, from 0; None: its messages."""


def image_key(request_id: str, n: int) -> str:
    """The name of a request's image."""
    return f"{request_id}_chat_{n}.jpg"


def messages_key(request_id: str) -> str:
    """The name of a request's messages."""
    return f"{request_id}_chat_messages.json"


def named(key: str) -> Named | None:
    """What a name of ours says; None for anybody else's."""
    found = _NAMED.fullmatch(key)
    if found is None:
        return None
    return Named(found[1], None if found[2] is None else int(found[2]))


def is_messages(key: str) -> bool:
    """Whether an object is one of messages, which may have a bucket of their own."""
    return key.endswith("_chat_messages.json")
