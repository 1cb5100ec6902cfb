"""The position of an event in its partition's log, and the struct every event extends."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import msgspec


class Position(NamedTuple):
    """A stream id: Redis-clock milliseconds and a sequence.

    Compares as two integers, never as text.
    """

    ms: int
    seq: int

    @classmethod
    def parse(cls, text: str | bytes) -> Position:
        """Read `ms-seq`; raise ValueError for anything else."""
        ms, seq = text.split(b"-") if isinstance(text, bytes) else text.split("-")
        return cls(int(ms), int(seq))

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"


KUDOS = 10_000
"""One kudos, in the units of every amount in the log and in scripts."""

START = Position(0, 0)
"""Before the first event of every log."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A fact.

    Plain fields travel as stream fields that scripts may read; `data` travels as JSON that they
    never touch. `SCRIPT` names the fields that only the script knows when it appends (counters,
    deadlines). The codec leaves them out on the way in, the script adds them, and the codec reads
    them back.
    """

    VERSION: ClassVar[int] = 1
    SCRIPT: ClassVar[tuple[str, ...]] = ()


class Former(Event, frozen=True, kw_only=True):
    """An event as it was stored before its meaning changed, under the same word with a lower
    VERSION.

    Only the codec ever sees one: whoever reads the log gets what `newer` makes of it.
    """

    def newer(self) -> Event:
        """The same fact in the next version, from what is stored alone."""
        raise NotImplementedError


PASSED = Event()
"""Stands for an event whose reader has no use for it: known, but not read."""


class Recorded(NamedTuple):
    """An event as the log holds it.

    The milliseconds of the position are the event's time.
    """

    partition: int
    position: Position
    event: Event
