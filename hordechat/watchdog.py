"""Ends the children of a process that was killed, as of an `up`. Runs as a program of its own, from
the standard library alone.

Whoever has children (`hordechat.process.Watchdog`) writes the list of them to our standard input,
one JSON array a line, after each change; the last line counts. End of file without the line `done`
means that it died without stopping them, so we do. Also used as a module: `identity` tells a
process from a later one with its pid, `end_all` is how leftovers of an earlier `up` go.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

DONE = "done"
GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.02


class Entry(TypedDict):
    """A child: leader of its process group, when it started, and the signal that ends it."""

    pid: int
    started: str
    signal: int


def identity(pid: int) -> str:
    """When a process started, as text that no later process with the same pid has; empty if it is
    gone or a zombie.
    """
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return ""
        state, *rest = stat[stat.rindex(")") + 2 :].split()
        return "" if state in "ZX" else rest[18]
    found = subprocess.run(
        ["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def signal_group(pid: int, number: int) -> None:
    """Signal every process of the group that `pid` leads or led; none left is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_all(entries: Iterable[Entry], grace_seconds: float = GRACE_SECONDS) -> int:
    """Signal each child that still is the one in the entry, wait, then kill what is left of its
    group.

    Returns how many were alive.
    """
    alive = [entry for entry in entries if entry["started"] == identity(entry["pid"])]
    for entry in alive:
        if entry["signal"] == signal.SIGKILL:
            signal_group(entry["pid"], signal.SIGKILL)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry["pid"], entry["signal"])
    deadline = time.monotonic() + grace_seconds
    for entry in alive:
        while identity(entry["pid"]) == entry["started"] and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        signal_group(entry["pid"], signal.SIGKILL)
    return len(alive)


def main() -> None:
    """Follow standard input to its end; then end whatever the last list names."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    last = "[]"
    for line in sys.stdin:
        if line.endswith("\n"):
            last = line.strip()
    if last != DONE:
        entries: list[Entry] = json.loads(last)
        end_all(entries)


if __name__ == "__main__":
    main()
