"""What some modules log, whatever ran before in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from structlog.testing import capture_logs


@contextmanager
def logged(*loggers: Any) -> Iterator[list[MutableMapping[str, Any]]]:
    """The lines of these modules' loggers while inside.

    A command that set up logging, in another test, made each logger keep the configuration of its
    first use, which `capture_logs` does not reach: so this one forgets it.
    """
    _forget(loggers)
    with capture_logs() as lines:
        yield lines
    _forget(loggers)


def _forget(loggers: Iterable[Any]) -> None:
    for logger in loggers:
        vars(logger).pop("bind", None)
