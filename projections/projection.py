"""What makes a projection: a name, a pure fold, a SQL function that writes, and announcements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from events.base import Event, Recorded
from projections.changes import Document
from projections.log import Log


class Projected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Published after each commit on the projected channel: what can be read now."""

    position: str
    requests: tuple[str, ...] = ()
    """Ids of requests that are done, or gone (status)."""
    models: tuple[str, ...] = ()
    """Models of jobs that began to wait, "" for requests that take any (eligibility)."""
    workers: tuple[str, ...] = ()
    """Ids of workers of which something was changed, or that were deleted (eligibility)."""


class Signal(NamedTuple):
    """A message for subscribers of one channel."""

    channel: str
    message: bytes


class Projection(NamedTuple):
    """One read model. A name is permanent: renaming it replays everything."""

    name: str
    tables: tuple[str, ...]
    """Tables that it alone writes, each with a column `partition`."""
    write: str
    """SQL function: takes the folded document, returns models whose jobs came back."""
    fold: Callable[[Sequence[Recorded]], Document]
    """Pure: rows come from the events alone."""
    folds: Collection[type[Event]]
    """Types of events that change a row, or are announced: no other is taken apart."""
    hints: Callable[[str, Document, Sequence[str]], Projected]
    """From the position, the document and what `write` returned."""
    signals: Callable[[Sequence[Recorded], Log], list[Signal]] | None = None
    """Messages about committed events, in their order; the log has the content that they quote."""
    pause_s: float = 0.0
    """Least seconds between two reads of the log, where nobody waits for what is read: waking for a
    few events costs more than they do."""
