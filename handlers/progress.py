"""A worker posts what it generated so far (spec, Streaming progress)."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from events import codec
from events.types import Progressed
from handlers.accounts import Account
from handlers.errors import (
    ChatJobAborted,
    ChatProgressCapReached,
    ChatProgressNotStreaming,
    ChatProgressOutOfSequence,
    ChatProgressUnavailable,
    OutOfMemory,
    RedisUnavailable,
    WrongCredentials,
)
from handlers.limits import Limits
from handlers.log import Log, Refusal

logger = structlog.get_logger()


class Accepted(NamedTuple):
    """The post stands in the stream, or stood there before."""

    seq: int
    cancelled: bool


async def progress(
    log: Log,
    limits: Limits,
    account: Account,
    generation_id: str,
    seq: int,
    content: str,
    reasoning: str,
) -> Accepted:
    """Append one delta and renew the lease; a repeat of the last delta is answered and changes
    nothing.

    Raise the errors of the spec's table; ChatProgressUnavailable where Redis does not answer.
    """
    keys = log.keys
    try:
        request = await log.read("HGET", keys.lease(generation_id), "request")
        if request is None:
            raise await _without_lease(log, generation_id)
        request_id = request.decode()
        partition = keys.of(generation_id)
        accepted, cancelled, renewal = await log.run(
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
                "key": account.progress_key,
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
    except (RedisUnavailable, OutOfMemory) as error:
        raise ChatProgressUnavailable from error
    except Refusal as refusal:
        raise await _refused(log, generation_id, refusal) from refusal
    logger.debug("progress", generation_id=generation_id, seq=seq, renewal=renewal.decode())
    return Accepted(int(accepted), cancelled == b"1")


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
    return ChatProgressNotStreaming() if state in (b"pending", b"finished") else ChatJobAborted()
