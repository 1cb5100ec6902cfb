"""One change for each row of a batch, whatever happened to it."""

from __future__ import annotations

import json

from projections.changes import MOST, Rows, bounded, encode


def test_later_columns_win_and_a_new_row_takes_them_in():
    rows = Rows("id")
    rows.insert("new", {"state": "a", "n": 1})
    rows.update("new", {"state": "b"})
    rows.update("old", {"state": "a"})
    rows.update("old", {"n": 2})

    assert rows.document() == {
        "insert": [{"id": "new", "state": "b", "n": 1}],
        "update": [{"id": "old", "state": "a", "n": 2}],
    }


def test_a_row_that_came_and_went_leaves_no_change():
    rows = Rows("id")
    rows.insert("brief", {"state": "a"})
    rows.delete("brief")

    assert rows.document() == {}


def test_a_deleted_row_is_not_updated_before_or_after():
    rows = Rows("id")
    rows.update("old", {"state": "a"})
    rows.delete("old")
    rows.update("old", {"state": "b"})

    assert rows.document() == {"delete": ["old"]}


def test_nul_is_replaced_and_what_only_looks_like_it_is_kept():
    document = {"a\0": ["b\0c", ("\\u0000",)], "n": 1}

    assert json.loads(encode(document)) == {"a\ufffd": ["b\ufffdc", ["\\u0000"]], "n": 1}


def test_numbers_fit_a_bigint():
    assert [bounded(n) for n in (5, 10**30, -(10**30))] == [5, MOST, -MOST]
