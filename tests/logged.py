"""What some modules log, whatever ran before in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.testing import capture_logs


@contextmanager
def logged(*loggers: Any) -> Iterator[list[MutableMapping[str, Any]]]:
    """The lines of these modules' loggers while inside, of every level.

    A command that set up logging, in another test, set a least level, and made each logger keep the
    configuration of its first use. `capture_logs` reaches neither: so this one does.
    """
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))
    _forget(loggers)
    try:
        with capture_logs() as lines:
            yield lines
    finally:
        structlog.configure(wrapper_class=before)
        _forget(loggers)


def _forget(loggers: Iterable[Any]) -> None:
    for logger in loggers:
        vars(logger).pop("bind", None)
