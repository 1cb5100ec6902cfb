"""The queue of one moment: where a request stands in it, and how much comes before its turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

from projections.database import Database
from projections.rules import ANY_MODEL
from projections.servers import Reach

_KEPT = 16
"""Sums over the queue that are kept: one for each set of workers that was asked with."""


class Waiting(NamedTuple):
    """One request of the queue."""

    request_id: str
    chat: bool
    models: tuple[str, ...]
    rank: int
    jobs: int  # that wait
    max_length: int
    max_context_length: int
    features: frozenset[str]
    images: bool

    @property
    def needs(self) -> tuple[bool, tuple[str, ...], int, int, frozenset[str], bool]:
        """All that decides which workers could take it, of what is looked at here."""
        return (
            self.chat,
            self.models,
            self.max_length,
            self.max_context_length,
            self.features,
            self.images,
        )


class Ahead(NamedTuple):
    """What is to be worked off before a request's turn comes."""

    tokens: int
    jobs: int


class QueueSnapshot:
    """The queue of one moment, in rank order."""

    def __init__(self, waiting: Iterable[Waiting] = ()) -> None:
        self.waiting = tuple(waiting)
        self._index = {request.request_id: i for i, request in enumerate(self.waiting)}
        self._sums: OrderedDict[frozenset[Reach], tuple[list[int], list[int]]] = OrderedDict()

    def position(self, request_id: str) -> int:
        """1 for the first in the queue, and so on; 0 where nothing of it waits."""
        return self._index.get(request_id, -1) + 1

    def ahead(self, request_id: str, reaches: frozenset[Reach]) -> Ahead:
        """All jobs before this request that compete for workers with these reaches.

        A request competes where one of those workers could take it: by its models, its chat
        declaration and its length limits (spec, Free output allowance). What a chat request needs
        of features counts as well: one that none of them can serve lengthens nobody's wait.
        """
        index = self._index.get(request_id, 0)
        if not index:
            return Ahead(0, 0)
        tokens, jobs = self._summed(reaches)
        return Ahead(tokens[index - 1], jobs[index - 1])

    def competing(self, reaches: frozenset[Reach], but: str | None = None) -> Ahead:
        """All jobs of the queue that compete for workers with these reaches, but for those of one
        request."""
        if not self.waiting:
            return Ahead(0, 0)
        tokens, jobs = self._summed(reaches)
        index = None if but is None else self._index.get(but)
        if index is None:
            return Ahead(tokens[-1], jobs[-1])
        before = Ahead(tokens[index - 1], jobs[index - 1]) if index else Ahead(0, 0)
        return Ahead(
            tokens[-1] - tokens[index] + before.tokens, jobs[-1] - jobs[index] + before.jobs
        )

    def _summed(self, reaches: frozenset[Reach]) -> tuple[list[int], list[int]]:
        """Of tokens and of jobs, up to each place."""
        sums = self._sums.get(reaches)
        if sums is None:
            known: dict[Any, bool] = {}
            compete = []
            for each in self.waiting:
                needs = each.needs
                verdict = known.get(needs)
                if verdict is None:
                    verdict = known[needs] = any(_reached(each, reach) for reach in reaches)
                compete.append(each.jobs if verdict else 0)
            tokens = (
                jobs * each.max_length for jobs, each in zip(compete, self.waiting, strict=True)
            )
            sums = self._sums[reaches] = (list(accumulate(tokens)), list(accumulate(compete)))
            if len(self._sums) > _KEPT:
                self._sums.popitem(last=False)
        return sums


def _reached(waiting: Waiting, reach: Reach) -> bool:
    if waiting.chat:
        return (
            reach.chat_model in waiting.models
            and waiting.features <= reach.chat_features
            and (reach.receives_images or not waiting.images)
            and waiting.max_length <= reach.chat_max_length
            and waiting.max_context_length <= reach.chat_max_context_length
        )
    return (
        bool(reach.models)
        and not {ANY_MODEL, *reach.models}.isdisjoint(waiting.models)
        and waiting.max_length <= reach.max_length
        and waiting.max_context_length <= reach.max_context_length
    )


_SNAPSHOT = b"""
SELECT request_id::text, chat, array_agg(model ORDER BY model), rank, waiting, max_length,
    max_context_length, features, images
FROM queue WHERE waiting > 0 AND expires_ms > %(now_ms)s
GROUP BY request_id, chat, rank, waiting, max_length, max_context_length, features, images
ORDER BY rank DESC, request_id DESC
"""


async def queue_snapshot(database: Database, *, now_ms: int) -> QueueSnapshot:
    """The whole queue: for once a second in each process, not for once a call.

    Raise DatabaseUnavailable.
    """
    rows = await database.fetch(_SNAPSHOT, {"now_ms": now_ms})
    return QueueSnapshot(
        Waiting(
            request_id,
            chat,
            tuple(models),
            rank,
            jobs,
            max_length,
            max_context_length,
            frozenset(features),
            images,
        )
        for (
            request_id,
            chat,
            models,
            rank,
            jobs,
            max_length,
            max_context_length,
            features,
            images,
        ) in rows
    )
