"""Which node of a cluster serves which key, and under which URL it is reached.

Nothing here talks to a server: `Slots` is made of what CLUSTER SLOTS answered.
"""

from __future__ import annotations

from binascii import crc_hqx
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

SLOTS = 16384

SILENCE = 0.5
"""Seconds within which no other node can have taken a node's place: `cluster-node-timeout`, for
which it is silent before, is to be a second at least. What a node says after a longer silence is
believed once others say that it still has its place."""

SUPERSEDED = "it was silent, and another node may have its place"

_SECOND = frozenset({"XINFO", "OBJECT", "MEMORY", "XGROUP"})
"""Commands whose key stands behind a word of theirs."""

_NONE = frozenset(
    (
        *("CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "DEBUG", "FLUSHALL", "FUNCTION"),
        *("INFO", "KEYS", "PING", "PUBLISH", "ROLE", "SCAN", "SCRIPT", "TIME", "WAIT", "WAITAOF"),
    )
)
"""Commands that name no key."""


class Heard:
    """How often something was heard of a node after a silence of so many seconds, the first time
    among them."""

    def __init__(self, silence: float = SILENCE) -> None:
        self.silences = 0
        self._silence = silence
        self._at = float("-inf")

    def hear(self, now: float) -> None:
        """Something is heard of it at this second."""
        if now - self._at > self._silence:
            self.silences += 1
        self._at = now


def witnesses(others: int) -> int:
    """How many of so many other primaries have to say that one still has its place: of as many, one
    at least took part where another was given it. None where there is no other."""
    return min(others, max(1, others - (others + 1) // 2))


def urls(url: str) -> list[str]:
    """One URL for each server that a URL names, `redis://user:password@one:6379,two:6379/0`."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return [url]
    user, at, hosts = parts.netloc.rpartition("@")
    return [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]


def beside(url: str, host: str, port: int) -> str:
    """The URL of another node, reached as this one is."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    named = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=f"{user}{at}{named}:{port}").geturl()


def slot_of(key: str | bytes) -> int:
    """The slot of a key: of what stands in its first braces, if anything does."""
    raw = key.encode() if isinstance(key, str) else key
    begin = raw.find(b"{")
    if begin >= 0:
        end = raw.find(b"}", begin + 1)
        if end > begin + 1:
            raw = raw[begin + 1 : end]
    return crc_hqx(raw, 0) % SLOTS


def key_of(command: Sequence[str | bytes | int | float]) -> str | bytes | None:
    """The first key that a command names; None where it names none."""
    name = str(command[0]).upper()
    if name in _NONE:
        return None
    place = 1
    if name in ("EVALSHA", "EVAL"):
        place = 3 if int(command[2]) else len(command)
    elif name in _SECOND:
        place = 2
    elif name == "XREAD":
        place = command.index("STREAMS") + 1
    if place >= len(command):
        return None
    key = command[place]
    return key if isinstance(key, bytes) else str(key)


class Slots:
    """Who serves what, as one node saw it. Equal where the same primaries serve the same."""

    def __init__(self, ranges: Iterable[tuple[int, int, str]], nodes: Iterable[str]) -> None:
        """`ranges`: first and last slot, URL of their primary; `nodes`: URLs, with replicas."""
        self.ranges = tuple(sorted(ranges))
        self.nodes = tuple(dict.fromkeys(nodes))
        self._firsts = [first for first, _, _ in self.ranges]

    @classmethod
    def parse(cls, url: str, answer: Sequence[Any]) -> Slots:
        """Of the answer to CLUSTER SLOTS by the node of this URL."""

        def named(node: Sequence[Any]) -> str:
            host = (node[0] or b"").decode()  # empty or none: as we reach whom we asked
            if host in ("", "?"):
                host = urlsplit(url).hostname or ""
            return beside(url, host, int(node[1]))

        ranges = [(int(each[0]), int(each[1]), named(each[2])) for each in answer]
        return cls(ranges, (named(node) for each in answer for node in each[2:]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slots) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    @property
    def primaries(self) -> tuple[str, ...]:
        """The URL of each node that serves slots."""
        return tuple(dict.fromkeys(url for _, _, url in self.ranges))

    def owner(self, slot: int) -> str | None:
        """The URL of the primary that serves a slot; None where no node does."""
        index = bisect_right(self._firsts, slot) - 1
        if index < 0:
            return None
        _, last, url = self.ranges[index]
        return url if slot <= last else None
