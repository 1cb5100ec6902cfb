"""A log of which the next page is read while its reader writes the last one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from archive.archive import Archive
from events.base import Position, Recorded
from events.keys import Keys
from projections.log import Log, Wanted
from projections.node import Client, Nodes

PAGE = 2000
"""Events in a batch of who is far behind: the more of them, the more changes of one row are one."""


class _Asked(NamedTuple):
    after: Position
    most: int
    wanted: Wanted


class Ahead(Log):
    """A log as who folds all of it reads it: a page after the other, each waited for no longer than
    it takes beyond the work on the one before."""

    def __init__(
        self,
        client: Client,
        beside: Client,
        keys: Keys,
        partition: int,
        archive: Archive | None,
        thread: ThreadPoolExecutor,
    ) -> None:
        """`beside` is a client that only the `thread`, of one, uses."""
        super().__init__(client, keys, partition, archive)
        self._beside = Log(beside, keys, partition, archive)
        self._thread = thread
        self._next: tuple[_Asked, Future[list[Recorded]]] | None = None

    def read(
        self,
        after: Position,
        *,
        count: int,
        block_ms: int | None = None,
        wanted: Wanted = None,
    ) -> list[Recorded]:
        """As `Log.read`."""
        asked = _Asked(after, count, wanted)
        foreseen, self._next = self._next, None
        page = foreseen[1].result() if foreseen and foreseen[0] == asked else []
        if not page:  # or the log may have ended there when that was read, and does no longer
            page = self._beside_read(asked, block_ms).result()
        if page:
            coming = asked._replace(after=page[-1].position)
            self._next = (coming, self._beside_read(coming))
        return page

    def _beside_read(self, asked: _Asked, block_ms: int | None = None) -> Future[list[Recorded]]:
        return self._thread.submit(
            self._beside.read,
            asked.after,
            count=asked.most,
            block_ms=block_ms,
            wanted=asked.wanted,
        )


@contextmanager
def connect(nodes: Nodes, keys: Keys, partition: int, archive: Archive | None) -> Iterator[Ahead]:
    """A partition's log, with two connections and a thread of its own."""
    stream = keys.events(partition)
    with (
        nodes.connect(stream) as client,
        nodes.connect(stream) as beside,
        ThreadPoolExecutor(1, "reads ahead") as thread,
    ):
        yield Ahead(client, beside, keys, partition, archive, thread)
