"""Accounts as people name them: `name#number`, of which the number counts
(text_path_reference.md 2.1)."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def number_of(username: str) -> int | None:
    """The account's number, behind the last `#`; None for what has none. The name before it may be
    a former one."""
    _, mark, number = username.rpartition("#")
    return int(number) if mark and _NUMBER.fullmatch(number) else None
