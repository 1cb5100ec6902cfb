"""Normalises images of strangers, bounded in time, memory and number (spec, Images).

A small file can be made to cost a decoder minutes or gigabytes, and decoders have faults, so images
are worked on in processes that can be killed (`killable`). No pixel gets into ours.
"""

from __future__ import annotations

from collections.abc import Set

import structlog

from handlers.chat.images import MAX_IMAGE_BYTES
from handlers.errors import (
    ChatImageStorageUnavailable,
    SourceImageResolutionExceeded,
    SourceImageSizeExceeded,
    SourceImageUnreadable,
)
from handlers.images import verdicts
from handlers.processes import killable
from handlers.processes.killable import NOBODY, Killable, NoneFree

logger = structlog.get_logger()

PROGRAM = "handlers.images.process"
MEMORY_BYTES = 320 * 2**20
"""Address space of one process. The dearest images of the pixels allowed, WebP that moves, take 220
MiB of it, the interpreter included."""
WAITING = 32
"""Images that wait for a process; more are sent away. A request has its images normalised one after
the other, so these are as many requests, half of them of one account at most."""
PATIENCE = 3.0
"""An image has so many times as long as it may take CPU: a machine with much to do is not its
fault."""
_BUSY = "Images cannot be taken in right now. Nothing was queued or charged."
# What is wrong with an image comes behind its place in the request.
_UNREADABLE = "this is not a JPEG, PNG, WebP or GIF image that can be read."
_RESOLUTION = "the image has more than 3072*3072 pixels."
_COSTLY = "reading this image takes more time or memory than it may."


class ImagePool:
    """A few processes, each for one image at a time.

    seconds    of CPU that one image may take; one may wait for a process twice as long
    processes  at most
    memory     bytes of address space of one process
    patience   times `seconds` after which an image that is not done is given up
    """

    def __init__(
        self,
        *,
        seconds: float,
        processes: int,
        memory: int = MEMORY_BYTES,
        patience: float = PATIENCE,
    ) -> None:
        self._processes = Killable(
            PROGRAM,
            seconds=seconds,
            deadline=patience * seconds,
            processes=processes,
            waiting=WAITING,
            memory=memory,
        )

    async def normalise(
        self, source: bytes, parties: Set[int] = NOBODY, *, encoded: bool = False
    ) -> bytes:
        """The JPEG of an image file, as `normalise.normalise` makes it.

        `parties`: the accounts that it comes from, each of which gets its share of the processes.
        `encoded`: `source` is the payload of a data URL, base64.

        Raise SourceImageSizeExceeded, SourceImageUnreadable (what takes too much included),
        SourceImageResolutionExceeded; ChatImageStorageUnavailable where no process is free soon.
        """
        size = _decoded_bytes(source) if encoded else len(source)
        if size > MAX_IMAGE_BYTES:
            raise SourceImageSizeExceeded(
                f"the image has {size} bytes: at most {MAX_IMAGE_BYTES} are allowed."
            )
        encoding = verdicts.ENCODED if encoded else b""
        try:
            word, found = await self._processes.ask(encoding, source, parties)
        except NoneFree:
            raise ChatImageStorageUnavailable(_BUSY) from None
        match word:
            case verdicts.NORMALISED:
                return found
            case verdicts.UNREADABLE:
                raise SourceImageUnreadable(_UNREADABLE)
            case verdicts.TOO_MANY_PIXELS:
                raise SourceImageResolutionExceeded(_RESOLUTION)
            case killable.LATE:
                logger.warning("image_late", bytes=size)
                raise ChatImageStorageUnavailable(_BUSY)
            case _:  # DIED, EXHAUSTED
                logger.warning("image_stopped", verdict=word, bytes=size)
                raise SourceImageUnreadable(_COSTLY)

    async def close(self) -> None:
        """End the idle processes."""
        await self._processes.close()


def _decoded_bytes(payload: bytes) -> int:
    """Three for each four characters, less the padding."""
    return len(payload) * 3 // 4 - payload.count(b"=", len(payload) - 2)
