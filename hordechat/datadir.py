"""The data directory of one `up`: its lock, its secrets, its ports and what it tells other
commands.

lock              held by `up` for its life
secret            the deployment secret, 0600
run.json          what `hordechat info` prints, and who the children are; there while `up` runs
environment.json  the settings in force, for other commands, 0600; there while `up` runs
ports.json        the port of each embedded server
valkey/ postgres/ s3/
"""

import atexit
import fcntl
import os
import random
import secrets
import socket
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from hordechat.watchdog import Entry

# Below the range from which systems take ports for outgoing connections: while a server restarts,
# no client's connection can sit on its port (and none can connect to itself, which happens when it
# dials its own source port).
_PORTS = range(20_000, 32_000)
_ATTEMPTS = 200
_claims: dict[int, socket.socket] = {}  # by port; each is let go when this process ends


class DataDirError(Exception):
    """The data directory cannot be used as asked; the message says why."""


class Run(msgspec.Struct, kw_only=True):
    """What one `up` is running: the content of run.json."""

    url: str
    redis_url: str
    database_url: str
    s3_endpoint_url: str
    pid: int  # of `up`
    processes: dict[str, int] = {}  # pid by process name; of the latest start of each
    children: list[Entry] = []  # the same processes, for ending them when `up` was killed


class DataDir:
    """Paths and files under one data directory."""

    def __init__(self, path: Path) -> None:
        """Name the directory; nothing is created before `create`."""
        self.path = path.absolute()

    def create(self) -> None:
        """Create it, readable by its owner alone, and keep it out of any git checkout that it lies
        in.
        """
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700, parents=True)
            self.write(".gitignore", b"*\n")

    def lock(self) -> "Lock":
        """Take the directory for this process. Raises DataDirError if another `up` has it."""
        return Lock(self.path / "lock")

    def in_use(self) -> bool:
        """Whether an `up` runs on this directory now."""
        try:
            with self.lock():
                return False
        except DataDirError:
            return True
        except FileNotFoundError:
            return False

    def write(self, name: str, content: bytes) -> None:
        """Replace a file in one step: readers see the old or the new content, whole. Mode 0600."""
        new = self.path / f"{name}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        new.replace(self.path / name)

    def secret(self, name: str) -> str:
        """A random key kept in a file of this name (0600), created on first use."""
        file = self.path / name
        if not file.exists():
            self.write(name, secrets.token_hex(32).encode())
        return file.read_text().strip()

    def port(self, name: str) -> int:
        """The port of a server: the one it had, if nobody else took it, else a free one."""
        file = self.path / "ports.json"
        ports: dict[str, int] = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
        known = ports.get(name, 0)
        if not (port_is_free("127.0.0.1", known) and claim(known)):
            ports[name] = free_port(exclude=set(ports.values()))
            self.write("ports.json", msgspec.json.encode(ports))
        return ports[name]

    def write_run(self, run: Run) -> None:
        """Publish what runs."""
        self.write("run.json", msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n")

    def read_run(self) -> Run | None:
        """What was published last, even by an `up` that was killed; None if the last one stopped in
        order.
        """
        try:
            return msgspec.json.decode((self.path / "run.json").read_bytes(), type=Run)
        except FileNotFoundError:
            return None

    def write_environment(self, environ: dict[str, str]) -> None:
        """Publish the settings in force."""
        self.write("environment.json", msgspec.json.encode(environ))

    def read_environment(self) -> dict[str, str]:
        """The settings in force; empty if no `up` runs here."""
        if not self.in_use():
            return {}
        try:
            content = (self.path / "environment.json").read_bytes()
        except FileNotFoundError:
            return {}
        return msgspec.json.decode(content, type=dict[str, str])

    def clear_run(self) -> None:
        """Say that nothing runs here any more."""
        for name in ("run.json", "environment.json"):
            (self.path / name).unlink(missing_ok=True)


class Lock:
    """An advisory lock on a file, released when this process ends in whatever way."""

    def __init__(self, path: Path) -> None:
        """Take it. Raises DataDirError if another process has it, FileNotFoundError without a
        directory.
        """
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise DataDirError(
                f"Another `hordechat up` runs on {path.parent}. "
                "Stop it, or choose another --data-dir."
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now; port 0 never is."""
    if port == 0:
        return False
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def claim(port: int) -> bool:
    """Whether no other process of ours means to use the port. From now on, and for as long as this
    one lives, it is ours: a server takes seconds to start, and may have to start again.

    Where the system has no abstract sockets, chance alone keeps two apart.
    """
    if port in _claims or not sys.platform.startswith("linux"):
        return True
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0hordechat-port-{port}")
    except OSError:
        held.close()
        return False
    atexit.register(held.close)  # or Python tells of it as of one that was forgotten
    _claims[port] = held
    return True


def free_port(host: str = "127.0.0.1", exclude: set[int] | None = None) -> int:
    """A port on which nobody listens, which no outgoing connection gets, and which nobody else is
    given while this process lives. Raises DataDirError if there is none.
    """
    taken = (exclude or set()) | _claims.keys()
    for port in random.SystemRandom().sample(_PORTS, _ATTEMPTS):
        if port not in taken and port_is_free(host, port) and claim(port):
            return port
    raise DataDirError(f"No free port on {host} between {_PORTS.start} and {_PORTS.stop}")
