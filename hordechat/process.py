"""One child process: started as the leader of its own group, watched, stopped as a group, and ended
by a watchdog where we cannot.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from hordechat import watchdog
from hordechat.watchdog import Entry, identity, signal_group

_POLL_SECONDS = 0.01


# What a program may need from its surroundings to run at all: an interpreter built with a shared
# library outside the system's folders is found through one of these.
_SURROUNDINGS = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")


class StartFailed(Exception):
    """A process ended, or stayed silent, before it was ready."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What to start and how to stop it."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    stop_signal: int = signal.SIGTERM
    stop_seconds: float = 10.0  # from the stop signal to SIGKILL
    crash_signal: int = signal.SIGKILL  # what ends it when whoever started it was killed
    uid: int | None = None  # run as this user and group; None: as ourselves
    gid: int | None = None


def bare_environment() -> dict[str, str]:
    """The little of our own environment that an embedded server gets: no setting, no secret."""
    return {name: os.environ[name] for name in _SURROUNDINGS if name in os.environ}


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """An embedded server: its command, what clients are told, and how to know that it serves."""

    command: Command
    url: str
    prepare: Callable[
        [], None
    ]  # before each start: creates what is missing, clears what a crash left
    probe: Callable[[], bool]  # True once it serves; never raises, returns within a second or two
    settings: dict[str, str] = {}  # what else clients need, by environment variable


class Child:
    """A running command. Its output is read by whoever started it: `output`, or inherited."""

    def __init__(self, command: Command, output: int | IO[bytes] | None = None) -> None:
        """Start it in a session of its own, standard input closed. Raises OSError if it cannot be
        started.
        """
        self.command = command
        self._process = subprocess.Popen(
            command.argv,
            env=command.env,
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            start_new_session=True,
            user=command.uid,
            group=command.gid,
            extra_groups=[] if command.uid is not None else None,
        )
        self.pid = self._process.pid
        self.started = identity(self.pid)
        self.output = self._process.stdout

    def entry(self) -> Entry:
        """What the watchdog has to know of it."""
        return {"pid": self.pid, "started": self.started, "signal": self.command.crash_signal}

    def ended(self) -> int | None:
        """Its exit code (negative: the signal) once the leader ended, else None. The group may
        still live.

        The leader is left a zombie until `reap`, so that nobody can get its pid while we signal its
        group.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            result = os.waitid(os.P_PID, self.pid, flags)
        except ChildProcessError:
            return self._process.poll()
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def send(self, number: int) -> None:
        """Signal the leader, if it has not ended."""
        if self.ended() is None:
            self._process.send_signal(number)

    def ask_to_stop(self) -> None:
        """Send the stop signal; wake the leader if somebody had paused it, or it would not hear."""
        self.send(self.command.stop_signal)
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the whole group."""
        if self._process.returncode is None:
            signal_group(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Kill what is left of the group, collect the leader and return its exit code."""
        self.kill()
        code = self._process.wait()
        if self.output is not None:
            self.output.close()
        return code

    def stop(self) -> int:
        """Ask it to stop, wait as long as its command allows, kill the rest; return the code."""
        self.ask_to_stop()
        deadline = time.monotonic() + self.command.stop_seconds
        while self.ended() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return self.reap()


class Watchdog:
    """A process of its own that ends our children when we die without a word, even by a kill."""

    def __init__(self) -> None:
        """Start it, with nobody to end."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether it still watches."""
        return self._process.poll() is None

    def watch(self, entries: Sequence[Entry]) -> None:
        """These are all that run now. If the watchdog is gone, nobody is told."""
        self._say(msgspec.json.encode(entries))

    def dismiss(self) -> None:
        """Whoever was to be ended has ended: let it go, and wait until it went."""
        self._say(watchdog.DONE.encode())
        assert self._process.stdin is not None  # noqa: S101  a pipe, we asked for it
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101  a pipe, we asked for it
        with contextlib.suppress(OSError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()


def wait_ready(child: Child, probe: Callable[[], bool], seconds: float) -> None:
    """Wait until the probe answers True. Raises StartFailed if the child ends or the time is up."""
    deadline = time.monotonic() + seconds
    while not probe():
        code = child.ended()
        if code is not None:
            raise StartFailed(f"{child.command.name} ended with exit code {code} before it served")
        if time.monotonic() > deadline:
            raise StartFailed(f"{child.command.name} did not serve within {seconds:g} s")
        time.sleep(_POLL_SECONDS)


@contextmanager
def running(service: Service, log: Path, seconds: float = 30.0) -> Iterator[Child]:
    """Prepare and start a server, its output appended to a file; stopped on the way out, and ended
    if we are killed before. Raises StartFailed.
    """
    service.prepare()
    guard = Watchdog()
    child = None
    try:
        with log.open("ab") as output, _undisturbed():
            child = Child(service.command, output)
            guard.watch([child.entry()])
        try:
            wait_ready(child, service.probe, seconds)
        except StartFailed as error:
            tail = log.read_text(errors="replace").splitlines()[-20:]
            raise StartFailed("\n".join([str(error), *tail])) from None
        yield child
    finally:
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.stop()
        guard.dismiss()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would unwind us come when the block is through: an exception in the middle of a
    start would leave a child of which nobody knows.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no handler runs here
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        signal.signal(number, lambda caught, _frame: came.append(caught))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for caught in came:
            signal.raise_signal(caught)
