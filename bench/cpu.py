"""CPU time of process trees, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class Clock(NamedTuple):
    """CPU seconds of one process: its own threads', and its ended children's that it waited for."""

    own: float
    children: float


Reading = dict[tuple[str, int], Clock]
"""The clocks of every process, by role and pid, at one moment."""


def read(roots: Mapping[str, int]) -> Reading:
    """Read the trees under `roots` (role → pid); a root below another counts for itself only."""
    below = defaultdict(list)
    waited = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                below[int(fields[1])].append(int(entry.name))
                waited[int(entry.name)] = (int(fields[13]) + int(fields[14])) / _TICKS
    apart = set(roots.values())
    found = {}
    for role, root in roots.items():
        todo = [root]
        while todo:
            pid = todo.pop()
            todo += [child for child in below[pid] if child not in apart]
            found[role, pid] = Clock(_own(pid), waited.get(pid, 0.0))
    return found


def _own(pid: int) -> float:
    """What the process's threads used; their own clocks count nanoseconds."""
    total = 0
    with contextlib.suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def between(before: Reading, after: Reading) -> dict[str, float]:
    """CPU seconds that each role used between two readings.

    What a process used before it ended comes back in its parent's count, all of its life, so what
    it had used by the first reading is taken off.
    """
    used: dict[str, float] = defaultdict(float)
    for (role, pid), clock in after.items():
        earlier = before.get((role, pid), Clock(0.0, 0.0))
        used[role] += sum(clock) - sum(earlier)
    for (role, pid), clock in before.items():
        if (role, pid) not in after:
            used[role] -= sum(clock)
    return {role: max(0.0, seconds) for role, seconds in used.items()}
