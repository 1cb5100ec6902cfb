"""From a job to the payload that its worker gets (spec, Images; Messages offload; Chat job pop
response).

What a request keeps in the object store is signed, or read, once its job is assigned: never in a
script, and not before. Where that cannot be done the job is given back, and nobody is blamed.
"""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog

from events.base import START
from events.types import Declaration
from handlers.cancel import expire
from handlers.chat import images, payload
from handlers.chat.attached import DATA_URL, encoded_bytes
from handlers.chat.body import Message
from handlers.chat.images import MAX_TOTAL_BYTES
from handlers.chat.transport import (
    IMAGE_URL_SECONDS,
    MESSAGES_URL,
    MESSAGES_URL_SECONDS,
    URL,
    fetches,
)
from handlers.errors import ChatImageStorageUnavailable, RedisUnavailable
from handlers.limits import Limits
from handlers.log import Log, persist
from handlers.objects import REFERENCE, image_key, messages_key
from handlers.pop import Assignment, give_back
from handlers.store import ObjectMissing, Store

logger = structlog.get_logger()

READ_SECONDS = 15.0
"""In which the images of a job are read, or it is given back: the largest from a store that gives 2
MiB a second. One that hangs is given up sooner, by the store's own deadlines."""
AT_ONCE_BYTES = 5 * MAX_TOTAL_BYTES
"""Of images that one process holds for workers that do not fetch: as many as were read, and for a
job whose images are being read as many as there may be."""
READS_AT_ONCE = 2
"""Of one job: the store's threads are for all."""
SENT_SECONDS = 10.0
SENT_BYTES_A_SECOND = 2**18
"""A worker whose images are read for it has to take them as fast as this, 2 Mbit/s, and so many
seconds: meanwhile they are in memory. One that is slower loses the job, and its connection."""
PIECE_BYTES = 3 * 2**16
"""Of an image that are encoded and sent at once; three bytes are four characters."""
PROBED = image_key("00000000-0000-0000-0000-000000000000", 0)
"""No request has this id: who asks for it learns only whether the store is there."""

_messages = msgspec.json.Decoder(list[Message])

Assign = Callable[[Declaration], Awaitable[Assignment | None]]


class Memory:
    """How much more one process may hold, in bytes."""

    def __init__(self, left: int) -> None:
        self.left = left


class Room:
    """A part of it that is taken, until it is given back."""

    def __init__(self, memory: Memory, size: int) -> None:
        self._memory = memory
        self._size = size
        memory.left -= size

    def shrink(self, size: int) -> None:
        """No more than this is needed."""
        self._memory.left += self._size - size
        self._size = size

    def release(self) -> None:
        """Nothing is. To say so again changes nothing."""
        self.shrink(0)


class Delivered(NamedTuple):
    """What a worker gets with its job."""

    payload: msgspec.Raw
    """JSON, in which `mark` stands for the base64 text of each image."""

    images: tuple[bytes, ...] = ()
    mark: bytes = b""
    room: Room | None = None
    """What the images take; to be released once they were sent, or will not be."""

    def length(self, answer: bytes) -> int:
        """The length of an answer that holds the payload, once the images stand in it."""
        text = sum(encoded_bytes(len(image)) for image in self.images)
        return len(answer) - len(self.mark) * len(self.images) + text

    async def sent(self, answer: bytes) -> AsyncIterator[bytes]:
        """Such an answer piece by piece, each encoded when the one before is on its way."""
        try:
            between = answer.split(self.mark)
            yield between[0]
            for image, text in zip(self.images, between[1:], strict=True):
                whole = memoryview(image)
                for at in range(0, len(image), PIECE_BYTES):
                    yield b64encode(whole[at : at + PIECE_BYTES])
                    await asyncio.sleep(0)  # a quick worker must not keep the others waiting
                yield text
        finally:
            self.release()

    def release(self) -> None:
        """The images were sent, or will not be."""
        if self.room is not None:
            self.room.release()


class Handed(NamedTuple):
    """A job that a worker holds, and what it gets with it."""

    job: Assignment
    delivered: Delivered


class Delivery:
    """Builds payloads.

    While the store is away no job with images is handed out: signed URLs would lead nowhere, and a
    request that is given back again and again wears out. Once it was found away it is asked, at
    most one question at a time, before the next such job is.
    """

    def __init__(
        self,
        log: Log,
        limits: Limits,
        store: Store | None,
        *,
        seconds: float = READ_SECONDS,
        at_once: int = AT_ONCE_BYTES,
        sent: float = SENT_SECONDS,
    ) -> None:
        """`store`: None where there is none."""
        self._log = log
        self._limits = limits
        self._store = store
        self._seconds = seconds
        self._memory = Memory(at_once)
        self._sent = sent
        self._doubted = False
        self._asking: asyncio.Task[None] | None = None

    def ready(self) -> bool:
        """Whether what is in the store can be delivered now, as far as is known."""
        store = self._store
        if store is None:
            return False
        if store.away:
            self._doubted = True
        elif self._doubted and self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask(store))
        return not self._doubted

    def serves(self, *, reading: bool) -> bool:
        """Whether a job with images can be handed out now; `reading` where its worker does not
        fetch them itself."""
        return self.ready() and (not reading or self._memory.left >= MAX_TOTAL_BYTES)

    def patience(self, length: int) -> float:
        """Seconds in which a worker has to take an answer with images, of so many bytes."""
        return self._sent + length / SENT_BYTES_A_SECOND

    async def hand_out(
        self, declaration: Declaration, assign: Assign, *, images: bool
    ) -> Handed | None:
        """Have a chat job assigned and build its payload; None where there is none, or its payload
        cannot be built: then somebody else gets it, or this worker a moment later.

        `assign` is told what the worker declared, but for what cannot be delivered now; `images`
        is whether the request has any. Raise RedisUnavailable.
        """
        reading = images and not fetches(declaration)
        if images and not self.serves(reading=reading):
            return None
        if declaration.image_transports and not self.ready():
            declaration = msgspec.structs.replace(declaration, image_transports=())
        room = Room(self._memory, MAX_TOTAL_BYTES) if reading else None
        delivered = None
        try:
            job = await assign(declaration)
            if job is not None:
                delivered = await self._of(job, room)
        finally:
            if room is not None and (delivered is None or delivered.room is None):
                room.release()
        return None if job is None or delivered is None else Handed(job, delivered)

    async def close(self) -> None:
        """Stop asking the store."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _of(self, job: Assignment, room: Room | None) -> Delivered | None:
        """The payload of a job; None where it cannot be built, and the job was given back."""
        if not job.transport:
            return Delivered(payload.rendered(job.messages, job.payload))
        try:
            async with asyncio.timeout(self._seconds):
                return await self._built(job, room)
        except (ChatImageStorageUnavailable, TimeoutError) as error:
            self._doubted = True
            logger.warning(
                "payload_not_built", request_id=job.request_id, reason=str(error) or "too slow"
            )
            await self._undo(job)
        except ObjectMissing as missing:
            await self._undo(job)
            await self._end(job, str(missing))
        return None

    async def _built(self, job: Assignment, room: Room | None) -> Delivered:
        store = self._store
        if store is None:
            raise ChatImageStorageUnavailable
        if job.transport == MESSAGES_URL:
            url = store.url(messages_key(job.request_id), MESSAGES_URL_SECONDS)
            return Delivered(payload.rendered_url(url, job.payload))
        messages = _messages.decode(job.messages)
        keys = [part.image_url.url.removeprefix(REFERENCE) for _, part in images.placed(messages)]
        if job.transport == URL:
            seconds = max(job.ttl, IMAGE_URL_SECONDS)
            urls = []
            for key in keys:
                urls.append(store.url(key, seconds))
                await asyncio.sleep(0)  # a fifth of a millisecond each: others go on in between
            return Delivered(_rendered(messages, urls, job))
        bodies = await self._read(store, keys)
        if room is not None:
            room.shrink(sum(map(len, bodies)))
        # A client cannot know it, so it stands nowhere else.
        mark = secrets.token_hex(16)
        rendered = _rendered(messages, [DATA_URL + mark] * len(bodies), job)
        return Delivered(rendered, tuple(bodies), mark.encode(), room)

    async def _read(self, store: Store, keys: Sequence[str]) -> list[bytes]:
        turns = asyncio.Semaphore(READS_AT_ONCE)

        async def one(key: str) -> bytes:
            async with turns:
                return await store.get(key)

        reads = [asyncio.ensure_future(one(key)) for key in keys]
        try:
            return await asyncio.gather(*reads)
        finally:
            for read in reads:
                read.cancel()

    async def _undo(self, job: Assignment) -> None:
        if job.position == START:  # a decoy: there is nothing to give back
            return
        try:
            await give_back(self._log, job.request_id, job.generation_id)
        except RedisUnavailable:
            self._log.later(
                persist(lambda: give_back(self._log, job.request_id, job.generation_id))
            )
            raise

    async def _end(self, job: Assignment, missing: str) -> None:
        """End a request that lost an image, as one that lost its content. Of one that came to its
        end meanwhile nothing is lost: its objects are deleted."""
        if job.position == START:
            return
        log = self._log
        state = await log.read("HGET", log.keys.request(job.request_id), "state")
        if state == b"open":
            logger.error("object_missing", request_id=job.request_id, key=missing)
            await log.read("DEL", log.keys.content(job.request_id))
            await expire(log, self._limits, job.request_id)

    async def _ask(self, store: Store) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await store.holds(PROBED)
            self._doubted = False
        except (ChatImageStorageUnavailable, TimeoutError):
            pass  # the next one who wants it asks again, once the store is not known to be away
        finally:
            self._asking = None


def _rendered(messages: list[Message], urls: Sequence[str], job: Assignment) -> msgspec.Raw:
    return payload.rendered(payload.messages(images.with_urls(messages, urls)), job.payload)
