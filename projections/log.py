"""One partition's log as its readers see it, on one server or a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import redis
from redis.exceptions import RedisError

from archive.archive import Archive, Gap, HistoryLost
from archive.segments import Raw
from events import codec
from events.base import PASSED, START, Event, Position, Recorded
from events.keys import Keys
from projections.node import Client, Nodes

Entry = tuple[bytes, Mapping[bytes, bytes] | Sequence[bytes]]
"""A position and its fields, as a client gives them."""

Wanted = Collection[type[Event]] | None
"""Types of events that are asked for: PASSED stands for the others. None: all."""

AWAY = (RedisError, OSError)
"""What a client raises while Redis is away, hangs, loads its data or moves a slot."""


def connect(
    redis_url: str, key: str | None = None, *, block_s: float = 0.0
) -> contextlib.AbstractContextManager[Client]:
    """A client of the server that `redis_url` names, or of the node of its cluster that serves
    `key`, whose reads may block so long.

    It retries nothing: its user backs off and connects anew.
    """
    return Nodes(redis_url).connect(key, block_s=block_s)


class TailLost(Exception):
    """The log does not hold the event that its reader stands at, nor does the archive: Redis lost
    it."""


class Log:
    """The events of one partition, in order: the archive's where the stream was trimmed, then the
    stream's.

    Whatever reads may raise what a client raises, ArchiveUnavailable where the archive is needed,
    and the stops: HistoryLost, Damaged.
    """

    def __init__(
        self, client: Client, keys: Keys, partition: int, archive: Archive | None = None
    ) -> None:
        self.partition = partition
        self._client = client
        self._keys = keys
        self._key = keys.events(partition)
        self._archive = archive
        self._archived = _Archived(archive, partition)

    def read(
        self,
        after: Position,
        *,
        count: int,
        block_ms: int | None = None,
        wanted: Wanted = None,
    ) -> list[Recorded]:
        """The next events behind `after`, an event of this log or START; with `block_ms`, wait so
        long for the first.

        Raise UnknownType; TailLost, where `holds` is no longer true.
        """
        while True:
            if archived := self._archived.next(after, count):
                return self._decode(archived, wanted)
            entries, whole = self._streamed(after, count, block_ms)
            if whole:
                return self._decode(entries, wanted)
            if not self.holds(after):
                raise TailLost(f"{self._key} does not hold {after}")
            self._archived.begin(after)

    def between(
        self, after: Position, until: Position, *, count: int, wanted: Wanted = None
    ) -> list[Recorded]:
        """Events past `after`, up to and with `until`, as far as they are to be had; `after` may be
        one that this log lost."""
        first: Any = self._client.xrange(self._key, count=1)
        if self._trimmed() and (not first or Position.parse(first[0][0]) > after):
            archived = _Archived(self._archive, self.partition)
            with contextlib.suppress(Gap):
                archived.begin(after)
                found = [each for each in archived.next(after, count) if each.position <= until]
                if found:
                    return self._decode(found, wanted)
        answer: Any = self._client.xrange(self._key, f"({after}", str(until), count=count)
        return self._decode(answer, wanted)

    def head(self) -> Position:
        """The position of the last event."""
        answer: Any = self._client.xrevrange(self._key, count=1)
        return Position.parse(answer[0][0]) if answer else START

    def written(self) -> int:
        """How many events this log ever had."""
        return self._counts()[0]

    def holds(self, position: Position) -> bool:
        """Whether a reader that stands at `position` can go on from there.

        False where the log lost its tail (a Redis that came back without its last second, or
        empty): that event is nowhere, but all that is left can be read from the beginning and
        folded anew. Raise HistoryLost where what is left has a hole: events that were trimmed and
        not archived, or an archive of which the stream holds no end (Redis lost its log: what the
        rows tell is known nowhere else).
        """
        if position != START and self._in_stream(position):
            return True
        if self._joined(position):
            return True
        if position != START and self._joined(START):
            # Unless it was joined just now: `rebuild state` brings back what Redis lost.
            return self._in_stream(position) or self._joined(position)
        raise HistoryLost(f"neither {self._key} nor the archive goes on at {position}")

    def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Send pub/sub messages, in order.

        Every node of a cluster passes them on to all subscribers.
        """
        self._send([("PUBLISH", channel, message) for channel, message in messages])

    def fault_reasons(self, request_ids: Sequence[str]) -> list[str | None]:
        """What was told of the last refused reply to each of these requests; None where that is
        gone."""
        reasons: list[Any] = [
            self._client.hget(self._keys.content(id_), "fault_reason") for id_ in request_ids
        ]
        return [None if reason is None else reason.decode() for reason in reasons]

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run commands; on the client's own connection, if it has one, in one round trip.

        Half of a projector's work was redis-py's way from a command to a connection and back.
        """
        connection: Any = self._client.connection
        if connection is None:  # it is shared
            run: Any = self._client.execute_command
            return [run(*command) for command in commands]
        try:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            answers = [connection.read_response() for _ in commands]
        except BaseException:
            connection.disconnect()  # what is still to come on it answers nothing that is asked
            raise
        self._client.hear()
        return answers

    def _streamed(
        self, after: Position, count: int, block_ms: int | None
    ) -> tuple[list[Entry], bool]:
        """A page of the stream, and whether it is all that comes behind `after`.

        What proves that is read behind the page, in the same round trip: the stream may be trimmed
        at any time.
        """
        blocking = () if block_ms is None else ("BLOCK", block_ms)
        reading = ("XREAD", "COUNT", count, *blocking, "STREAMS", self._key, str(after))
        if after == START:
            (answer,) = self._send([reading])
            entries = answer[0][1] if answer else []
            if entries:
                self._client.believe()
            return entries, not entries or (not self._trimmed() and not self._is_archived())
        answer, held = self._send([reading, ("XRANGE", self._key, str(after), str(after))])
        if answer or not held:
            self._client.believe()
        return answer[0][1] if answer else [], bool(held)

    def _in_stream(self, position: Position) -> bool:
        return bool(self._client.xrange(self._key, str(position), str(position)))

    def _joined(self, position: Position) -> bool:
        """Whether the archive holds this event (or the first) and all behind it, up to one that the
        stream holds; or the stream is the whole log."""
        archive, end = self._archive, None
        if archive is not None and (position == START or archive.holds(self.partition, position)):
            end = archive.end(self.partition, position)
            # It may be trimmed while we look, up to where the archive ends by then.
            while end is not None and not self._in_stream(end.last):
                before, end = end, archive.end(self.partition, end.last)
                if end == before:
                    return False
        return end is not None or (position == START and not self._trimmed())

    def _is_archived(self) -> bool:
        """Whether anything is: the stream may have been begun anew, without what it lost."""
        if self._archive is None:
            return False
        return next(self._archive.listed(self.partition), None) is not None

    def _trimmed(self) -> bool:
        """Whether entries were ever removed."""
        given, held = self._counts()
        return given != held

    def _counts(self) -> tuple[int, int]:
        """How many entries the stream was ever given, as the server counts, and how many it has."""
        try:
            info: Any = self._client.xinfo_stream(self._key)
        except redis.ResponseError as error:
            if "no such key" not in str(error):
                raise
            return 0, 0  # nothing was ever written, or all of it is gone
        return int(info.get("entries-added", info["length"])), int(info["length"])

    def _decode(self, entries: Sequence[Entry], wanted: Wanted) -> list[Recorded]:
        partition = self.partition
        return [codec.decode(partition, position, fields, wanted) for position, fields in entries]


def asked_for(page: Sequence[Recorded]) -> list[Recorded]:
    """The events of a page that its reader wanted."""
    return [recorded for recorded in page if recorded.event is not PASSED]


class _Archived:
    """What the archive has behind a position, a few events at a time; no more than a segment of it
    is in memory."""

    def __init__(self, archive: Archive | None, partition: int) -> None:
        self._archive = archive
        self._partition = partition
        self._segments: Iterator[list[Raw]] | None = None
        self._entries: list[Raw] = []
        self._told = 0  # of these
        self._reached = START

    def begin(self, after: Position) -> None:
        """Go on behind an event."""
        self._entries, self._told, self._reached = [], 0, after
        if self._archive is not None:
            self._segments = self._archive.read(self._partition, after)

    def next(self, after: Position, count: int) -> list[Raw]:
        """The next events, from where it began; none where it ends, or where its reader does not go
        on behind the last that were told."""
        if self._segments is None:
            return []
        if self._told == len(self._entries):
            self._entries, self._told = [], 0
            self._entries = next(self._segments, [])
        if after != self._reached or not self._entries:
            self._segments, self._entries, self._told = None, [], 0
            return []
        found = self._entries[self._told : self._told + count]
        self._told += len(found)
        self._reached = found[-1].position
        return found
