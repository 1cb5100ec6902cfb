"""A Valkey cluster of several nodes on loopback, whose nodes tests stop, pause and kill.

Three primaries share the slots, and each may have a replica. What nodes know of each other is
written before they start, so nobody has to introduce them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from hordechat.datadir import free_port
from hordechat.embedded import valkey
from hordechat.process import Child, Command, bare_environment
from lua.topology import SLOTS
from tests.orphans import leave_none

_CONFIG = """\
bind 127.0.0.1
port {port}
dir "{folder}"
daemonize no
logfile ""
appendonly yes
appendfsync {fsync}
save ""
maxmemory-policy noeviction
cluster-enabled yes
cluster-port {bus}
cluster-config-file nodes.conf
cluster-node-timeout {timeout_ms}
# What is left of a cluster that lost a node goes on.
cluster-require-full-coverage no
# Replicas stay with their primary: where one has none, another would give up its own.
cluster-allow-replica-migration no
# Without replicas a failover has nobody; with them, none that is far behind.
cluster-replica-validity-factor 10
repl-diskless-sync-delay 0
repl-ping-replica-period 1
min-replicas-to-write {replicas}
min-replicas-max-lag 2
"""

START_SECONDS = 30.0
_PROBES = tuple(f"{{{n}}}probe" for n in range(4))
"""Keys that nobody has, in the slots of four partitions: those are spread over all three."""


def tag_of(key: str) -> str:
    """What stands in a key's braces."""
    return key[key.index("{") + 1 : key.index("}")]


@dataclass
class Node:
    """One server of a cluster."""

    folder: Path
    port: int
    bus: int
    primary: Node | None = None
    """Of which it is a replica when the cluster begins."""
    slots: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(20))
    shard: str = field(default_factory=lambda: secrets.token_hex(20))
    _child: Child | None = None
    _paused: bool = False

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it; it takes a moment until it serves."""
        config = str(self.folder / "valkey.conf")
        with (self.folder / "log").open("ab") as output:
            self._child = Child(
                Command(
                    name="valkey-node",
                    argv=(str(valkey.binary()), config),
                    env=bare_environment(),
                    cwd=Path("/"),
                    stop_seconds=10.0,
                    crash_signal=signal.SIGTERM,
                ),
                output,
            )
        leave_none(self._child.pid, signal.SIGTERM)

    def kill(self) -> None:
        """It is no more, from one moment to the next."""
        assert self._child is not None
        self._child.kill()
        self._child.stop()
        self._child = None

    def pause(self) -> None:
        """It hangs: it listens, and answers nothing."""
        assert self._child is not None
        self._paused = True
        os.kill(self._child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on as if nothing had been."""
        if self._paused and self._child is not None:
            os.kill(self._child.pid, signal.SIGCONT)
        self._paused = False

    def stop(self) -> None:
        """Stop it in order."""
        self.resume()
        if self._child is not None:
            self._child.stop()
            self._child = None

    def ask(self, *command: str | int) -> Any:
        """Its answer to one command; None where it gives none in time."""
        try:
            once = Retry(NoBackoff(), 0)
            with redis.Redis(port=self.port, socket_timeout=1, protocol=2, retry=once) as client:
                return client.execute_command(*command)
        except redis.RedisError:
            return None

    def role(self) -> str:
        """`master` or `slave`; empty while it does not answer."""
        answer = self.ask("ROLE")
        return str(answer[0], "ascii") if answer else ""


class Cluster:
    """Three primaries with so many replicas each; one that has any refuses writes while none of
    them listens."""

    def __init__(
        self,
        folder: Path,
        *,
        replicas: tuple[int, int, int] = (0, 0, 0),
        fsync: str = "no",
        timeout_ms: int = 1000,
    ) -> None:
        folder.mkdir()
        self.nodes: list[Node] = []
        taken: set[int] = set()

        def made(primary: Node | None) -> Node:
            ports = []
            for _ in range(2):
                ports.append(free_port(exclude=taken))
                taken.add(ports[-1])
            node = Node(folder / f"node-{len(self.nodes)}", *ports, primary)
            if primary is not None:
                node.shard = primary.shard
            self.nodes.append(node)
            return node

        bounds = [SLOTS * n // 3 for n in range(4)]
        for first, after in itertools.pairwise(bounds):
            made(None).slots = f"{first}-{after - 1}"
        for primary, count in zip(self.nodes[:3], replicas, strict=True):
            for _ in range(count):
                made(primary)
        for node in self.nodes:
            node.folder.mkdir()
            siblings = sum(other.shard == node.shard for other in self.nodes) - 1
            config = _CONFIG.format(
                port=node.port,
                bus=node.bus,
                folder=node.folder,
                fsync=fsync,
                timeout_ms=timeout_ms,
                replicas=min(siblings, 1),
            )
            (node.folder / "valkey.conf").write_text(config)
            (node.folder / "nodes.conf").write_text(self._known_to(node))

    @property
    def url(self) -> str:
        """Names two of its nodes: one alone may be the one that is away."""
        return f"redis://127.0.0.1:{self.nodes[0].port},127.0.0.1:{self.nodes[1].port}/0"

    def _known_to(self, one: Node) -> str:
        lines = []
        for epoch, node in enumerate(self.nodes, 1):
            flags = "master" if node.primary is None else "slave"
            if node is one:
                flags = f"myself,{flags}"
            follows = node.primary.id if node.primary is not None else "-"
            of = self.nodes.index(node.primary) + 1 if node.primary is not None else epoch
            lines.append(
                f"{node.id} 127.0.0.1:{node.port}@{node.bus},,shard-id={node.shard} {flags}"
                f" {follows} 0 0 {of} connected {node.slots}".rstrip()
            )
        lines.append(f"vars currentEpoch {len(self.nodes)} lastVoteEpoch 0")
        return "\n".join(lines) + "\n"

    def start(self) -> None:
        """Start every node, and wait until the cluster serves."""
        for node in self.nodes:
            node.start()
        deadline = time.monotonic() + START_SECONDS
        while not self.serves():
            assert time.monotonic() < deadline, [node.ask("CLUSTER", "INFO") for node in self.nodes]
            time.sleep(0.05)

    def serves(self) -> bool:
        """Whether every part of the slots takes writes. (A delete of nothing is one.)"""
        return all(self._answering("DEL", key) is not None for key in _PROBES)

    def primary_of(self, key: str) -> Node:
        """The node that serves a key just now."""
        deadline = time.monotonic() + START_SECONDS
        while (found := self._answering("EXISTS", f"{{{tag_of(key)}}}probe")) is None:
            assert time.monotonic() < deadline, f"nobody serves {key}"
            time.sleep(0.05)
        return found

    def _answering(self, command: str, key: str) -> Node | None:
        return next((node for node in self.nodes if node.ask(command, key) == 0), None)

    def replicas_of(self, primary: Node) -> list[Node]:
        """The others that have the same part of the slots."""
        return [n for n in self.nodes if n.shard == primary.shard and n is not primary]

    def stop(self) -> None:
        """Stop every node."""
        for node in self.nodes:
            node.resume()
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                node.stop()


@contextlib.contextmanager
def cluster(folder: Path, **given: Any) -> Iterator[Cluster]:
    """A running cluster, for as long as this lasts."""
    made = Cluster(folder, **given)
    try:
        made.start()
        yield made
    finally:
        made.stop()
