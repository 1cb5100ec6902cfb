"""`hordechat up` as a program, and the clients and workers that load it and keep book.

The book holds what was acknowledged to whom, so that a test can say what may not happen whatever
was killed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from events.base import KUDOS
from events.keys import Keys
from handlers.accounts import open_account
from hordechat import settings
from hordechat.datadir import DataDir, free_port
from hordechat.opening import open_log
from hordechat.watchdog import identity
from tests.e2e.wire import Answer, Http, NoAnswer
from tests.orphans import leave_none

MODEL = "test/model"
OURS = ("REDIS_URL", "DATABASE_URL", "S3_ENDPOINT_URL", "S3_ACCESS_KEY", "S3_SECRET_KEY")
ROOT = Path(__file__).parents[2]

PACE = {
    "HORDE_JANITOR_SECONDS": "0.5",
    "HORDE_RATE_LIMITS_ENABLED": "false",
    "HORDE_CONCURRENCY": "100000",
    "HORDE_WORKERS_PER_USER": "100000",
    "HORDE_DRAIN_SECONDS": "5",
}
"""Shorter than life, so that tests are."""


PATIENCE = 60.0
"""Seconds within which whatever was promised has to come, in whatever trouble."""


# processes


def until(condition: Callable[[], object], seconds: float, what: str = "") -> None:
    """Wait for a condition; fail when the time is up."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


async def eventually(condition: Callable[[], object], seconds: float, what: str = "") -> None:
    """The same beside other tasks; the condition may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return identity(pid) != ""


def family(pid: int) -> list[int]:
    """A process and all below it, itself first."""
    below: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (folder / "stat").read_text()
                parent = int(stat[stat.rindex(")") + 2 :].split()[1])
                below.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += below.get(each, ())
    return found


def clean_environ(**more: str) -> dict[str, str]:
    """This environment without any setting of ours, and with those given."""
    kept = {k: v for k, v in os.environ.items() if k not in OURS and not k.startswith("HORDE_")}
    return kept | more


programs: list[Program] = []
"""Every program of this session, in the order of their start."""


class Program:
    """A `hordechat` command that runs on: its stdout is read by us, its stderr is a file."""

    def __init__(self, log: Path, env: dict[str, str], *arguments: str) -> None:
        self.log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hordechat", *arguments],
                env=env,
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self.pid = self._process.pid
        leave_none(self.pid)
        programs.append(self)

    def line(self, seconds: float) -> str:
        """The next line of stdout; empty at its end. Fails after so long."""
        out = self._process.stdout
        assert out is not None
        assert select.select([out], [], [], seconds)[0], self.tail()
        return out.readline().decode().strip()

    def send(self, number: int) -> None:
        """Signal it."""
        self._process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """Its exit code."""
        return self._process.wait(seconds)

    def running(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def tail(self) -> str:
        """Its last words."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def end(self, seconds: float = 40.0) -> int:
        """SIGTERM, and its group killed if that is not enough; the exit code."""
        if self.running():
            self.send(signal.SIGTERM)
        try:
            return self.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            return self.wait(60)
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()


class Up:
    """A running `hordechat up`."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        procfile: str | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.data = folder / "data"
        self._env = clean_environ(**(PACE | (env or {})))
        self._flags = flags
        if procfile is not None:
            (folder / "Procfile").write_text(procfile)
            self._flags += ("--procfile", str(folder / "Procfile"))
        self.url = ""
        self.program: Program | None = None

    def start(self, seconds: float = 60.0) -> Up:
        """Start it, and wait for its line."""
        place = ("--data-dir", str(self.data))
        program = Program(
            self.folder / "up.log", self._env, "up", "--port", "0", *place, *self._flags
        )
        self.program = program
        line = program.line(seconds)
        assert line.startswith("hordechat is ready at http://"), program.tail()
        self.url = line.rsplit(" ", 1)[1]
        return self

    def end(self) -> int:
        """Stop it in order, if it runs; the exit code."""
        return self.program.end() if self.program is not None else 0

    def info(self) -> dict[str, Any]:
        """What `hordechat info` prints."""
        return json.loads(self.cli("info"))

    def run(self) -> dict[str, Any]:
        """The same without starting a program, for loops: run.json."""
        return json.loads((self.data / "run.json").read_text())

    def pid(self, name: str) -> int:
        """Of a process by name, as it is now."""
        return self.run()["processes"][name]

    def everyone(self) -> list[int]:
        """Every process, with what they started."""
        return family(self.program.pid)

    def cli(self, *arguments: str, seconds: float = 60.0, code: int = 0, **env: str) -> str:
        """Run a command on this data directory; its stdout. Fails where it exits otherwise."""
        done = subprocess.run(
            self.command(*arguments),
            env=clean_environ(**env),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def command(self, *arguments: str) -> list[str]:
        """A command line on this data directory."""
        place = ("--data-dir", str(self.data))
        return [sys.executable, "-P", "-m", "hordechat", *arguments, *place]

    def beside(self, name: str, *arguments: str, **env: str) -> Program:
        """Start one more process on the same servers; end it yourself."""
        place = ("--data-dir", str(self.data))
        log = self.folder / f"{name}.log"
        return Program(log, clean_environ(**env), *arguments, *place)

    @contextlib.contextmanager
    def web(
        self, name: str, *, seconds: float = PATIENCE, **env: str
    ) -> Iterator[tuple[str, Program]]:
        """One more web server on a port of its own: its URL, once it is ready, and itself."""
        port = free_port()
        program = self.beside(name, "web", "--port", str(port), "--web-workers", "1", **env)
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: _ready(url) or not program.running(), seconds, "a web server")
            assert program.running(), program.tail()
            yield url, program
        finally:
            program.end()

    async def users(self, *names: str, kudos: int = 0) -> list[str]:
        """Open accounts, as `hordechat user create` does, which takes a second each; their keys."""
        return [key for _, key in await self.accounts(*names, kudos=kudos)]

    async def accounts(self, *names: str, kudos: int = 0) -> list[tuple[int, str]]:
        """The same with their numbers."""
        given = settings.load(DataDir(self.data).read_environment())
        log = await open_log(given)
        try:
            return [
                await open_account(log, given.secret, name, kudos=kudos * KUDOS) for name in names
            ]
        finally:
            await log.close()

    def log_lines(self, log: Path | None = None) -> list[dict[str, Any]]:
        """What its processes wrote, line by line."""
        lines = []
        for line in (log or self.program.log).read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                lines.append({"event": line, "level": "raw"})
        return lines

    def bugs(self, log: Path | None = None) -> list[dict[str, Any]]:
        """Lines that no run may leave: tracebacks, answers of 500, errors."""
        return [line for line in self.log_lines(log) if _is_bug(line)]


def _is_bug(line: dict[str, Any]) -> bool:
    text = str(line.get("event", ""))
    return (
        line.get("level") in ("error", "critical", "raw")
        or "exception" in line
        or text.startswith(("Traceback", "unhandled", "Exception", "Task exception"))
        or "never retrieved" in text
        or "Warning:" in text
    )


def _ready(url: str) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=2) as answer:  # noqa: S310  our own
            return answer.status == 200
    except OSError:
        return False


# load


class Empty(NamedTuple):
    """A pop without waiting that brought no job."""

    asked: float
    answered: float
    skipped: dict[str, int]


@dataclass
class Taken:
    """A job that a worker was handed."""

    generation_id: str
    text: str
    worker: str
    asked: float
    answered: float
    streams: bool = False
    outcome: str = "held"


@dataclass
class Book:
    """What clients and workers were told."""

    accepted: dict[str, str] = field(default_factory=dict)
    """Request id -> its text, once a 202 arrived."""
    accepted_at: dict[str, float] = field(default_factory=dict)
    """Text -> when."""
    cancelled: set[str] = field(default_factory=set)
    """Requests whose cancel was acknowledged: whether there was a reply before is open."""
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Request id -> its last status."""
    taken: list[Taken] = field(default_factory=list)
    empty: list[Empty] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    """Answers that nobody should ever get."""
    unanswered: Counter[str] = field(default_factory=Counter)
    """Calls without an answer, and 503s, by kind."""

    def note(self, what: str, answer: Answer) -> None:
        """An answer that nobody should get."""
        self.odd.append(f"{what}: {answer.status} {answer.body}")

    def stored(self) -> list[Taken]:
        """Jobs whose reply was acknowledged."""
        return [job for job in self.taken if job.outcome == "stored"]

    def check(self) -> None:
        """What holds in every run, whatever was killed."""
        assert self.odd == []
        again = [k for k, n in Counter(job.generation_id for job in self.taken).items() if n > 1]
        assert again == [], "a generation was handed out twice"
        ended = set(self.ended) | self.cancelled
        assert ended == set(self.accepted), "acknowledged and without an end"
        for request_id, status in self.ended.items():
            if status["faulted"]:
                continue
            replies = [each["message"]["content"] for each in status["generations"]]
            assert replies == [reply_to(self.accepted[request_id])], status
            assert status["finished"] == 1
            assert status["done"] is True
        twice = [text for text, n in Counter(job.text for job in self.stored()).items() if n > 1]
        assert twice == [], "two replies were stored for one job"

    def faulted(self) -> list[str]:
        """Texts of acknowledged requests that ended without an answer."""
        return [self.accepted[id_] for id_, status in self.ended.items() if status["faulted"]]

    def overlooked(self) -> float:
        """The longest that a request had waited when a pop began that brought nothing, though the
        request still waited when that pop was answered.
        """
        first: dict[str, float] = {}
        for job in self.taken:
            first[job.text] = min(job.asked, first.get(job.text, job.asked))
        spans = [(at, first.get(text, float("inf"))) for text, at in self.accepted_at.items()]
        return max(
            (
                pop.asked - at
                for pop in self.empty
                for at, asked in spans
                if at < pop.asked and pop.answered < asked
            ),
            default=0.0,
        )


def reply_to(text: str) -> str:
    """What our workers answer."""
    return f"reply to {text}"


def chat(text: str, *, stream: bool = False) -> dict[str, Any]:
    """The body of a chat request."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 64,
        "stream": stream,
    }


def declaration(name: str) -> dict[str, Any]:
    """The body of a pop."""
    return {
        "name": name,
        "models": [MODEL],
        "bridge_agent": "test:1:test",
        "chat_jobs": True,
        "prompt_jobs": False,
        "model_id": MODEL,
        "chat_limits": {"max_context_length": 8192, "max_length": 2048},
        "chat_features": ["prompt_overflow_refused"],
    }


def reply(generation_id: str, text: str) -> dict[str, Any]:
    """The body of a submit."""
    return {
        "id": generation_id,
        "model_id": MODEL,
        "state": "ok",
        "message": {"role": "assistant", "content": reply_to(text)},
        "finish_reason": "stop",
        "completion_tokens": 3,
    }


POP = "/v2/generate/text/pop"
SUBMIT = "/v2/generate/text/submit"
PROGRESS = "/v2/generate/text/progress"
CHAT = "/v2/generate/chat/async"


def status_of(request_id: str) -> str:
    """Path of a request's status."""
    return f"/v2/generate/chat/status/{request_id}"


def text_of(popped: dict[str, Any]) -> str:
    """The text of the job that a pop brought."""
    return popped["payload"]["messages"][-1]["content"]


async def pause(longest: float) -> None:
    """What a caller that was refused waits before it asks again."""
    await asyncio.sleep(longest * random.uniform(0.5, 1))


class Client:
    """Submits requests and follows each to its end, as a client that was promised an answer."""

    def __init__(self, url: str, key: str, book: Book, name: str, **asked: Any) -> None:
        """`asked`: what its requests say beside what all do."""
        self._http = Http(url, key)
        self._book = book
        self._name = name
        self._asked = asked
        self._sent = 0

    async def submit(self, *, stream: bool = False) -> str:
        """Submit until accepted; the request's id. Each try has a text of its own, since one
        without an answer may have been queued.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline, (
                f"not accepted: {self._book.unanswered} {self._book.odd[-3:]}"
            )
            self._sent += 1
            text = f"{self._name} {self._sent}"
            try:
                body = chat(text, stream=stream) | self._asked
                answer = await self._http.call("POST", CHAT, body)
            except NoAnswer:
                self._book.unanswered["submit"] += 1
                await pause(0.2)
                continue
            if answer.status == 202:
                request_id = answer.body["id"]
                self._book.accepted[request_id] = text
                self._book.accepted_at[text] = time.monotonic()
                return request_id
            self._passes("submit", answer)
            await pause(0.2)

    async def submit_once(self) -> str:
        """Submit; the request's id. Raise NoAnswer."""
        self._sent += 1
        text = f"{self._name} {self._sent}"
        answer = await self._http.call("POST", CHAT, chat(text))
        assert answer.status == 202, answer
        self._book.accepted[answer.body["id"]] = text
        self._book.accepted_at[text] = time.monotonic()
        return answer.body["id"]

    async def cancel(self, request_id: str) -> None:
        """Cancel until that is acknowledged."""
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline, f"{request_id} is not cancelled"
            try:
                answer = await self._http.call("DELETE", status_of(request_id))
            except NoAnswer:
                self._book.unanswered["cancel"] += 1
                await pause(0.2)
                continue
            if answer.status == 200:
                self._book.cancelled.add(request_id)
                return
            self._passes("cancel", answer)
            await pause(0.2)

    async def follow(self, request_id: str) -> dict[str, Any]:
        """Ask for its status until it is done or faulted."""
        deadline = time.monotonic() + PATIENCE
        last: dict[str, Any] = {}
        while True:
            assert time.monotonic() < deadline, f"{request_id} does not end: {last}"
            try:
                answer = await self._http.call("GET", status_of(request_id), wait=5)
            except NoAnswer:
                self._book.unanswered["status"] += 1
                await pause(0.2)
                continue
            if answer.status == 200:
                if "message" in answer.body:  # Redis is away: this one is without replies
                    self._book.unanswered["status without content"] += 1
                    await pause(0.2)
                    continue
                last = answer.body
                if answer.body["done"] or answer.body["faulted"]:
                    self._book.ended[request_id] = answer.body
                    return answer.body
                continue
            self._passes("status", answer)
            if answer.status == 404:
                raise AssertionError(f"an acknowledged request is unknown: {request_id}")
            await pause(0.2)

    def _passes(self, what: str, answer: Answer) -> None:
        if answer.status == 503 and answer.rc and "retry-after" in answer.headers:
            self._book.unanswered[f"{what} 503 {answer.rc}"] += 1
        else:
            self._book.note(what, answer)

    async def run(self, enough: Callable[[], bool], *, stream: bool = False) -> None:
        """One request after the other."""
        while not enough():
            await self.follow(await self.submit(stream=stream))

    @property
    def slowest(self) -> float:
        """Seconds of its slowest answer, beyond those that it was to wait."""
        return self._http.slowest

    def close(self) -> None:
        """Hang up."""
        self._http.close()


class Worker:
    """Pops, posts and submits as a real worker does: what got no answer is sent again."""

    def __init__(self, url: str, key: str, book: Book, name: str, *, wait: int = 5) -> None:
        self._http = Http(url, key)
        self._book = book
        self.name = name
        self._wait = wait

    async def pop(self) -> Taken | None:
        """Ask once, and post what there is to post; None without a job."""
        job = await self.take()
        if job is not None and job.streams:
            await self.post(job)
        return job

    async def take(self) -> Taken | None:
        """Ask once; None without a job."""
        asked = time.monotonic()
        try:
            answer = await self._http.call("POST", POP, declaration(self.name), wait=self._wait)
        except NoAnswer:
            self._book.unanswered["pop"] += 1
            await pause(0.2)
            return None
        answered = time.monotonic()
        if answer.status != 200:
            self._passes("pop", answer)
            await pause(0.2)
            return None
        if not answer.body["id"]:
            self._book.empty.append(Empty(asked, answered, answer.body["skipped"]))
            return None
        streams = bool(answer.body["payload"].get("stream_progress"))
        text = text_of(answer.body)
        job = Taken(answer.body["id"], text, self.name, asked, answered, streams)
        self._book.taken.append(job)
        return job

    async def post(self, job: Taken) -> None:
        """Post the reply word by word."""
        for seq, word in enumerate(reply_to(job.text).split(), 1):
            body = {"id": job.generation_id, "seq": seq, "delta": {"content": f"{word} "}}
            answer = await self._insist("progress", PROGRESS, body)
            if answer.status != 200:
                if answer.status not in (404, 413):
                    self._book.note("progress", answer)
                return

    async def submit(self, job: Taken) -> str:
        """Hand in the reply until there is a definite answer; what became of it."""
        answer = await self._insist("reply", SUBMIT, reply(job.generation_id, job.text))
        if answer.status == 200 or answer.rc == "DuplicateGen":
            job.outcome = "stored"
        elif answer.rc in ("AbortedGen", "InvalidJobID"):
            job.outcome = "lost"
        else:
            self._book.note("reply", answer)
        return job.outcome

    async def serve(self, text: str, seconds: float = PATIENCE) -> Taken:
        """Pop until the job with this text comes; whatever else comes is answered on the way."""
        deadline = time.monotonic() + seconds
        while True:
            job = await self.take()
            if job is not None and job.text == text:
                return job
            if job is not None:
                await self.submit(job)
            assert time.monotonic() < deadline, f"nobody got {text}"

    async def send_reply(self, job: Taken) -> Answer:
        """Hand in the reply once. Raise NoAnswer."""
        return await self._http.call("POST", SUBMIT, reply(job.generation_id, job.text))

    async def _insist(self, what: str, path: str, body: dict[str, Any]) -> Answer:
        while True:
            try:
                answer = await self._http.call("POST", path, body)
            except NoAnswer:
                self._book.unanswered[what] += 1
            else:
                if answer.status < 500:
                    return answer
                self._passes(what, answer)
            await pause(0.2)

    def _passes(self, what: str, answer: Answer) -> None:
        if answer.status == 503 and answer.rc and "retry-after" in answer.headers:
            self._book.unanswered[f"{what} 503 {answer.rc}"] += 1
        else:
            self._book.note(what, answer)

    async def run(self, *, idle: float = 0.0) -> None:
        """One job after the other, until cancelled."""
        while True:
            job = await self.pop()
            if job is not None:
                await self.submit(job)
            elif idle:
                await asyncio.sleep(idle)

    @property
    def slowest(self) -> float:
        """Seconds of its slowest answer, beyond those that it was to wait."""
        return self._http.slowest

    def close(self) -> None:
        """Hang up."""
        self._http.close()


async def known(up_url: str, owner_key: str, client_key: str) -> None:
    """Let a worker be seen, so that requests for its model are accepted."""
    ids: list[str] = []

    async def seen() -> bool:
        await owner.call("POST", POP, declaration("first"))
        # Ready is who answers; the read models may take a moment longer to come up.
        if not ids:
            answer = await client.call("POST", CHAT, chat("first"))
            if answer.status == 202:
                ids.append(answer.body["id"])
            else:
                unseen = ("UnknownChatModel", "NoEligibleWorker", "ReadModelBehind")
                assert answer.rc in unseen, answer
        if not ids:
            return False
        cancelled = await client.call("DELETE", status_of(ids[0]))
        assert cancelled.status == 200 or cancelled.rc == "ReadModelBehind", cancelled
        return cancelled.status == 200

    async with Http(up_url, owner_key) as owner, Http(up_url, client_key) as client:
        await eventually(seen, 60, "a worker that is seen")


async def serving(url: str, client_key: str, keys: Keys, seconds: float) -> None:
    """Wait until a request is accepted, read and cancelled in each partition, over connections of
    their own, so that several web processes have a part in it. A worker was seen before.
    """
    left = set(keys.all())
    deadline = time.monotonic() + seconds
    while left:
        async with Http(url, client_key) as client:
            queued = await client.call("POST", CHAT, chat("is anybody there"))
            if queued.status == 202:
                path = status_of(queued.body["id"])
                answers = [await client.call(method, path) for method in ("GET", "DELETE")]
                while any(answer.status != 200 for answer in answers):
                    assert all(answer.status in (200, 503) for answer in answers), answers
                    assert time.monotonic() < deadline, answers
                    await asyncio.sleep(0.1)
                    answers = [await client.call(method, path) for method in ("GET", "DELETE")]
                left.discard(keys.of(queued.body["id"]))
            else:
                assert queued.status == 503, queued
        assert time.monotonic() < deadline, left


@contextlib.asynccontextmanager
async def working(workers: list[Worker], *, idle: float = 0.0) -> AsyncIterator[None]:
    """Workers at work; one that fails is told at the end."""
    tasks = [asyncio.ensure_future(worker.run(idle=idle)) for worker in workers]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in workers:
            worker.close()
