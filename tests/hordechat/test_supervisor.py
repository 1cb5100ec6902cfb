"""`hordechat up` as its users see it: a program, signals, files and lines; with small processes of
our own.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from hordechat.datadir import DataDir
from hordechat.watchdog import identity
from tests.orphans import leave_none

# A process: serves health if it is `web`, starts a child of its own, notes its end in the file
# `ends`.
PROCESS = """
import http.server, os, signal, subprocess, sys, threading
name, folder = sys.argv[1:3]
def note(file, text):
    with open(os.path.join(folder, file), "a") as out:
        out.write(text + "\\n")
def end(*_):
    note("ends", name)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
helper = subprocess.Popen(["/bin/sleep", "600"])
note("helpers." + name, str(helper.pid))
note("secrets", os.environ["HORDE_SECRET"])
if name == "web":
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health/ready" else 404)
            self.end_headers()
        def log_message(self, *_):
            pass
    address = (os.environ["HOST"], int(os.environ["PORT"]))
    http.server.ThreadingHTTPServer.allow_reuse_address = True
    threading.Thread(
        target=http.server.ThreadingHTTPServer(address, Handler).serve_forever, daemon=True
    ).start()
while True:
    signal.pause()
"""
ELSEWHERE = {
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "DATABASE_URL": "postgresql://127.0.0.1:1/x",
    "S3_ENDPOINT_URL": "http://127.0.0.1:1",
    "S3_ACCESS_KEY": "a",
    "S3_SECRET_KEY": "s",
}


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for a condition; fail when the time is up."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process ended (a zombie counts as ended)."""
    return identity(pid) == ""


class Up:
    """A running `hordechat up`."""

    def __init__(self, folder: Path, lines: dict[str, str], env: dict[str, str], *flags: str):
        self.folder = folder
        self.data = DataDir(folder / "data")
        program = folder / "process.py"
        program.write_text(PROCESS)
        procfile = folder / "Procfile"
        procfile.write_text(
            "".join(
                f"{name}: {line.format(run=f'{sys.executable} {program} {name} {folder}')}\n"
                for name, line in lines.items()
            )
        )
        self.errors = folder / "stderr"
        command = ["-m", "hordechat", "up", "--data-dir", str(self.data.path)]
        port = [] if "--port" in flags else ["--port", "0"]
        clean = {
            k: v for k, v in os.environ.items() if k not in ELSEWHERE and not k.startswith("HORDE_")
        }
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *command, "--procfile", str(procfile), *port, *flags],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=clean | env,
                text=True,
            )
        leave_none(self.process.pid)

    def ready(self) -> "Up":
        """Wait for the line on stdout."""
        line = self.process.stdout.readline()
        assert line == f"hordechat is ready at {self.run.url}\n", self.errors.read_text()
        return self

    @property
    def run(self):
        return self.data.read_run()

    def pid(self, name: str) -> int:
        return self.run.processes[name]

    def helpers(self, name: str) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            return [int(n) for n in (self.folder / f"helpers.{name}").read_text().split()]
        return []

    def lines(self, event: str) -> list[dict]:
        found = [json.loads(line) for line in self.errors.read_text().splitlines()]
        return [line for line in found if line["event"] == event]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)

    def everyone(self) -> list[int]:
        """Pids of all processes and their helpers."""
        names = self.run.processes
        return [*names.values(), *(pid for name in names for pid in self.helpers(name))]


LINES = {"release": "true", "web": "{run}", "settler": "{run}"}


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def begin(*flags: str, lines: dict[str, str] = LINES, env: dict[str, str] = ELSEWHERE) -> Up:
        up = Up(tmp_path, lines, env, *flags)
        started.append(up)
        return up

    yield begin
    for up in started:
        with up.process:
            up.process.kill()
    leftover = DataDir(tmp_path / "data").read_run()
    if leftover:
        until(lambda: all(gone(child["pid"]) for child in leftover.children))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_stops_without_a_trace(start, number):
    up = start().ready()
    until(lambda: up.helpers("settler"))
    pids = up.everyone()
    assert len(pids) == 4

    assert up.stop(number) == 0

    assert all(gone(pid) for pid in pids)
    assert up.process.stdout.read() == ""
    assert up.run is None
    assert not up.data.in_use()


def test_info_prints_what_runs(start):
    up = start().ready()

    done = subprocess.run(
        [sys.executable, "-m", "hordechat", "info", "--data-dir", up.data.path],
        capture_output=True,
        check=True,
        text=True,
    )

    found = json.loads(done.stdout)
    assert found["url"] == up.run.url
    assert found["redis_url"] == ELSEWHERE["REDIS_URL"]
    assert found["processes"].keys() == {"web", "settler"}
    assert not any(gone(pid) for pid in found["processes"].values())


def test_web_stops_first(start):
    up = start(lines=LINES | {"janitor": "{run}", "projector_status": "{run}"}).ready()
    until(lambda: all(up.helpers(name) for name in up.run.processes))

    up.stop()

    first, *others = (up.folder / "ends").read_text().split()
    assert first == "web"
    assert sorted(others) == ["janitor", "projector_status", "settler"]


def test_one_that_is_killed_is_started_again_and_its_helpers_with_it(start):
    up = start().ready()
    until(lambda: up.helpers("settler"))
    before = up.pid("settler")
    (helper,) = up.helpers("settler")

    os.kill(before, signal.SIGKILL)

    until(lambda: up.pid("settler") != before and len(up.helpers("settler")) == 2)
    assert gone(helper)
    assert not gone(up.pid("settler"))
    (line,) = up.lines("ended")
    assert (line["name"], line["pid"], line["exit_code"]) == ("settler", before, -9)


def test_one_that_never_lives_is_started_less_and_less_often(start):
    up = start(lines=LINES | {"janitor": "false"}).ready()

    until(lambda: len(up.lines("ended")) >= 4)

    delays = [line["restart_seconds"] for line in up.lines("ended")]
    assert delays[:4] == [0.2, 0.4, 0.8, 1.6]


def test_a_program_that_does_not_exist_does_not_stop_the_others(start):
    up = start(lines=LINES | {"janitor": "/nowhere/at/all"}).ready()

    until(lambda: up.lines("not started"))
    assert up.stop() == 0


def test_a_second_one_on_the_same_data_is_refused(start):
    up = start().ready()
    second = Up(up.folder, LINES, ELSEWHERE)

    assert second.process.wait(20) == 1
    assert "Another `hordechat up` runs on" in up.errors.read_text()
    assert second.process.stdout.read() == ""
    second.process.stdout.close()
    assert not gone(up.pid("web"))


def test_a_port_in_use_is_refused(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = start("--port", str(port))
        assert up.process.wait(20) == 1

    assert f"Port {port} on 127.0.0.1 is in use" in up.errors.read_text()


def test_a_failed_release_stops_all(start):
    up = start(lines={"release": "false", "web": "{run}"})

    assert up.process.wait(20) == 1
    assert "release step (false) failed with exit code 1" in up.errors.read_text()
    assert up.helpers("web") == []


def test_a_signal_during_the_release_stops_it(start):
    up = start(lines={"release": "/bin/sleep 600", "web": "{run}"})
    until(lambda: up.run and "release" in up.run.processes)
    pid = up.pid("release")

    assert up.stop() == 0
    assert gone(pid)


def test_when_it_is_killed_nothing_outlives_it(start):
    up = start().ready()
    until(lambda: up.helpers("settler"))
    pids = up.everyone()

    up.stop(signal.SIGKILL)

    until(lambda: all(gone(pid) for pid in pids))


def test_what_outlived_it_nevertheless_is_ended_by_the_next(start):
    """Both it and its watchdog are killed."""
    up = start().ready()
    until(lambda: up.helpers("settler"))
    pids = up.everyone()
    (watchdog,) = children_named(up.process.pid, "watchdog.py")
    up.process.send_signal(signal.SIGSTOP)  # or it would start another watchdog
    os.kill(watchdog, signal.SIGKILL)
    up.stop(signal.SIGKILL)
    assert not any(gone(pid) for pid in pids)

    again = start("--port", up.run.url.rpartition(":")[2]).ready()

    assert all(gone(pid) for pid in pids)
    assert again.lines("ended what an earlier `up` had left running")


def test_a_watchdog_that_is_killed_is_replaced(start):
    up = start().ready()
    (before,) = children_named(up.process.pid, "watchdog.py")

    os.kill(before, signal.SIGKILL)

    until(lambda: children_named(up.process.pid, "watchdog.py") not in ([], [before]))
    pids = up.everyone()
    up.stop(signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in pids))


def children_named(pid: int, name: str) -> list[int]:
    """Pids of the living children of a process with this word in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid and name in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
    return found


def test_nobody_reading_its_stderr_stops_nothing(tmp_path):
    """A pipe holds 64 KiB; the processes write 2 MiB before they serve."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HORDE_")} | ELSEWHERE
    program = tmp_path / "process.py"
    program.write_text(PROCESS)
    script = tmp_path / "noisy.sh"
    noise = f"{sys.executable} -c \"print(('y' * 1023 + chr(10)) * 2048)\""
    script.write_text(f"{noise}\nexec {sys.executable} {program} web {tmp_path}\n")
    procfile = tmp_path / "Procfile"
    procfile.write_text(f"web: /bin/sh {script}\n")
    command = [sys.executable, "-m", "hordechat", "up", "--port", "0"]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data"), "--procfile", str(procfile)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    ) as process:
        assert process.stdout.readline().startswith(b"hordechat is ready at http://127.0.0.1:")
        process.terminate()
        assert process.wait(20) == 0


def test_the_secret_is_made_once_and_told_to_all(start):
    for told in (2, 4):
        up = start().ready()
        until(lambda up=up, told=told: _secrets(up).count(up.data.secret("secret")) == told)
        up.stop()

    assert set((up.folder / "secrets").read_text().split()) == {up.data.secret("secret")}


def _secrets(up) -> list[str]:
    file = up.folder / "secrets"
    return file.read_text().split() if file.exists() else []


def test_flags_win_over_the_environment(start):
    env = {**ELSEWHERE, "HORDE_PARTITIONS": "3", "HORDE_WEB_WORKERS": "2"}
    up = start("--partitions", "4", env=env).ready()

    found = up.data.read_environment()

    assert (found["HORDE_PARTITIONS"], found["HORDE_WEB_WORKERS"]) == ("4", "2")


def test_a_setting_out_of_bounds_is_refused_by_its_name(start):
    up = start(env={**ELSEWHERE, "HORDE_PARTITIONS": "none"})

    assert up.process.wait(20) == 1
    assert "HORDE_PARTITIONS: Expected `int`" in up.errors.read_text()


def test_embedded_servers_start_restart_and_keep_their_data(start):
    up = start(env={}).ready()
    assert up.run.processes.keys() == {"web", "settler", "valkey", "postgres", "s3"}
    run = up.run
    with redis.Redis.from_url(run.redis_url) as client:
        client.set("key", "value")
    with psycopg.connect(run.database_url) as connection:
        connection.execute("CREATE TABLE kept (x int)")

    for name in ("valkey", "postgres", "s3"):
        before = up.pid(name)
        os.kill(before, signal.SIGKILL)
        until(lambda name=name, before=before: up.pid(name) != before)

    until(lambda: _reads(run), seconds=30)
    assert up.stop() == 0
    again = start(env={}).ready()
    assert again.run.redis_url == run.redis_url
    assert again.run.database_url == run.database_url
    assert _reads(again.run)
    pids = again.everyone()
    again.stop(signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in pids))


def _reads(run) -> bool:
    """Whether both servers answer with what was written."""
    with contextlib.suppress(redis.RedisError, psycopg.OperationalError):
        with redis.Redis.from_url(run.redis_url) as client:
            assert client.get("key") == b"value"
        with psycopg.connect(run.database_url) as connection:
            connection.execute("SELECT * FROM kept")
        return True
    return False


def test_lines_of_processes_are_json(start, tmp_path):
    script = tmp_path / "says.py"
    script.write_text("""print('plain words\\nError: why'); print('{"event":"own","n":1}')\n""")
    up = start(lines=LINES | {"janitor": f"{sys.executable} {script}"}).ready()

    until(lambda: up.lines("own") and up.lines("plain words"))

    assert up.lines("own")[0] == {"event": "own", "n": 1}
    assert up.lines("plain words")[0]["process"] == "janitor"
    assert up.lines("plain words")[0]["level"] == "info"
    until(lambda: up.lines("Error: why"))
    assert up.lines("Error: why")[0]["level"] == "error"


def test_a_paused_process_stops_too(start):
    up = start().ready()
    until(lambda: up.helpers("settler"))
    os.kill(up.pid("settler"), signal.SIGSTOP)

    assert up.stop() == 0
    assert "settler" in (up.folder / "ends").read_text()
