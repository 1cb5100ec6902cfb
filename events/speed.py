"""How fast a worker was with one reply (spec, Pricing; text_path_reference.md 6.2 and 7.1)."""

from __future__ import annotations

CHARACTERS_PER_TOKEN = 4
FEWEST_TOKENS = 20


def tokens_of(characters: int, max_length: int) -> int:
    """The token count that stands for a reply, in prices and speeds alike: its characters by four,
    rounded up, at least 20 and at most what was asked for."""
    return min(max_length, max(FEWEST_TOKENS, -(-characters // CHARACTERS_PER_TOKEN)))


def implausible(characters: int, max_length: int, elapsed_ms: int, believable: int) -> bool:
    """Whether a reply came faster than `believable` (10^-3 tokens a second).

    Where either was not recorded (0), nothing is. Of less than a second nothing can be said: it
    counts as one.
    """
    if not elapsed_ms or not believable:
        return False
    elapsed_ms = max(elapsed_ms, 1000)
    return sample(characters, max_length, elapsed_ms) > believable


def sample(characters: int, max_length: int, elapsed_ms: int) -> int:
    """10^-3 tokens a second, at least 1: those of a reply that came so long after its assignment.

    `elapsed_ms` is more than 0.
    """
    return max(1, round(tokens_of(characters, max_length) * 1_000_000 / elapsed_ms))
