"""A file of the operator's that is read again when it changes, without a restart."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import structlog

logger = structlog.get_logger()

Value = TypeVar("Value")

LOOK_SECONDS = 1.0
"""The file is looked at (one stat) no more often than this."""


MOST_BYTES = 16 * 2**20
"""Ten times what a long list of models takes."""


class Unreadable(Exception):
    """A file cannot be used: the message names it, the entry where one is at fault, and why."""


class _Version(NamedTuple):
    """What tells one state of a file from the next."""

    modified_ns: int
    size: int  # bytes
    inode: int


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="watched-file", daemon=True).start()


class Watched(Generic[Value]):
    """What a file says, as it stands now or stood up to a second ago."""

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes], Value],
        *,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], object] = _in_thread,
    ) -> None:
        """Read the file; raise Unreadable where it is missing or `parse` raises Unreadable.

        clock   seconds
        start   runs the work of reading again; by default in a thread, since a large file takes
                longer to read and parse than an event loop may stand still
        """
        self._path = path
        self._parse = parse
        self._clock = clock
        self._start = start
        # Looked at before it is read: what is written meanwhile shows as yet another version.
        self._seen = self._look()
        self._value = self._read()
        self._looked = clock()
        self._reading = False

    def current(self) -> Value:
        """What the file says. A change shows in a later call, once it is read.

        A file that went away, or that became unusable, leaves the last good value in force; that is
        logged once for each such version of the file.
        """
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS and not self._reading:
            self._looked = now
            if self._look() != self._seen:
                self._reading = True
                self._start(self._read_again)
        return self._value

    def _look(self) -> _Version | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return _Version(found.st_mtime_ns, found.st_size, found.st_ino)

    def _read_again(self) -> None:
        try:
            self._seen = self._look()
            self._value = self._read()
            logger.info("file_read_again", path=str(self._path))
        except Unreadable as error:
            logger.warning("file_not_taken", path=str(self._path), reason=str(error))
        finally:
            self._reading = False

    def _read(self) -> Value:
        try:
            return self._parse(_bytes(self._path))
        except OSError as error:
            raise Unreadable(f"{self._path}: {error.strerror or error}") from None
        except RecursionError:
            raise Unreadable(f"{self._path}: nests too deep") from None
        except Unreadable as error:
            raise Unreadable(f"{self._path}: {error}") from None


def _bytes(path: Path) -> bytes:
    """All of a file. What never ends, or waits for somebody to write, is none: raise Unreadable."""
    with open(path, "rb", opener=_without_waiting) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise Unreadable("is not a regular file")
        raw = opened.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise Unreadable(f"is larger than {MOST_BYTES} bytes")
    return raw


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
