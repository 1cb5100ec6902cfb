"""Posting what a job generated so far, beside its generation, one post at a time."""

from __future__ import annotations

import asyncio

from worker.backends import Delta
from worker.client import Client, Job, Posted


class Progress:
    """Gathers deltas of one job and posts them in order."""

    def __init__(self, client: Client, job: Job, seconds: float) -> None:
        self._client = client
        self._job = job
        self._seconds = seconds
        self._pending = Delta()
        self._wake = asyncio.Event()
        self._complete = False

    def add(self, delta: Delta) -> None:
        """Take in what was generated."""
        pending = self._pending
        self._pending = Delta(pending.content + delta.content, pending.reasoning + delta.reasoning)
        self._wake.set()

    def complete(self) -> None:
        """Say that nothing more comes: `run` posts what is left and returns."""
        self._complete = True
        self._wake.set()

    async def run(self) -> Posted:
        """Post until nothing more comes, or an answer ends it; say what that answer asks for."""
        loop = asyncio.get_running_loop()
        seq, due = 1, loop.time()
        while True:
            await self._wake.wait()
            await self._until(due)
            self._wake.clear()
            delta, self._pending = self._pending, Delta()
            if delta == Delta():
                return Posted.ACCEPTED
            due = loop.time() + self._seconds
            outcome = await self._client.post(self._job, seq, delta)
            if outcome is not Posted.ACCEPTED:
                return outcome
            seq += 1
            if self._complete:
                self._wake.set()

    async def _until(self, due: float) -> None:
        """Wait until the next post is due; what is generated meanwhile goes with it."""
        loop = asyncio.get_running_loop()
        while not self._complete and (left := due - loop.time()) > 0:
            await asyncio.sleep(min(left, 0.05))
