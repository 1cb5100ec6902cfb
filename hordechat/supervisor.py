"""`hordechat up`: embedded servers, the release step and every process of the Procfile, kept
running until told to stop.

One thread and one loop: children's output, their ends and our signals all wake the same `select`.
The children's lines go to stderr as JSON, through a queue that never blocks the loop. Nothing here
knows what the processes do.
"""

import contextlib
import http.client
import logging
import os
import queue
import selectors
import shlex
import signal
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

import honcho.environ
import msgspec
import structlog

from hordechat import logs, settings, watchdog
from hordechat.datadir import DataDir, DataDirError, Run, free_port, port_is_free
from hordechat.embedded import postgres, s3, valkey
from hordechat.opening import CannotOpen
from hordechat.process import Child, Command, Service, StartFailed, Watchdog

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 10.0
_HEALTHY_SECONDS = 30.0  # a life this long clears the back-off
_FAILED_STARTS = 5  # of a server that never served: its data or its port is the trouble, not chance
_START_SECONDS = 120.0  # a crashed Postgres, or a long append-only file, takes its time
_LEFTOVER_SECONDS = 3.0  # killed processes of an earlier `up` may hold the port for a moment
_POLL_SECONDS = 0.05
_READ_BYTES = 65_536
_LINE_BYTES = 65_536  # a longer line is cut into several
_QUEUED_LINES = 10_000
_GATHER_SECONDS = 0.025  # before reading busy children: lines come by the chunk, not one by one


class LogWriter:
    """A text stream that never blocks its writer: a thread hands the lines on, and drops them when
    nobody reads.

    If stderr is a pipe that nobody empties, children must not stop working for it.
    """

    def __init__(self, target: TextIO) -> None:
        """Start the thread."""
        self._target = target
        self._lines: queue.Queue[str | None] = queue.Queue(_QUEUED_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._copy, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Queue the text; count it as dropped if the queue is full."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._dropped += 1
        return len(text)

    def flush(self) -> None:
        """Nothing to do: the thread flushes."""

    def close(self, seconds: float = 1.0) -> None:
        """Wait, this long at most, until everything queued is written."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=seconds)
        self._thread.join(seconds)

    def _copy(self) -> None:
        while (text := self._lines.get()) is not None:
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                text += f'{{"level":"warning","event":"log lines dropped","count":{dropped}}}\n'
            try:
                self._target.write(text)
                self._target.flush()
            except (OSError, ValueError):
                continue  # stderr is closed: keep emptying the queue


class _Keeper:
    """One process that must run: its child, and when to start it again."""

    def __init__(
        self, command: Command, service: Service | None = None, *, once: bool = False
    ) -> None:
        self.command = command
        self.service = service
        self.once = once  # whoever added it waits for its end
        self.child: Child | None = None
        self.pid = 0  # of the latest child
        self.failed_starts = 0
        self.restart_at: float | None = None
        self.buffer = b""
        self._started_at = 0.0
        self._delay = _FIRST_DELAY

    def start(self) -> None:
        """Prepare and start the child. Raises OSError or RuntimeError."""
        self.restart_at = None
        self._started_at = time.monotonic()
        if self.service:
            self.service.prepare()
        self.child = Child(self.command, subprocess.PIPE)
        self.pid = self.child.pid

    def back_off(self) -> float:
        """Plan the next start after a failure; return the delay in seconds."""
        if time.monotonic() - self._started_at >= _HEALTHY_SECONDS:
            self._delay = _FIRST_DELAY
        delay = self._delay
        self._delay = min(delay * 2, _LONGEST_DELAY)
        self.restart_at = time.monotonic() + delay
        self.failed_starts += 1
        return delay


class Supervisor:
    """Keeps a set of processes running. Use as a context: what runs at its end is killed."""

    def __init__(self, data: DataDir, run: Run, log: LogWriter) -> None:
        """Take over the signals SIGTERM, SIGINT and SIGHUP of this process, and start the watchdog.

        data  its run.json is kept up to date from `run`
        log   where the children's lines go
        """
        self._data = data
        self._run = run
        self._log = log
        self._logger = structlog.get_logger()
        self._keepers: list[_Keeper] = []
        self._selector = selectors.DefaultSelector()
        self._signals = 0
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # so that it wakes us
        self._watchdog = Watchdog()

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        for keeper in self._keepers:
            if keeper.child:
                keeper.child.reap()
        self._watchdog.dismiss()
        signal.set_wakeup_fd(-1)

    @property
    def asked_to_stop(self) -> bool:
        """Whether a signal asked us to."""
        return self._signals > 0

    def add(self, command: Command, service: Service | None = None) -> None:
        """Start a process and keep it running from now on."""
        keeper = _Keeper(command, service)
        self._keepers.append(keeper)
        self._start(keeper)

    def wait_served(self) -> bool:
        """Wait until every service serves; False if we were asked to stop. Raises StartFailed."""
        deadline = time.monotonic() + _START_SECONDS
        waiting = [keeper for keeper in self._keepers if keeper.service]
        while waiting and not self.asked_to_stop:
            waiting = [k for k in waiting if not (k.child and k.service and k.service.probe())]
            for keeper in waiting:
                if keeper.failed_starts >= _FAILED_STARTS or time.monotonic() > deadline:
                    raise StartFailed(
                        f"The embedded {keeper.command.name} does not start; its own words are in "
                        "the log lines above"
                    )
            if waiting:
                self._step(_POLL_SECONDS)
        return not self.asked_to_stop

    def run_once(self, command: Command) -> bool:
        """Run a command to its end; False if we were asked to stop meanwhile. Raises StartFailed if
        it fails.
        """
        keeper = _Keeper(command, once=True)
        keeper.start()
        child = keeper.child
        assert child is not None  # noqa: S101  just started
        self._watch(keeper)
        self._keepers.append(keeper)
        self._publish()
        while child.ended() is None and not self.asked_to_stop:
            self._step(1.0)
        self._keepers.remove(keeper)
        code = child.ended()
        self._finish(keeper)
        self._run.processes.pop(command.name, None)
        if code not in (0, None):
            raise StartFailed(
                f"The release step ({shlex.join(command.argv)}) failed with exit code {code}"
            )
        return not self.asked_to_stop

    def keep_running(self) -> None:
        """Restart what ends, until a signal comes."""
        while not self.asked_to_stop:
            self._step(60.0)

    def stop(self, *order: Iterable[str]) -> None:
        """Stop the named processes, group after group; a second signal kills what is left."""
        self._stopping = True
        for names in order:
            group = [k for k in self._keepers if k.command.name in set(names)]
            started = time.monotonic()
            for keeper in group:
                if keeper.child:
                    keeper.child.ask_to_stop()
            while running := [k for k in group if k.child]:
                for keeper in running:
                    late = time.monotonic() - started > keeper.command.stop_seconds
                    if keeper.child and (late or self._signals > 1):
                        self._logger.warning("killed", name=keeper.command.name, late=late)
                        keeper.child.kill()
                self._step(0.2)
        self._logger.info("stopped")

    def _start(self, keeper: _Keeper) -> None:
        try:
            keeper.start()
        except (OSError, RuntimeError) as error:
            delay = keeper.back_off()
            self._logger.error(  # noqa: TRY400  the sentence says it all
                "not started", name=keeper.command.name, reason=str(error), retry_seconds=delay
            )
            return
        self._watch(keeper)
        self._publish()
        self._logger.info("started", name=keeper.command.name, pid=keeper.pid)

    def _watch(self, keeper: _Keeper) -> None:
        output = keeper.child.output if keeper.child else None
        assert output is not None  # noqa: S101  started with a pipe
        os.set_blocking(output.fileno(), False)
        keeper.buffer = b""
        self._selector.register(output, selectors.EVENT_READ, keeper)

    def _step(self, seconds: float) -> None:
        """Wait for anything to happen, this long at most, and deal with it."""
        now = time.monotonic()
        restarts = [k.restart_at for k in self._keepers if k.restart_at and not self._stopping]
        timeout = max(0.0, min([seconds, *(at - now for at in restarts)]))
        ready = self._selector.select(timeout)
        if ready and all(key.data is not None for key, _ in ready):
            time.sleep(_GATHER_SECONDS)
        for key, _ in ready:
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, _READ_BYTES)
            elif not self._forward(key.data):
                self._selector.unregister(
                    key.fileobj
                )  # closed; the end of the process is seen below
        if not self._watchdog.alive and not self._stopping:
            self._logger.warning("watchdog ended; starting another")
            self._watchdog = Watchdog()
            self._publish()
        for keeper in self._keepers:
            if not keeper.once:
                self._look_after(keeper)

    def _look_after(self, keeper: _Keeper) -> None:
        if keeper.child and (code := keeper.child.ended()) is not None:
            self._finish(keeper)
            if not self._stopping:
                delay = keeper.back_off()
                self._logger.warning(
                    "ended",
                    name=keeper.command.name,
                    pid=keeper.pid,
                    exit_code=code,
                    restart_seconds=delay,
                )
        if keeper.restart_at and not self._stopping and keeper.restart_at <= time.monotonic():
            self._start(keeper)

    def _finish(self, keeper: _Keeper) -> None:
        """Pass on the last output of an ended child, kill the rest of its group, forget it."""
        child = keeper.child
        if child is None:
            return
        child.kill()
        assert child.output is not None  # noqa: S101  started with a pipe
        while self._forward(keeper) is True:
            pass
        if keeper.buffer:
            self._emit(keeper.command.name, [keeper.buffer])
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(child.output)
        child.reap()
        keeper.child = None
        self._publish()

    def _forward(self, keeper: _Keeper) -> bool | None:
        """Pass on what the child wrote: True if there was something, False at the end, None if
        nothing is there now.
        """
        assert keeper.child is not None  # noqa: S101  only called for running children
        assert keeper.child.output is not None  # noqa: S101  started with a pipe
        try:
            chunk = os.read(keeper.child.output.fileno(), _READ_BYTES)
        except BlockingIOError:
            return None
        if not chunk:
            return False
        *lines, keeper.buffer = (keeper.buffer + chunk).split(b"\n")
        if len(keeper.buffer) > _LINE_BYTES:
            lines.append(keeper.buffer)
            keeper.buffer = b""
        self._emit(keeper.command.name, lines)
        return True

    def _emit(self, name: str, lines: list[bytes]) -> None:
        """Write a child's lines: JSON objects as they are, plain text as the event of a line of
        ours, at level error for the sentence that a command of ours fails with.
        """
        objects: list[str] = []
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text.startswith("{") and text.endswith("}"):
                objects.append(text + "\n")
            elif text:
                failed = text.startswith("Error: ")  # how our own commands end
                self._logger.log(logging.ERROR if failed else logging.INFO, text, process=name)
        if objects:
            self._log.write("".join(objects))

    def _publish(self) -> None:
        """Bring run.json and the watchdog up to date."""
        children: list[watchdog.Entry] = []
        for keeper in self._keepers:
            if keeper.pid:
                self._run.processes[keeper.command.name] = keeper.pid
            if keeper.child:
                children.append(keeper.child.entry())
        self._run.children = children
        self._data.write_run(self._run)
        self._watchdog.watch(children)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._signals += 1


def procfile_path() -> Path:
    """The Procfile of this checkout, or the one inside the installed wheel."""
    package = Path(__file__).parent
    return next(
        path for path in (package.parent / "Procfile", package / "Procfile") if path.exists()
    )


def read_procfile(path: Path, environ: Mapping[str, str], cwd: Path) -> dict[str, Command]:
    """The Procfile's commands by name. `hordechat` is this very interpreter's; `$NAME` reads
    `environ`.
    """
    try:
        processes = honcho.environ.parse_procfile(path.read_text()).processes
    except (AssertionError, UnicodeDecodeError) as error:  # its way to say so
        raise CannotOpen(f"{path} is no Procfile: {error}") from None
    commands = {}
    for name, line in processes.items():
        program, *arguments = shlex.split(string.Template(line).safe_substitute(environ))
        # By this interpreter, and without the current folder in front of sys.path: it is the
        # user's, not ours.
        ours = [sys.executable, "-P", "-m", "hordechat"]
        start = ours if program == "hordechat" else [program]
        commands[name] = Command(
            name=name, argv=(*start, *arguments), env=dict(environ), cwd=cwd, stop_seconds=15.0
        )
    return commands


def up(
    given: settings.Settings,
    data: DataDir,
    environ: Mapping[str, str],
    procfile: Path | None = None,
) -> int:
    """Run everything until SIGTERM or SIGINT; return the exit code.

    given     settings from flags and environment; what they leave open is made and kept in `data`
    environ   what the processes inherit
    procfile  instead of ours

    Prints one line on stdout once the service is ready; all else goes to stderr as JSON lines.
    """
    log = LogWriter(sys.stderr)
    logs.configure(given.log_level, "up", log)
    logger = structlog.get_logger()
    try:
        data.create()
        with data.lock():
            return _up(given, data, environ, procfile or procfile_path(), log)
    except (DataDirError, StartFailed, OSError) as error:
        logger.error("up failed", reason=str(error))  # noqa: TRY400  a sentence for the operator, not a bug
        return 1
    finally:
        log.close()


def _up(
    given: settings.Settings,
    data: DataDir,
    environ: Mapping[str, str],
    procfile: Path,
    log: LogWriter,
) -> int:
    logger = structlog.get_logger()
    leftover = data.read_run()
    if leftover and (count := watchdog.end_all(leftover.children)):
        logger.warning("ended what an earlier `up` had left running", count=count)
    port = given.port or free_port(given.host)
    deadline = time.monotonic() + (_LEFTOVER_SECONDS if leftover else 0.0)
    while not port_is_free(given.host, port):
        if time.monotonic() > deadline:
            raise DataDirError(
                f"Port {port} on {given.host} is in use. "
                "Choose another with --port (0: a free one)."
            )
        time.sleep(_POLL_SECONDS)
    services = list(_services(given, data))
    in_force = msgspec.structs.replace(
        given, port=port, secret=given.secret or data.secret("secret")
    )
    for service in services:
        in_force = settings.load(settings.to_environ(in_force) | service.settings)
    url = f"http://{_bracketed(given.host)}:{port}"
    run = Run(
        url=url,
        redis_url=in_force.redis_url,
        database_url=in_force.database_url,
        s3_endpoint_url=in_force.s3_endpoint_url,
        pid=os.getpid(),
    )
    explicit = settings.to_environ(in_force)
    env = {
        **environ,
        **explicit,
        "HOST": in_force.host,
        "PORT": str(port),
        "WEB_WORKERS": str(in_force.web_workers),
        "PYTHONUNBUFFERED": "1",
    }
    commands = read_procfile(procfile, env, Path.cwd())
    release = commands.pop("release", None)
    servers = [service.command.name for service in services]
    with Supervisor(data, run, log) as supervisor:
        try:
            for service in services:
                supervisor.add(service.command, service)
            data.write_environment(explicit)
            if supervisor.wait_served() and (release is None or supervisor.run_once(release)):
                for command in commands.values():
                    supervisor.add(command)
                _announce_when_ready(in_force.host, port, url)
                supervisor.keep_running()
        finally:
            supervisor.stop({"web"}, commands.keys() - {"web"}, servers)
            data.clear_run()
    return 0


def _services(given: settings.Settings, data: DataDir) -> Iterator[Service]:
    """An embedded server for each one that the settings do not name; `settings` of each hold its
    URL too.
    """
    if not given.redis_url:
        found = valkey.service(
            data.path / "valkey",
            data.port("valkey"),
            password=data.secret("valkey-password"),
            socket=True,
        )
        yield msgspec.structs.replace(found, settings={"REDIS_URL": found.url})
    if not given.s3_endpoint_url:
        found = s3.service(
            data.path / "s3",
            data.port("s3"),
            access_key=data.secret("s3-access-key")[:20],
            secret_key=data.secret("s3-secret-key"),
        )
        yield msgspec.structs.replace(
            found, settings=found.settings | {"S3_ENDPOINT_URL": found.url}
        )
    if not given.database_url:
        found = postgres.service(
            data.path / "postgres",
            data.port("postgres"),
            password=data.secret("postgres-password"),
            partitions=given.partitions,
        )
        yield msgspec.structs.replace(found, settings={"DATABASE_URL": found.url})


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _announce_when_ready(host: str, port: int, url: str) -> None:
    """Print the line that others wait for, from a thread: a health check may take its time."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  compared, not bound

    def announce() -> None:
        while not _answers_ready(reachable, port):
            time.sleep(_POLL_SECONDS)
        with contextlib.suppress(OSError):
            print(f"hordechat is ready at {url}", flush=True)

    threading.Thread(target=announce, name="ready", daemon=True).start()


def _answers_ready(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
