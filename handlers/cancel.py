"""Ending a request: the client's cancel, and its expiry.

Both name the generations that they read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import structlog

from events import codec
from events.base import Position
from events.keys import Keys
from events.types import Cancelled, Expired
from handlers.chat import pricing
from handlers.chat.pricing import Tariff, Terms
from handlers.errors import RedisUnavailable, RequestNotFound
from handlers.limits import Limits
from handlers.log import Log, Refusal

logger = structlog.get_logger()

TRIES = 8
"""How often the set of generations may change between the read and the script."""


class Ended(NamedTuple):
    """A request that was cancelled, now or before."""

    position: Position
    done: bool
    changed: bool


def tell_dropped(request_id: str, dropped: bytes) -> None:
    """Say which objects stay in the store, for want of room among those to be deleted."""
    if dropped:
        keys = dropped.decode().split(",")
        logger.error("object_deletes_dropped", request_id=request_id, keys=keys)


class _Jobs(NamedTuple):
    """What of a request is or was in the hands of workers."""

    generations: tuple[str, ...]
    decoys: tuple[str, ...]
    """Of paused workers (handlers/decoy.py)."""

    def beside(self, keys: Keys) -> list[str]:
        """The keys of each job, then those of each decoy, in turn."""
        pairs: list[str] = []
        for each in self.generations:
            pairs += (keys.generation(each), keys.lease(each))
        for each in self.decoys:
            pairs += (keys.decoy(each), keys.lease(each))
        return pairs


async def _jobs(log: Log, request_id: str) -> _Jobs:
    known, decoys = await asyncio.gather(
        log.read("HGET", log.keys.request(request_id), "generations"),
        log.read("HVALS", log.keys.tricked(request_id)),
    )
    if known is None:
        raise RequestNotFound
    text: str = known.decode()
    return _Jobs(tuple(text.split(",")) if text else (), tuple(decoy.decode() for decoy in decoys))


class _Owed(TypedDict, total=False):
    workers: tuple[str, ...]
    owners: tuple[int, ...]
    trusted: tuple[int, ...]
    rates: tuple[str, ...]
    believable: tuple[int, ...]
    burn: int


async def _owed(log: Log, tariff: Tariff, generations: Sequence[str]) -> _Owed:
    """To whom the output of these jobs is owed, and at which rate. Nothing that is read here ever
    changes."""
    if not generations:
        return {}
    found = await asyncio.gather(
        *(
            log.read(
                "HMGET",
                log.keys.generation(generation_id),
                "worker",
                "owner",
                "trusted",
                "model",
                "prompt_tokens",
                "targeted",
                "validated",
            )
            for generation_id in generations
        )
    )
    # Of an id that was given back before it was a job, or is gone by now, nothing is owed.
    told = [[(each or b"0").decode() for each in fields] for fields in found]
    rates = [
        tariff.rate(
            Terms(model, int(prompt_tokens), targeted == "1", validated == "1", trusted == "1")
        )
        for _, _, trusted, model, prompt_tokens, targeted, validated in told
    ]
    return {
        "workers": tuple(worker for worker, *_ in told),
        "owners": tuple(int(owner) for _, owner, *_ in told),
        "trusted": tuple(int(trusted) for _, _, trusted, *_ in told),
        "rates": tuple(map(str, rates)),
        "believable": tuple(
            tariff.believable(model, trusted=trusted == "1") for _, _, trusted, model, *_ in told
        ),
        "burn": pricing.BURN,
    }


async def cancel(
    log: Log, limits: Limits, tariff: Tariff | None, request_id: str, cause: str = "client"
) -> Ended:
    """Hand out no more jobs of the request.

    A client's cancel ends in-flight jobs of a streamed request too, and what they posted is paid by
    the tariff; with the cause `maintenance` they go on (so no tariff is asked), and a request of
    which nothing waits is left alone. Raise RequestNotFound. Repeating it changes nothing (spec,
    Structured submit; Streaming progress; Pricing; Completion signal).
    """
    partition = log.keys.of(request_id)
    for _ in range(TRIES):
        jobs = await _jobs(log, request_id)
        owed = await _owed(log, tariff, jobs.generations) if tariff else {}
        event = Cancelled(request_id=request_id, generations=jobs.generations, cause=cause, **owed)
        try:
            position, _, done, changed = await log.run(
                "cancel",
                partition,
                {
                    "request": log.keys.request(request_id),
                    "stream": log.keys.stream(request_id),
                    "due_lease": log.keys.due(partition, "lease"),
                    "generations": jobs.beside(log.keys),
                },
                {
                    "generations": ",".join(jobs.generations),
                    "stream_ttl": limits.progress_stream_ttl,
                    "cause": cause,
                    "event": codec.encode(event),
                },
            )
        except Refusal as refusal:
            if refusal.word == "STALE":
                continue
            raise RequestNotFound from refusal
        if changed == b"1":
            logger.info("cancelled", request_id=request_id, position=position.decode(), cause=cause)
        return Ended(Position.parse(position), done == b"1", changed == b"1")
    raise RedisUnavailable("The request changes too fast to be cancelled. Try again.")


async def expire(log: Log, limits: Limits, request_id: str) -> bool:
    """End and forget a request that is due, or that cannot be served any more; false where it is
    neither."""
    partition = log.keys.of(request_id)
    for _ in range(TRIES):
        try:
            jobs = await _jobs(log, request_id)
        except RequestNotFound:
            return False
        try:
            position, _, dropped = await log.run(
                "expire",
                partition,
                {
                    "request": log.keys.request(request_id),
                    "content": log.keys.content(request_id),
                    "due_lease": log.keys.due(partition, "lease"),
                    "due_request": log.keys.due(partition, "request"),
                    "delete_retry": log.keys.delete_retry(partition),
                    "generations": jobs.beside(log.keys),
                },
                {
                    "generations": ",".join(jobs.generations),
                    "most": limits.generations,
                    "reason_ttl": limits.fault_reason_ttl,
                    "most_deletes": limits.delete_retries,
                    "request_id": request_id,
                    "event": codec.encode(
                        Expired(request_id=request_id, generations=jobs.generations)
                    ),
                },
            )
        except Refusal as refusal:
            if refusal.word == "STALE":
                continue
            return False
        logger.info("expired", request_id=request_id, position=position.decode())
        tell_dropped(request_id, dropped)
        return True
    return False
