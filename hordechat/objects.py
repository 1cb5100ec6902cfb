"""The objects in the store as operators are told of them."""

from __future__ import annotations

from collections.abc import Iterator

from handlers.accounted import By, Missing, Orphan, Tally

_BY: dict[By, str] = {
    "request": "of requests",
    "admission": "of open admissions",
    "tombstone": "of requests that are gone",
    "deletion": "to be deleted",
}


def told(found: Orphan | Missing) -> str:
    """A line on what is wrong."""
    if isinstance(found, Missing):
        return f"missing {found.bucket}/{found.key}"
    return f"orphan {found.bucket}/{found.key} ({found.size} bytes)"


def record(found: Orphan | Missing) -> dict[str, object]:
    """The same, for JSON."""
    kind = "missing" if isinstance(found, Missing) else "orphan"
    return {"found": kind, **found._asdict()}


def summary(tally: Tally, queued: int | None) -> Iterator[str]:
    """What there is, in lines. `queued`: orphans that were put among what is to be deleted; None:
    that was not asked for."""
    named = ", ".join(f"{tally.by[by]} {words}" for by, words in _BY.items() if tally.by[by])
    total = _counted(tally.objects, "object")
    if tally.objects:
        total += f" of {tally.size} bytes"
    yield f"{total}: {named}" if named else total
    if tally.foreign:
        yield f"{_counted(tally.foreign, 'object')} with other names, left alone"
    yield f"{_counted(tally.orphans, 'orphan')}, {tally.missing or 'none'} missing"
    if queued is not None:
        yield f"{_counted(queued, 'orphan')} will be deleted by the janitor's next pass"


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def counts(tally: Tally, queued: int | None) -> dict[str, object]:
    """The same, for JSON."""
    return {
        "objects": tally.objects,
        "bytes": tally.size,
        "by": {by: tally.by[by] for by in _BY},
        "foreign": tally.foreign,
        "orphans": tally.orphans,
        "missing": tally.missing,
        **({} if queued is None else {"queued": queued}),
    }
