"""Jobs that are none, for paused workers (text_path_reference.md 5.6).

A paused worker is not told that it is. It gets the payload of a request that goes on waiting, and
its posts and its submit are answered as those of a real job, whose lease runs out, and whose
request may be cancelled or expire; nothing is stored, counted or told to anybody. Decoys are no
history: they live in keys with a TTL, and no event knows them.
"""

from __future__ import annotations

from collections import OrderedDict

from events.base import START
from events.types import Declaration
from handlers.chat.transport import transports
from handlers.errors import RedisUnavailable
from handlers.limits import Limits
from handlers.log import Log, Refusal
from handlers.pop import Assignment, Worker

WORKERS_KEPT = 1000
REQUESTS_KEPT = 10_000
"""Of one worker; beyond that the script alone knows."""
MOST = 200
"""Decoys of one request: they end with it, in one script."""


class Decoys:
    """Hands out decoys. Remembers who had one of what, so that nobody is offered it again."""

    def __init__(self, log: Log, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self._had: OrderedDict[str, set[str]] = OrderedDict()

    def had_by(self, worker_id: str) -> set[str]:
        """The requests that the worker had a decoy of, as far as this process knows; it grows."""
        had = self._had.setdefault(worker_id, set())
        self._had.move_to_end(worker_id)
        if len(self._had) > WORKERS_KEPT:
            self._had.popitem(last=False)
        return had

    async def give(
        self,
        worker: Worker,
        declaration: Declaration,
        request_id: str,
        model: str,
        *,
        validated: bool = False,
    ) -> Assignment | None:
        """Hand the worker a decoy of the request; None where it had one, or nothing waits.

        Raise RedisUnavailable.
        """
        log, limits = self._log, self._limits
        keys, partition = log.keys, log.keys.of(request_id)
        generation_id = keys.new_id_beside(request_id)
        had = self.had_by(worker.id)
        if len(had) >= REQUESTS_KEPT:
            had.clear()
        had.add(request_id)
        try:
            stream, transport = await log.run(
                "decoy",
                partition,
                {
                    "request": keys.request(request_id),
                    "decoy": keys.decoy(generation_id),
                    "tricked": keys.tricked(request_id),
                    "lease": keys.lease(generation_id),
                },
                {
                    "request_id": request_id,
                    "worker_id": worker.id,
                    "owner_id": worker.owner.id,
                    "model": model,
                    "job_ttl": limits.text_job_lease,
                    "lease_cap": limits.lease_cap_of(worker.owner),
                    "key": worker.owner.progress_key,
                    "trusted": int(worker.owner.trusted),
                    "bytes_per_token": limits.progress_bytes_per_token,
                    "grace": limits.progress_lease_grace,
                    "kept": limits.content_ttl,
                    "generation_id": generation_id,
                    "most": MOST,
                    "validated": int(validated),
                    **transports(declaration),
                },
            )
        except RedisUnavailable:
            had.discard(request_id)
            raise
        except Refusal:
            return None
        messages, payload = await log.read("HMGET", keys.content(request_id), "messages", "payload")
        if messages is None or payload is None:
            return None
        return Assignment(
            request_id,
            generation_id,
            model,
            limits.text_job_lease,
            stream == b"1",
            bytes(messages),
            bytes(payload),
            START,
            transport.decode(),
        )


async def end_decoy(log: Log, generation_id: str, state: str) -> None:
    """The worker submitted it (`finished`) or gave it up (`faulted`).

    Raise the Refusal of the script.
    """
    keys = log.keys
    await log.run(
        "end_decoy",
        keys.of(generation_id),
        {"decoy": keys.decoy(generation_id), "lease": keys.lease(generation_id)},
        {"state": state},
    )
