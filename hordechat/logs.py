"""JSON log lines on stderr: one shape for every process.

Each line has `ts` (RFC 3339, UTC), `level`, `event` and `process`, then whatever the caller binds.
Modules log through `structlog.get_logger()` and need nothing from here.
"""

import logging
import sys
import time
from typing import Protocol, TextIO, cast

import msgspec
import structlog

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LEVEL_OF = {"warn": "warning", "exception": "error"}  # other methods are named for theirs


class Stream(Protocol):
    """What a line can be written to. Each line comes in one call of `write`."""

    def write(self, text: str, /) -> object:
        """Take a line."""

    def flush(self) -> None:
        """Send it on."""


def _json(event_dict: structlog.typing.EventDict, **_: object) -> str:
    """Dump one line; what JSON cannot say is shown as text, since a log call must not raise."""
    return msgspec.json.encode(event_dict, enc_hook=repr).decode()


class _Lines:
    """Turns what was logged into a line: four keys in front, for the eye, and then the rest.

    The one step between a log call and its stream, since there is a line for each command.
    """

    def __init__(self, process: str) -> None:
        self._process = process
        self._second = (0, "")

    def __call__(
        self,
        logger: structlog.typing.WrappedLogger,
        method: str,
        event_dict: structlog.typing.EventDict,
    ) -> str:
        if "exc_info" in event_dict:
            event_dict = structlog.processors.format_exc_info(logger, method, event_dict)
        level = _LEVEL_OF.get(method, method)
        head = {
            "ts": event_dict.pop("ts", None) or self._now(),
            "level": event_dict.pop("level", level),
            "process": event_dict.pop("process", self._process),
            "event": event_dict.pop("event"),
        }
        return _json({**head, **event_dict})

    def _now(self) -> str:
        """RFC 3339 in UTC; the text of a second is made once."""
        seconds, nanos = divmod(time.time_ns(), 1_000_000_000)
        if seconds != self._second[0]:
            self._second = (seconds, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)))
        return f"{self._second[1]}.{nanos // 1000:06d}Z"


def configure(level: str, process: str, stream: Stream | None = None) -> None:
    """Send structlog's and the standard library's records to stderr as JSON lines.

    level    one of LEVELS
    process  name of this process, on every line
    stream   instead of stderr

    Call once, at the entry point.
    """
    out = sys.stderr if stream is None else stream
    number = logging.getLevelNamesMapping()[level]

    lines = _Lines(process)
    structlog.configure(
        processors=[lines],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, out)),
        cache_logger_on_first_use=stream is None,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, lines],
        )
    )
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler], force=True)
