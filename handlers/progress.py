"""A worker posts what it generated so far (spec, Streaming progress)."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import structlog

from events import codec
from events.types import Progressed
from handlers import metrics
from handlers.errors import (
    ChatJobAborted,
    ChatProgressCapReached,
    ChatProgressNotStreaming,
    ChatProgressOutOfSequence,
    ChatProgressUnavailable,
    Unserved,
    WrongCredentials,
)
from handlers.limits import Limits
from handlers.log import Log, Refusal

logger = structlog.get_logger()

REQUESTS_KEPT = 20_000


class Accepted(NamedTuple):
    """The post stands in the stream, or stood there before."""

    seq: int
    cancelled: bool


class Posts:
    """Takes in posts. Remembers which request a generation belongs to: that never changes."""

    def __init__(self, log: Log, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self._requests: OrderedDict[str, str] = OrderedDict()

    async def progress(
        self, key: str, generation_id: str, seq: int, content: str, reasoning: str
    ) -> Accepted:
        """Append one delta and renew the lease; a repeat of the last delta is answered and changes
        nothing.

        key  what a lease would keep of the caller's API key: nothing else tells who may post

        Raise the errors of the spec's table; ChatProgressUnavailable where nothing can be stored.
        """
        try:
            return await self._post(key, generation_id, seq, content, reasoning)
        except Unserved as error:
            raise ChatProgressUnavailable from error

    async def _post(
        self, key: str, generation_id: str, seq: int, content: str, reasoning: str
    ) -> Accepted:
        keys, limits = self._log.keys, self._limits
        request_id = await self._request_of(generation_id)
        if request_id is None:
            raise await _without_lease(self._log, generation_id)
        partition = keys.of(generation_id)
        try:
            accepted, cancelled, renewal, trusted = await self._log.run(
                "progress",
                partition,
                {
                    "lease": keys.lease(generation_id),
                    "stream": keys.stream(request_id),
                    "generation": keys.generation(generation_id),
                    "due_lease": keys.due(partition, "lease"),
                },
                {
                    "generation_id": generation_id,
                    "key": key,
                    "seq": seq,
                    "content": content,
                    "reasoning": reasoning,
                    "characters": len(content),
                    "most": limits.progress_entries,
                    "stream_ttl": limits.progress_stream_ttl,
                    "stream_most": limits.progress_stream_entries,
                    "base": limits.text_job_lease,
                    "grace": limits.progress_lease_grace,
                    "slack": limits.progress_slack,
                    "event": codec.encode(
                        Progressed(request_id=request_id, generation_id=generation_id)
                    ),
                },
            )
        except Refusal as refusal:
            raise await _refused(self._log, generation_id, refusal) from refusal
        outcome = renewal.decode()
        if outcome in ("granted", "at_cap"):
            metrics.lease_renewal(outcome, trusted=trusted == b"1")
        logger.debug("progress", generation_id=generation_id, seq=seq, renewal=outcome)
        return Accepted(int(accepted), cancelled == b"1")

    async def _request_of(self, generation_id: str) -> str | None:
        """The request of a generation that streams; None without a lease."""
        known = self._requests.get(generation_id)
        if known is not None:
            return known
        request = await self._log.read("HGET", self._log.keys.lease(generation_id), "request")
        if request is None:
            return None
        known = str(request.decode())
        self._requests[generation_id] = known
        if len(self._requests) > REQUESTS_KEPT:
            self._requests.popitem(last=False)
        return known


async def _refused(log: Log, generation_id: str, refusal: Refusal) -> Exception:
    match refusal.word:
        case "NO_LEASE":
            return await _without_lease(log, generation_id)
        case "WRONG_CREDENTIALS":
            return WrongCredentials()
        case "OUT_OF_SEQUENCE":
            return ChatProgressOutOfSequence(expected_seq=int(refusal.details[0]))
        case _:
            return ChatProgressCapReached()


async def _without_lease(log: Log, generation_id: str) -> Exception:
    """Why there is no lease: the job ended, or it does not stream (any more)."""
    state = await log.read("HGET", log.keys.generation(generation_id), "state")
    if state is None:
        state, stream = await log.read("HMGET", log.keys.decoy(generation_id), "state", "stream")
        if state == b"pending" and stream == b"1":  # nobody writes down that its lease ran out
            state = b"faulted"
    return ChatProgressNotStreaming() if state in (b"pending", b"finished") else ChatJobAborted()
