"""The archive of a deployment's logs: adding segments, and reading them as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from archive.bucket import ArchiveMissing, ArchiveUnavailable, Bucket
from archive.segments import Damaged, Raw, Segment, closed, opened, padded, prefix
from events.base import START, Position

_HOUR_MS = 3_600_000
_STEPS_MS = (_HOUR_MS, 24 * _HOUR_MS, 30 * 24 * _HOUR_MS, 2**63)
"""How far back names are listed to find the one in front of a position: nothing lists backwards."""


class WrongArchive(Exception):
    """This archive is of a deployment with another number of partitions."""


class HistoryLost(Exception):
    """What comes next is neither in the log nor in the archive.

    It was trimmed by hand, say, or Redis lost its log.
    """


class Gap(HistoryLost):
    """Events are missing in the archive."""


class Archive:
    """What is archived of each partition's log.

    Calls block. Raise ArchiveUnavailable, and Damaged or Gap for what cannot be read as one log.
    """

    def __init__(self, bucket: Bucket, partitions: int) -> None:
        self.bucket = bucket
        self.partitions = partitions

    def check(self) -> None:
        """Raise WrongArchive where the bucket holds logs of another number of partitions."""
        for folder in self.bucket.folders("log/"):
            if folder == str(self.partitions):
                continue
            found = map(Segment.parse, self.bucket.names(f"log/{folder}/"))
            if any(each is not None for each in found):  # else it is somebody else's
                raise WrongArchive(
                    f"The archive holds logs of {folder} partitions, HORDE_PARTITIONS says "
                    f"{self.partitions}"
                )

    def listed(self, partition: int, since: Position = START) -> Iterator[Segment]:
        """Every segment whose last event stands at `since` or behind it, in order of their last
        events, whether they make one log or not."""
        folder = prefix(self.partitions, partition)
        for key in self.bucket.names(folder, f"{folder}{padded(since)}"):
            segment = Segment.parse(key)
            if segment is not None:
                yield segment

    def segments(self, partition: int, after: Position = START) -> Iterator[Segment]:
        """The segments that together hold each event behind `after`, one behind the other.

        Where two overlap the later one is whole: its first events were told already. Raise Gap
        where an event may be missing, also between `after` and the first of them.
        """
        return (each for each in self._chain(partition, after) if each.last > after)

    def before(self, partition: int, position: Position) -> Position:
        """An event in front of `position`, to read on behind it: the last one of the last segment
        that ends there, or where none is left, the first of all. START where there is none."""
        for back in _STEPS_MS:
            since = Position(max(0, position.ms - back), 0)
            found = START
            for segment in self.listed(partition, since):
                if segment.last >= position:
                    if found == START and since == START and segment.first < position:
                        found = segment.first
                    break
                found = segment.last
            if found != START or since == START:
                break
        return found

    def end(self, partition: int, after: Position = START) -> Segment | None:
        """The last segment of the log that goes on at `after`, or ends there; None where there is
        none."""
        last = None
        for last in self._chain(partition, after):  # noqa: B007 - the last one is wanted
            pass
        return last

    def holds(self, partition: int, position: Position) -> bool:
        """Whether this very event is archived."""
        for segment in self.listed(partition, position):
            if position in (segment.first, segment.last):
                return True
            if position < segment.first:
                continue  # what it lies within, if anything, ends later
            with suppress(ArchiveMissing):  # another holds the same
                entries = opened(segment, self.bucket.get(segment.key))
                return any(each.position == position for each in entries)
        return False

    def read(self, partition: int, after: Position = START) -> Iterator[list[Raw]]:
        """The events behind `after`, segment by segment, each once. Nothing where the archive ends
        at `after` or in front of it."""
        reached, vanished = after, ""
        while True:
            try:
                for segment in self.segments(partition, reached):
                    entries = opened(segment, self.bucket.get(segment.key))
                    if segment.first <= reached:
                        entries = [each for each in entries if each.position > reached]
                    if entries:
                        reached = entries[-1].position
                        yield entries
                    del entries  # or it would be held while the next one is opened
            except ArchiveMissing as error:
                # One that was not needed was taken away behind the listing; another holds the same.
                if str(error) == vanished:
                    raise Damaged(f"{error} is listed, and is not there") from error
                vanished = str(error)
            else:
                return

    def _chain(self, partition: int, after: Position) -> Iterator[Segment]:
        wanted = 1 if after == START else None
        apart: Segment | None = None
        for segment in self.listed(partition, after):
            if segment.first > after if wanted is None else segment.number > wanted:
                # Of a second archiver, maybe: what it lies within ends later, and is listed later.
                apart = apart or segment
            elif wanted is None or segment.beyond > wanted:
                yield segment
                wanted, apart = segment.beyond, None
        if apart is not None:
            what = f"what holds {after}" if wanted is None else f"event {wanted}"
            raise Gap(f"{what} is not there, in front of {apart.key}")

    def add(self, partition: int, number: int, entries: Sequence[Raw]) -> Segment:
        """Store a segment and read it back; the first one makes the bucket. Raise Damaged where
        the store has something else.

        number  of its first event
        """
        segment, body = closed(self.partitions, partition, number, entries)
        self.bucket.put(segment.key, body, first=number == 1)
        if self.bucket.get(segment.key) != body:
            raise Damaged(f"{segment.key} is not what was stored")
        return segment


__all__ = ["Archive", "ArchiveUnavailable", "Damaged", "Gap", "HistoryLost", "WrongArchive"]
