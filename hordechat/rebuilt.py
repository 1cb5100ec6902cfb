"""What a rebuild of hot state came to, as an operator is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from events.base import START, Position
from handlers.rebuild import OUTSIDE, Lost, Rebuilt, TakenUp


def told(found: Sequence[Rebuilt], taken_up: TakenUp) -> Iterator[str]:
    """A line for each partition, one for each that lost something, and what was done then."""
    for each in found:
        yield f"partition {each.partition}: {_folded(each)}"
        if each.lost is not None:
            yield f"partition {each.partition}: {_lost(each.lost)}"
    if taken_up.fences:
        fences = _count(taken_up.fences, "fence")
        yield f"{fences} of the settler stood at lost events: moved back to the last in front"
    if taken_up.expired:
        yield f"{_count(taken_up.expired, 'waiting request')} without content ended as expired"
    if any(each.forgotten for each in found):
        yield f"not in the log, and gone with what Redis held: {', '.join(OUTSIDE)}"


def record(found: Sequence[Rebuilt], taken_up: TakenUp) -> dict[str, Any]:
    """The same as a record. Positions are null where there is none."""
    return {
        "partitions": [
            {
                "partition": each.partition,
                "snapshot": _position(each.snapshot),
                "snapshot_events": each.before,
                "folded_events": each.folded,
                "position": _position(each.position),
                "forgotten": each.forgotten,
                "lost": None
                if each.lost is None
                else {
                    "behind": _position(each.lost.behind),
                    "known": _position(each.lost.known),
                    "ledger_lines": each.lost.ledger_lines,
                    "trimmed_events": each.lost.trimmed,
                    "added_events": each.lost.added,
                },
            }
            for each in found
        ],
        "fences_moved": taken_up.fences,
        "requests_expired": taken_up.expired,
        "gone": list(OUTSIDE) if any(each.forgotten for each in found) else [],
    }


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _position(position: Position) -> str | None:
    return None if position == START else str(position)


def _folded(each: Rebuilt) -> str:
    folded = f"{each.folded} events folded"
    if each.before:
        folded += f" behind the snapshot of {each.before} at {each.snapshot}"
    return folded if each.position == START else f"{folded}, up to {_at(each.position)}"


def _lost(lost: Lost) -> str:
    end = "all events" if lost.behind == START else f"what came behind {_at(lost.behind)}"
    known = "how much that was is not known"
    if lost.known > lost.behind:
        known = (
            f"Postgres knows of events up to {_at(lost.known)}, "
            f"and has {lost.ledger_lines} lines of the ledger of them"
        )
    trimmed = f"; {lost.trimmed} events were trimmed before they were archived"
    added = f"; {lost.added} events that came later are kept"
    return f"lost {end}: {known}{trimmed if lost.trimmed else ''}{added if lost.added else ''}"


def _at(position: Position) -> str:
    at = datetime.fromtimestamp(position.ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f"{position} ({at})"
