"""Reading JSON that may be anything."""

from __future__ import annotations

import time

from handlers.chat import documents


def test_a_value_that_looks_like_a_place_costs_one_pass() -> None:
    """msgspec quotes the sender's value: a pattern that backtracked over it froze the process."""
    started = time.process_time()

    fault = documents.fault_of("Invalid enum value '" + " - at `$" * 100_000 + "'")

    assert time.process_time() - started < 0.5
    assert fault.path == ""


def test_a_place_is_believed_only_where_it_is_a_path() -> None:
    assert documents.fault_of("Expected `int`, got `str` - at `$.a[0].b`").path == "a[0].b"
    told = documents.fault_of("Object contains unknown field `x - at `$y`")
    assert (told.path, told.unknown) == ("x - at `$y", True)
