"""`make demo`: the whole service on a data directory of its own, one streamed chat job through it,
and what it left behind, shown to a reader."""

import asyncio
import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import httpx
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from events.base import KUDOS, Position
from events.keys import Keys
from hordechat import settings
from hordechat.datadir import DataDir
from lua.link import blocking_client

MODEL = "echo"
QUESTION = (
    "Hello! This sentence travels as a chat request through an event log to a worker that pulled "
    "it, comes back in small pieces while it is being written, and is told here as it arrives."
)
_READY_SECONDS = 180.0
_MOST_STARTS = 4
_ANSWER_SECONDS = 30.0
_RELEASE_SECONDS = 5.0
_AGAIN = {"UnknownChatModel", "NoEligibleWorker", "ReadModelBehind", "TooManyRequests"}
"""Refusals of a request that came before the read model showed the worker, or too soon after it."""
_UP_STOP_SECONDS = 60.0
_WORKER_STOP_SECONDS = 15.0
_TAIL_LINES = 15
_PLAIN_WIDTH = 110  # of output that goes to no terminal
_INTERRUPTED = 130
_UUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


class DemoFailed(Exception):
    """A step did not work; `log` is the file of the process that should know why."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


def run(data_dir: Path | None = None, *, keep: bool = False) -> int:
    """Show everything and stop everything; return the exit code.

    data_dir  where the servers keep their data; None: a new folder, removed at the end
    keep      leave the folder, and say where it is
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    folder = data_dir or Path(tempfile.mkdtemp(prefix="hordechat-demo-"))
    signal.signal(signal.SIGTERM, _interrupt)
    code = 0
    try:
        with contextlib.ExitStack() as stack:
            try:
                _show(_Stage(console, folder, stack))
            except DemoFailed as failed:
                _explain(console, failed)
                code = 1
            except KeyboardInterrupt:
                console.print("\ninterrupted", style="yellow")
                code = _INTERRUPTED
            console.print("stopping everything …", style="dim")
        if code == 0:
            console.print("[green]✓[/] stopped; nothing is left running")
    except DemoFailed as failed:
        _explain(console, failed)
        code = 1
    finally:
        if data_dir is None and not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep or data_dir:
        console.print(f"kept in {folder}; `hordechat up --data-dir {folder}` resumes there")
    return code


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


class _Stage:
    """What the steps share: where to print, where data goes, and what is running."""

    def __init__(self, console: Console, folder: Path, stack: contextlib.ExitStack) -> None:
        self.console = console
        self.data = DataDir(folder / "data")
        self.folder = folder
        self.up_log = folder / "up.log"
        self.worker_log = folder / "worker.log"
        self.stack = stack
        # The demo is closed in itself: it must not write into servers that the environment names.
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HORDE_", "S3_")) and name not in ("REDIS_URL", "DATABASE_URL")
        }

    def done(self, text: str, started: float) -> None:
        """Tick a step off."""
        line = Text.assemble(("✓ ", "green"), text)
        line.append(f"  {time.monotonic() - started:.1f} s", style="dim")
        self.console.print(line)

    def command(self, *arguments: str) -> list[str]:
        """A `hordechat` command line on our data directory."""
        own = [sys.executable, "-P", "-m", "hordechat", *arguments]
        return [*own, "--data-dir", str(self.data.path)]

    def start(self, log: Path, seconds: float, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command that runs on; it is stopped with the stage."""
        with log.open("ab") as errors:
            process = subprocess.Popen(
                self.command(*arguments),
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is ours; we stop it in order
            )
        self.stack.callback(_stop, process, arguments[0], seconds, log)
        return process


def _stop(process: "subprocess.Popen[bytes]", name: str, seconds: float, log: Path) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise DemoFailed(f"`hordechat {name}` did not stop within {seconds:g} s", log) from None
    finally:
        if process.stdout:
            process.stdout.close()
    if code:
        raise DemoFailed(f"`hordechat {name}` ended with exit code {code}", log)


def _show(stage: _Stage) -> None:
    stage.console.rule("[bold]hordechat: one chat job, end to end", align="left")
    _start_service(stage)
    run_ = stage.data.read_run()
    assert run_ is not None  # noqa: S101  it is ready, so it wrote it
    started = time.monotonic()
    client, owner = _create_users(stage, "alice", "bob")
    stage.done(f"accounts: {client['username']} asks, {owner['username']} owns a worker", started)
    worker = ("--url", run_.url, "--api-key", owner["api_key"], "--name", "demo", "--model", MODEL)
    started = time.monotonic()
    process = stage.start(stage.worker_log, _WORKER_STOP_SECONDS, "worker", *worker)
    _await_worker(stage, process)
    stage.done("worker demo shows itself, declares what it serves, and waits for a job", started)
    with httpx.Client(
        base_url=run_.url, headers={"apikey": client["api_key"]}, timeout=10.0
    ) as http:
        request_id = _submit(stage, http, process)
        _follow(stage, http, request_id, run_.redis_url)
        _show_status(stage, http, request_id)
    asyncio.run(_show_events(stage, request_id))
    asyncio.run(_show_kudos(stage, request_id, client["username"], owner["username"]))


def _start_service(stage: _Stage) -> None:
    """Start `hordechat up`, telling each process as it starts, until it is ready."""
    started = time.monotonic()
    stage.data.create()
    process = stage.start(stage.up_log, _UP_STOP_SECONDS, "up", "--port", "0")
    assert process.stdout is not None  # noqa: S101  started with a pipe
    starts: Counter[str] = Counter()
    with stage.up_log.open("rb") as log:
        ready = False
        while not ready:
            ready = bool(select.select([process.stdout], [], [], 0.05)[0])
            for name in _started(log.readlines()):
                starts[name] += 1
                stage.console.print(f"  started {name}", style="dim")
                if starts[name] > _MOST_STARTS:
                    raise DemoFailed(f"{name} does not stay up", stage.up_log)
            if time.monotonic() - started > _READY_SECONDS:
                raise DemoFailed(f"not ready within {_READY_SECONDS:g} s", stage.up_log)
    line = process.stdout.readline().decode().strip()
    if not line:
        raise DemoFailed("`hordechat up` ended before it was ready", stage.up_log)
    threading.Thread(target=process.stdout.read, daemon=True).start()
    stage.done(line, started)


def _started(lines: list[bytes]) -> Iterator[str]:
    """Names of the processes whose start these log lines tell."""
    for line in lines:
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if entry.get("event") == "started" and entry.get("process") == "up":
                yield entry.get("name", "")


def _create_users(stage: _Stage, *names: str) -> list[dict[str, Any]]:
    """Open accounts with the command line, side by side."""
    processes = [
        subprocess.Popen(
            stage.command("user", "create", name),
            env=stage.env,
            cwd=stage.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name in names
    ]
    users = []
    for process in processes:
        out, errors = process.communicate()
        if process.returncode:
            raise DemoFailed(f"`hordechat user create` failed: {errors.decode().strip()[-500:]}")
        users.append(json.loads(out))
    return users


def _await_worker(stage: _Stage, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the log tells of the worker."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while not any(row.word == "checked-in" for row in asyncio.run(_events(stage, b"name", "demo"))):
        if process.poll() is not None:
            raise DemoFailed("the worker ended", stage.worker_log)
        if time.monotonic() > deadline:
            raise DemoFailed("the worker does not show itself", stage.worker_log)
        time.sleep(0.05)


def _submit(stage: _Stage, http: httpx.Client, worker: "subprocess.Popen[bytes]") -> str:
    """Submit the chat request; again while nobody knows the worker. Return its id."""
    started = time.monotonic()
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": QUESTION}]}
    while True:
        with _http_errors(stage):
            answer = http.post("/v2/generate/chat/async", json=body)
        told = answer.json()
        if answer.status_code == httpx.codes.ACCEPTED:
            break
        if worker.poll() is not None:
            raise DemoFailed("the worker ended", stage.worker_log)
        unseen = told.get("rc") in _AGAIN
        if not unseen or time.monotonic() - started > _ANSWER_SECONDS:
            raise DemoFailed(f"the request was answered {answer.status_code} {told}", stage.up_log)
        time.sleep(float(answer.headers.get("retry-after", 0.1)))
    stage.done(f"POST /v2/generate/chat/async: 202 {json.dumps(told)}", started)
    request_id: str = told["id"]
    return request_id


@contextlib.contextmanager
def _http_errors(stage: _Stage) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, ValueError) as error:
        raise DemoFailed(
            f"the service does not answer as it should: {error!r}", stage.up_log
        ) from error


def _follow(stage: _Stage, http: httpx.Client, request_id: str, redis_url: str) -> None:
    """Print the reply as the worker posts it, until the request is done."""
    stage.console.print()
    stage.console.print(Text.assemble(("asked    ", "bold"), QUESTION))
    stage.console.print(Text.assemble(("answered ", "bold")), end="")
    started = time.monotonic()
    posts, first = asyncio.run(_read_stream(stage, http, request_id, redis_url))
    stage.console.print("\n")
    stage.done(
        f"{posts} progress posts, the first after {first - started:.2f} s, and the reply",
        started,
    )


async def _read_stream(
    stage: _Stage, http: httpx.Client, request_id: str, redis_url: str
) -> tuple[int, float]:
    """Follow the progress stream; return how many posts came, and when the first did."""
    found = settings.load(stage.data.read_environment())
    stream = Keys(found.partitions).stream(request_id)
    redis: Any = blocking_client(redis_url)
    after, posts, first = "0", 0, 0.0
    deadline = time.monotonic() + _ANSWER_SECONDS
    finished = False
    try:
        while time.monotonic() < deadline:
            answer = await redis.xread({stream: after}, block=50)
            for position, fields in answer[0][1] if answer else ():
                after, posts, first = position, posts + 1, first or time.monotonic()
                stage.console.out(fields.get(b"content", b"").decode(), end="", highlight=False)
            if finished and not answer:
                return posts, first
            if not answer:
                with _http_errors(stage):
                    status = http.get(f"/v2/generate/chat/status/{request_id}").json()
                finished = status.get("done", False)
    finally:
        await redis.aclose()
    raise DemoFailed(f"no reply within {_ANSWER_SECONDS:g} s", stage.worker_log)


def _show_status(stage: _Stage, http: httpx.Client, request_id: str) -> None:
    """Print what the status route says in the end."""
    with _http_errors(stage):
        answer = http.get(f"/v2/generate/chat/status/{request_id}")
        status = answer.json()
    generations = status.pop("generations", [])
    if answer.status_code != httpx.codes.OK or not generations or not status.get("done"):
        raise DemoFailed(f"the status was answered {answer.status_code} {status}", stage.up_log)
    said = generations[0]["message"]["content"]
    if said != QUESTION:
        raise DemoFailed(f"the worker's reply arrived changed: {said!r}", stage.up_log)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.title = f"GET /v2/generate/chat/status/{request_id}"
    table.add_column("field")
    table.add_column("value")
    for name, value in status.items():
        table.add_row(name, json.dumps(value))
    for name, value in generations[0].items():
        table.add_row(f"generations[0].{name}", Text(json.dumps(value), overflow="ellipsis"))
    stage.console.print()
    stage.console.print(table)


async def _show_events(stage: _Stage, request_id: str) -> None:
    """Print the events of the request, once the last of them, the released admission, is there."""
    rows = await _until(
        lambda: _events(stage, b"request_id", request_id), lambda got: got[-1].word == "released"
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.title = f"hordechat log --request {request_id}"
    table.add_column("after", justify="right")
    table.add_column("position", no_wrap=True)
    table.add_column("event", no_wrap=True, style="bold")
    table.add_column("what it says (ids shortened; never a message or a reply)")
    begin = rows[0].position.ms
    for position, word, told in rows:
        table.add_row(f"{position.ms - begin} ms", str(position), word, Text(told))
    stage.console.print(table)


async def _show_kudos(stage: _Stage, request_id: str, client: str, owner: str) -> None:
    """Print what the request cost, and what its worker earned, by the lines of the ledger."""
    from events.ledger import movements
    from handlers.replay import read_log
    from hordechat.opening import open_log

    paid: Counter[str] = Counter()
    generations: set[str] = set()
    log = await open_log(settings.load(stage.data.read_environment()))
    try:
        # What an account owes for a reply is carried over in front of its admission's end, which
        # was waited for, and the owner's part beside it: all are in one log here.
        async for page in read_log(log, 0):
            for line in (line for entry in page for line in movements(entry.recorded.event)):
                if line.request_id == request_id:
                    generations |= {line.generation_id} - {""}
                    paid[line.cause] -= line.amount
                    paid["burn"] += line.burn
                elif line.worker_id and line.generation_id in generations:
                    paid["earned"] += line.amount + line.escrow
                    paid["waits"] += line.escrow
    finally:
        await log.close()
    tax, reply, burn, earned, waits = (
        f"{paid[what] / KUDOS:g}" for what in ("tax", "generation", "burn", "earned", "waits")
    )
    told = Text.assemble(
        ("kudos    ", "bold"),
        f"{client} paid {(paid['tax'] + paid['generation']) / KUDOS:g}: {tax} as a tax, {reply} "
        f"for the reply, {burn} of it burnt; {owner} earned {earned}",
    )
    if paid["waits"]:
        told.append(f", {waits} of which waits until {owner} is trusted")
    stage.console.print(told)


class _Row(NamedTuple):
    position: Position
    word: str
    told: str


async def _until(
    read: Callable[[], Awaitable[list[_Row]]], enough: Callable[[list[_Row]], bool]
) -> list[_Row]:
    """Read until it is enough, or it took too long to be worth the wait."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        rows = await read()
        if rows and (enough(rows) or time.monotonic() > deadline):
            return rows
        if time.monotonic() > deadline:
            raise DemoFailed("the log holds no event of the request")
        await asyncio.sleep(0.05)


async def _events(stage: _Stage, field: bytes, value: str) -> list[_Row]:
    """The events of the log that say this."""
    from handlers.replay import read_log
    from hordechat.opening import open_log

    log = await open_log(settings.load(stage.data.read_environment()))
    rows: list[_Row] = []
    try:
        for partition in log.keys.all():
            async for page in read_log(log, partition):
                for entry in page:
                    fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
                    if fields.get(field) == value.encode():
                        position = entry.recorded.position
                        word = fields.pop(b"type").decode()
                        rows.append(_Row(position, word, _told(fields)))
    finally:
        await log.close()
    return sorted(rows)  # one clock serves all partitions of the embedded server


def _told(fields: dict[bytes, bytes]) -> str:
    """An event's fields for the eye: without the request's id and what is empty, ids shortened."""
    pairs = (
        f"{name.decode()}={value.decode()}"
        for name, value in fields.items()
        if name not in (b"v", b"request_id") and value not in (b"", b"{}")
    )
    return _UUID.sub(r"\1…", " ".join(pairs))


def _explain(console: Console, failed: DemoFailed) -> None:
    """Say what did not work, with the last words of the process that should know."""
    console.print(Text.assemble(("✗ ", "red"), str(failed)))
    if failed.log is not None and failed.log.exists():
        console.print(f"last lines of {failed.log.name}:", style="dim")
        for line in failed.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]:
            console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
