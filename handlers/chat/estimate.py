"""How long a request is likely to wait: `wait_time` (spec, Free output allowance)."""

from __future__ import annotations


def queue_seconds(tokens: int, jobs: int, threads: int, tokens_per_second: float) -> float:
    """Seconds until `tokens` of `jobs` queued generations are worked off by `threads` threads.

    `tokens_per_second` is what all the threads make together. Fewer jobs than threads leave threads
    idle. Without threads there is no estimate: 0.
    """
    if not threads or not jobs or not tokens_per_second:
        return 0.0
    return tokens / (tokens_per_second * min(jobs, threads) / threads)


def remaining_seconds(max_length: int, elapsed: float, speed: float) -> float:
    """Seconds until a generation that has run for `elapsed` is likely to end.

    `speed` in tokens a second.
    """
    return max(0.0, max_length / speed - elapsed)
