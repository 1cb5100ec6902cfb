"""How long a request is likely to wait: `wait_time` (spec, Free output allowance)."""

from __future__ import annotations

UNMEASURED_TOKENS_PER_SECOND = 10.0
"""Speed of a worker that has not recorded one. None has yet."""


def queue_seconds(tokens: int, jobs: int, threads: int) -> float:
    """Seconds until `tokens` of `jobs` queued generations are worked off by `threads` threads.

    Fewer jobs than threads leave threads idle. Without threads there is no estimate: 0.
    """
    if not threads or not jobs:
        return 0.0
    return tokens / (UNMEASURED_TOKENS_PER_SECOND * min(jobs, threads))


def remaining_seconds(max_length: int, elapsed: float) -> float:
    """Seconds until a generation that has run for `elapsed` is likely to end."""
    return max(0.0, max_length / UNMEASURED_TOKENS_PER_SECOND - elapsed)
