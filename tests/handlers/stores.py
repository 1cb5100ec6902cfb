"""Buckets for tests, and a store that fails when a test wants it to: the real one, and what may
happen on the way."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal

from handlers.errors import ChatImageStorageUnavailable
from handlers.objects import is_messages
from handlers.store import PUT_SECONDS, Object, Place, Store
from hordechat.process import Service

Trouble = Literal["", "before", "midway", "after", "late"]
"""When an upload fails: before anything is stored, between two objects, with all of them stored, or
so that they come to be stored later, when nobody believes in it any more (`land`)."""

Deletes = Literal["all", "images", "none"]
"""What it deletes when it is asked to."""


def place_in(server: Service) -> Place:
    """Two new buckets on a server, for images and for messages."""
    run, keys = secrets.token_hex(6), server.settings
    return Place(
        endpoint=server.url,
        public=server.url,
        access_key=keys["S3_ACCESS_KEY"],
        secret_key=keys["S3_SECRET_KEY"],
        region="us-east-1",
        images=f"images-{run}",
        messages=f"messages-{run}",
    )


class Troubled(Store):
    """Fails as it is told, until it is told otherwise."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.trouble: Trouble = ""
        self.deletes: Deletes = "all"
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """What comes between: done once, before the next upload arrives."""
        self.changed = True
        """Whether anything was stored or deleted since somebody set this to false."""
        self._late: list[Object] = []

    async def put(self, objects: Iterable[Object], *, seconds: float = PUT_SECONDS) -> None:
        if self.meanwhile is not None:
            trouble, meanwhile = self.trouble, self.meanwhile
            self.trouble, self.meanwhile = "", None
            await meanwhile()
            self.trouble = trouble
        await self._arrive(objects, seconds)
        if self.trouble:
            raise ChatImageStorageUnavailable

    async def _arrive(self, objects: Iterable[Object], seconds: float) -> None:
        wanted = list(objects)
        if self.trouble == "late":
            self._late += wanted
        elif self.trouble != "before":
            self.changed = True
            stored = wanted[: len(wanted) // 2] if self.trouble == "midway" else wanted
            await super().put(stored, seconds=seconds)

    async def land(self) -> None:
        """What was under way is stored."""
        if self._late:
            self.changed = True
            landed, self._late = self._late, []
            await super().put(landed)

    async def delete(self, keys: Sequence[str]) -> set[str]:
        if self.deletes == "none":
            return set()
        self.changed = True
        wanted = [key for key in keys if self.deletes == "all" or not is_messages(key)]
        return await super().delete(wanted)
