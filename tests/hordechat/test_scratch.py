"""Servers for folds: nothing of them is left, also where somebody was killed."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

from hordechat import scratch


def test_what_somebody_left_who_was_killed_is_deleted_and_what_is_in_use_is_not() -> None:
    what = f"test-{secrets.token_hex(4)}"
    here = Path(tempfile.gettempdir())
    left = here / f"hordechat-{what}-left"
    left.mkdir()
    for name in ("lock", "scratch.log"):
        (left / name).touch()

    with scratch.server(what):
        (first,) = here.glob(f"hordechat-{what}-*")
        assert first != left
        with scratch.server(what):
            assert len(list(here.glob(f"hordechat-{what}-*"))) == 2
            assert first.exists()

    assert list(here.glob(f"hordechat-{what}-*")) == []
