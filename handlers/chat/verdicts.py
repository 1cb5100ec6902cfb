"""What a check of a document may find.

Shared by those who ask (`schema_pool`, `verification`) and the process that answers
(`schema_process`).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from handlers.processes import expendable

SHOWN = 300
"""Characters of what a library said of a schema or a document."""

CONFORMS = "conforms"
NO_JSON = "no JSON"
NO_OBJECT = "no object"
MISMATCH = "mismatch"
UNCOMPILABLE = "uncompilable"
UNDECIDED = "undecided"
"""The validator failed on this schema with this document."""
EXHAUSTED = expendable.EXHAUSTED
"""It took too much memory or nested too deep: the process ends behind this answer."""

OVERDUE = "overdue"
"""It came to its deadline, or its process died of it."""


class Verdict(NamedTuple):
    """What a check found: one of the words above."""

    word: str
    detail: str = ""
    """For the worker; may quote the document."""


def loads(document: bytes) -> Any:
    """JSON as Python reads it from text, but for NaN and Infinity; raise ValueError.

    From bytes it would guess the encoding, and take a text with a U+0000 beside each character for
    UTF-16.
    """
    return json.loads(document.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def judge_object(document: bytes) -> Verdict:
    """Whether it is a JSON object. Never raises."""
    try:
        found = loads(document)
    except ValueError as error:
        return Verdict(NO_JSON, str(error)[:SHOWN])
    except (RecursionError, MemoryError):
        return Verdict(EXHAUSTED)
    return Verdict(CONFORMS if isinstance(found, dict) else NO_OBJECT)
