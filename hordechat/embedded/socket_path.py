"""Whether a Unix socket can lie at a path: systems bound its length, and data directories may lie
deep."""

import os
from pathlib import Path

_BYTES = 103
"""Of a path that fit into sockaddr_un on macOS, with its final zero; Linux has room for 107."""


def fits(path: Path) -> bool:
    """Whether the path of a socket is short enough."""
    return len(os.fsencode(path)) <= _BYTES
