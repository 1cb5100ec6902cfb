"""What one module logs, whatever ran before in this process."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from structlog.testing import capture_logs


@contextmanager
def logged(logger: Any) -> Iterator[list[MutableMapping[str, Any]]]:
    """The lines of this module's logger while inside.

    A command that set up logging, in another test, made each logger keep the configuration of its
    first use, which `capture_logs` does not reach: so this one forgets it.
    """
    vars(logger).pop("bind", None)
    with capture_logs() as lines:
        yield lines
    vars(logger).pop("bind", None)
