"""A running `hordechat web`, as the operating system sees it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from hordechat import commands, settings
from hordechat.datadir import free_port
from tests.orphans import leave_none


@dataclass
class Web:
    """A running `hordechat web`."""

    process: subprocess.Popen[bytes]
    port: int
    key: str
    environ: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    @contextlib.contextmanager
    def connection(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as opened:
            yield opened


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for it."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def ready(web: Web) -> bool:
    try:
        return httpx.get(f"{web.url}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


@contextlib.contextmanager
def served(
    redis_url: str, database_url: str, folder: Path, *, drain_seconds: int = 2
) -> Iterator[Web]:
    """One of two workers, on an empty Redis and Postgres. Nothing may go wrong in it but what is
    killed."""
    port = free_port()
    environ = {
        "REDIS_URL": redis_url,
        "DATABASE_URL": database_url,
        "HORDE_SECRET": "s",
        "HORDE_DRAIN_SECONDS": str(drain_seconds),
        "HORDE_WEB_WORKERS": "2",
        # Servers that are there answer, on a busy machine too.
        "HORDE_REDIS_TIMEOUT_SECONDS": "20",
        "HORDE_DATABASE_TIMEOUT_SECONDS": "20",
    }
    loaded = settings.load(environ)
    commands.migrate(loaded)
    user = commands.user_create(loaded, name="o", kudos=0, trusted=True, moderator=False)
    command = [sys.executable, "-m", "hordechat", "web", "--port", str(port)]
    command += ["--data-dir", str(folder)]
    with (folder / "web.log").open("wb") as out:
        process = subprocess.Popen(command, env=os.environ | environ, stderr=out)
        leave_none(process.pid)
        made = Web(process, port, str(user["api_key"]), environ)
        try:
            until(lambda: ready(made))
            yield made
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(60)
    lines = (folder / "web.log").read_text().splitlines()
    assert all(json.loads(line)["process"] == "web" for line in lines)
    errors = [line for line in lines if '"level":"error"' in line]
    assert not [line for line in errors if "SIGKILL" not in line]
