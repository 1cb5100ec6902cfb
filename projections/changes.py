"""What a batch of events does to the rows of one table, folded before anything is written.

Statements grouped by kind would reorder the events of one row (an UPDATE before its INSERT). Here
each row gets at most one change a batch, so the order in which kinds are written does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

Row = dict[str, Any]
"""Columns by name, values as JSON knows them."""

Document = dict[str, Any]
"""All changes of a batch, in the shape that the projection's SQL function takes."""

MOST = 2**63 - 1

_encode = msgspec.json.Encoder().encode


class Rows:
    """Changes of one table. `key` is the column that names a row."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.inserted: dict[str, Row] = {}
        self.updated: dict[str, Row] = {}
        self.deleted: dict[str, None] = {}

    def insert(self, id_: str, row: Row) -> None:
        """A new row, all its columns given. An id is never used again after a delete."""
        row[self._key] = id_
        self.inserted[id_] = row

    def update(self, id_: str, columns: Row) -> None:
        """New values of some columns. A row that does not exist stays absent."""
        if not columns or id_ in self.deleted:
            return
        row = self.inserted.get(id_)
        if row is None:
            row = self.updated.setdefault(id_, {self._key: id_})
        row.update(columns)

    def delete(self, id_: str) -> None:
        """The row goes, if it is there."""
        self.updated.pop(id_, None)
        if self.inserted.pop(id_, None) is None:
            self.deleted[id_] = None

    def document(self) -> Document:
        """Lists of rows as `insert` and `update`, of ids as `delete`; empty ones are left out."""
        parts: Iterable[tuple[str, list[Any]]] = (
            ("insert", list(self.inserted.values())),
            ("update", list(self.updated.values())),
            ("delete", list(self.deleted)),
        )
        return {name: part for name, part in parts if part}


def bounded(number: int) -> int:
    """A number of someone else's, cut to what a bigint holds: no event may stop a projector."""
    return max(-MOST, min(MOST, number))


def encode(document: Document) -> str:
    """The document as JSON text for a jsonb parameter. NUL, which jsonb refuses, becomes U+FFFD."""
    raw = _encode(document)
    if b"\\u0000" in raw:
        raw = _encode(_without_nul(document))
    return raw.decode()


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nul(item) for item in value]
    return value
