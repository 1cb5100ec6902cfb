"""JSON log lines on stderr: one shape for every process.

Each line has `ts` (RFC 3339, UTC), `level`, `event` and `process`, then whatever the caller binds.
Modules log through `structlog.get_logger()` and need nothing from here.
"""

import logging
import sys
from typing import Protocol, TextIO, cast

import msgspec
import structlog

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Stream(Protocol):
    """What a line can be written to. Each line comes in one call of `write`."""

    def write(self, text: str, /) -> object:
        """Take a line."""

    def flush(self) -> None:
        """Send it on."""


def _json(event_dict: structlog.typing.EventDict, **_: object) -> str:
    """Dump one line; what JSON cannot say is shown as text, since a log call must not raise."""
    return msgspec.json.encode(event_dict, enc_hook=repr).decode()


def _first_keys(
    _logger: structlog.typing.WrappedLogger, _method: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Put the four keys that every line has in front, for the eye."""
    head = {key: event_dict.pop(key) for key in ("ts", "level", "process", "event")}
    return {**head, **event_dict}


def configure(level: str, process: str, stream: Stream | None = None) -> None:
    """Send structlog's and the standard library's records to stderr as JSON lines.

    level    one of LEVELS
    process  name of this process, on every line
    stream   instead of stderr

    Call once, at the entry point.
    """
    out = sys.stderr if stream is None else stream
    number = logging.getLevelNamesMapping()[level]

    def add_process(
        _logger: structlog.typing.WrappedLogger,
        _method: str,
        event_dict: structlog.typing.EventDict,
    ) -> structlog.typing.EventDict:
        event_dict.setdefault("process", process)
        return event_dict

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        add_process,
    ]
    render: list[structlog.typing.Processor] = [
        _first_keys,
        structlog.processors.JSONRenderer(serializer=_json),
    ]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, out)),
        cache_logger_on_first_use=stream is None,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler], force=True)
