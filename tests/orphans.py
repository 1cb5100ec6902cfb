"""Programs that a test starts end with the process of the tests, even where that is killed."""

from __future__ import annotations

import signal

from hordechat.process import Watchdog
from hordechat.watchdog import Entry, identity

_watchdogs: list[Watchdog] = []
_started: list[Entry] = []


def leave_none(pid: int, number: int = signal.SIGTERM) -> None:
    """See to it that this child of ours, as it is now, gets a signal when we are gone.

    Those that ended before are no matter: a watchdog knows them from later ones with their pids.
    """
    if not _watchdogs:
        _watchdogs.append(Watchdog())
    _started.append({"pid": pid, "started": identity(pid), "signal": number})
    _watchdogs[0].watch(_started)
