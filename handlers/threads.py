"""A few threads for calls that block, for a service that may hang.

Unlike an executor's, its threads do not hold up the end of the process, and only so many calls wait
for one: beyond that the next is told so at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Busy(Exception):
    """Too many calls wait already, or none is taken any more."""


class _Call(NamedTuple):
    future: Future[Any]
    work: Callable[[], Any]


class Threads:
    """Runs calls, so many at once.

    count    threads, each started when it is needed first
    waiting  calls that may wait for one
    """

    def __init__(self, count: int, *, waiting: int, name: str) -> None:
        self._count = count
        self._most = waiting
        self._name = name
        self._calls: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._started = self._busy = 0
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """The result of a call; raise Busy. A caller that is cancelled takes its call back, where
        none began it."""
        call = _Call(Future(), work)
        with self._changed:
            if self._closed or self._busy + len(self._calls) >= self._count + self._most:
                raise Busy
            self._calls.append(call)
            if self._started < min(self._count, self._busy + len(self._calls)):
                self._start()
            self._changed.notify()
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            with self._changed:
                if call in self._calls:  # or it would keep what it was to send
                    self._calls.remove(call)
            raise

    def close(self) -> None:
        """Let its threads end, each after what it is at. What waits raises Busy."""
        with self._changed:
            self._closed = True
            waiting, self._calls = list(self._calls), deque()
            self._changed.notify_all()
        for call in waiting:
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(Busy())

    def _start(self) -> None:
        self._started += 1
        name = f"{self._name}-{self._started}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while self._one():
            pass

    def _one(self) -> bool:
        """Do a call, in a frame of its own: a thread that waits for the next holds nothing of the
        last. False: no more will come."""
        call = self._next()
        if call is None:
            return False
        try:
            if call.future.set_running_or_notify_cancel():
                call.future.set_result(call.work())
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            call.future.set_exception(error)
        finally:
            with self._changed:
                self._busy -= 1
        return True

    def _next(self) -> _Call | None:
        with self._changed:
            while not self._calls:
                if self._closed:
                    return None
                self._changed.wait()
            self._busy += 1
            return self._calls.popleft()
