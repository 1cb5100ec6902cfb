"""A log that is cut, as the archiver would: into closed segments and what is left of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from archive.archive import Archive
from archive.segments import Raw
from events.base import START, Position
from events.keys import Keys


class Cut:
    """One partition's stream and its archive."""

    def __init__(
        self, client: redis.Redis, keys: Keys, archive: Archive, partition: int = 0
    ) -> None:
        self._client: Any = client
        self._key = keys.events(partition)
        self._partition = partition
        self.archive = archive

    def stream(self, after: Position = START) -> list[Raw]:
        """What the stream holds behind a position."""
        return [
            Raw(id_, [each for pair in fields.items() for each in pair])
            for id_, fields in self._client.xrange(self._key, f"({after}")
        ]

    def put_away(self, *sizes: int) -> Position:
        """Archive what comes next, in segments of so many events, as far as there are; return the
        archive's end."""
        end = self.archive.end(self._partition)
        last, number = (end.last, end.beyond) if end else (START, 1)
        entries = self.stream(last)
        for size in sizes:
            part, entries = entries[:size], entries[size:]
            if part:
                self.archive.add(self._partition, number, part)
                number, last = number + len(part), part[-1].position
        return last

    def trim(self, floor: Position) -> None:
        """Take off what stands in front of `floor`."""
        self._client.xtrim(self._key, minid=str(floor), approximate=False)


def cut(story_cut: Cut, sizes: Sequence[int]) -> Position:
    """Archive segments of these sizes and trim to where they end."""
    end = story_cut.put_away(*sizes)
    story_cut.trim(end)
    return end
