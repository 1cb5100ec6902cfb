"""The web process as the operating system sees it: sockets, signals, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from hordechat import commands, settings
from hordechat.datadir import free_port
from tests.api.site import POP
from tests.orphans import leave_none

DRAIN_SECONDS = 10


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
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as opened:
            yield opened


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
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


@pytest.fixture
def web(redis_url: str, migrated_url: str, tmp_path: Path) -> Iterator[Web]:
    port = free_port()
    environ = {
        "REDIS_URL": redis_url,
        "DATABASE_URL": migrated_url,
        "HORDE_SECRET": "s",
        "HORDE_DRAIN_SECONDS": str(DRAIN_SECONDS),
        "HORDE_WEB_WORKERS": "2",
    }
    loaded = settings.load(environ)
    commands.migrate(loaded)
    user = commands.user_create(loaded, name="o", kudos=0, trusted=True, moderator=False)
    command = [sys.executable, "-m", "hordechat", "web", "--port", str(port)]
    command += ["--data-dir", str(tmp_path)]
    with (tmp_path / "web.log").open("wb") as out:
        process = subprocess.Popen(command, env=os.environ | environ, stderr=out)
        leave_none(process.pid)
        made = Web(process, port, str(user["api_key"]), environ)
        try:
            until(lambda: ready(made), 30)
            yield made
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(20)
    lines = (tmp_path / "web.log").read_text().splitlines()
    assert all(json.loads(line)["process"] == "web" for line in lines)
    errors = [line for line in lines if '"level":"error"' in line]
    assert not [line for line in errors if "SIGKILL" not in line]


def test_sigterm_ends_waiting_calls_with_their_answer_and_exits_in_time(web: Web) -> None:
    headers = {"apikey": web.key}
    # A text request needs no worker to be accepted, and nothing projects it here.
    queued = httpx.post(f"{web.url}/v2/generate/text/async", json={"prompt": "x"}, headers=headers)
    assert queued.status_code == 202
    answers: list[httpx.Response] = []

    def pop(n: int) -> None:
        waits = headers | {"prefer": "wait=30"}
        answers.append(
            httpx.post(
                f"{web.url}/v2/generate/text/pop",
                json=POP | {"name": f"w{n}"},
                headers=waits,
                timeout=30,
            )
        )

    callers = [threading.Thread(target=pop, args=(n,)) for n in range(6)]
    for caller in callers:
        caller.start()
    time.sleep(1)  # they wait by now; nothing that could be asked says so

    started = time.monotonic()
    web.process.send_signal(signal.SIGTERM)
    for caller in callers:
        caller.join(10)
    code = web.process.wait(10)

    assert [answer.status_code for answer in answers] == [200] * 6
    assert all(answer.json()["id"] is None for answer in answers)
    assert code == 0
    assert time.monotonic() - started < DRAIN_SECONDS


def test_workers_do_not_outlive_a_killed_master(web: Web) -> None:
    workers = web.workers()
    assert len(workers) == 2

    web.process.kill()

    _, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive


def test_a_killed_worker_is_replaced(web: Web) -> None:
    first = {worker.pid for worker in web.workers()}
    for worker in web.workers():
        worker.kill()

    until(lambda: len({each.pid for each in web.workers()} - first) == 2)
    until(lambda: ready(web))


def test_an_early_refusal_reaches_a_client_that_is_still_sending(web: Web) -> None:
    """And what follows on the connection is not taken for a request."""
    size = 40 * 2**20
    head = (
        "POST /v2/generate/chat/async HTTP/1.1\r\nHost: x\r\n"
        f"apikey: {web.key}\r\nContent-Length: {size}\r\n\r\n"
    )
    with web.connection() as opened:
        opened.sendall(head.encode())
        opened.sendall(b"GET /health/live HTTP/1.1\r\n\r\n" * 1000)
        opened.sendall(b"x" * (size - 29_000))
        answer = b""
        while chunk := opened.recv(65536):
            answer += chunk

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"RequestTooLarge" in answer


def test_a_chunked_body_without_end_is_cut(web: Web) -> None:
    head = b"POST /v2/generate/text/pop HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with web.connection() as opened:
        opened.sendall(head)
        with contextlib.suppress(OSError):
            for _ in range(10_000):
                opened.sendall(piece)
        sent = opened.recv(65536)

    assert b" 413 " in sent or sent == b""
    memory = max(worker.memory_info().rss for worker in web.workers())
    assert memory < 400 * 2**20


def test_connections_are_kept_between_requests_also_after_a_refusal(web: Web) -> None:
    with httpx.Client(base_url=web.url) as client:
        refused = client.post("/v2/generate/chat/async", content=b"{")
        assert refused.status_code == 400
        assert "connection" not in refused.headers
        assert client.get("/health/live").json() == {"status": "ok"}


def test_a_call_too_many_is_refused_and_what_follows_its_body_is_answered(web: Web) -> None:
    size = 5 * 2**20
    head = f"PUT /v2/status/modes HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
    with httpx.Client(base_url=web.url) as client:
        statuses = {client.put("/v2/status/modes", content=b"{").status_code for _ in range(30)}
    assert statuses == {400}
    with web.connection() as opened:
        opened.sendall(head.encode() + b"GET /nonsense HTTP/1.1\r\n\r\n")
        opened.sendall(b"x" * (size - 26))
        opened.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = b""
        while chunk := opened.recv(65536):
            answers += chunk

    assert [part[:4] for part in answers.split(b"HTTP/1.1 ")] == [b"", b"429 ", b"200 "]


def test_a_head_without_end_is_cut(web: Web) -> None:
    with web.connection() as opened:
        opened.sendall(b"GET / HTTP/1.1\r\nx-long: ")
        with pytest.raises(OSError, match=r"reset|pipe"):
            opened.sendall(b"x" * 2**26)

    assert ready(web)


def test_trailers_are_bounded_and_kept_by_nobody(web: Web) -> None:
    head = b"GET /health/live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    for trailers in (b"a: b\r\n" * 2**23, b"a: " + b"b" * 2**26):
        with web.connection() as opened:
            opened.sendall(head)
            with pytest.raises(OSError, match=r"reset|pipe"):
                opened.sendall(trailers)

    assert ready(web)
    assert max(each.memory_info().rss for each in web.workers()) < 300 * 2**20


def test_trailers_are_no_headers(web: Web) -> None:
    """A proxy checks headers, and passes trailers on: whoever calls could name any address."""
    asked = (
        b"POST /v2/generate/text/async HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\ne\r\n" + b'{"prompt":"x"}' + b"\r\n0\r\n"
        b"apikey: " + web.key.encode() + b"\r\n\r\n"
    )
    with web.connection() as opened:
        opened.sendall(asked)
        answer = b""
        while chunk := opened.recv(65536):
            answer += chunk

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"errors":{"apikey":' in answer


def test_a_burst_of_requests_is_answered_wherever_it_is_cut(web: Web) -> None:
    """What arrives at once is no head only because it ends within one."""
    one = b"GET /health/live HTTP/1.1\r\nHost: x\r\nx-pad: " + b"p" * 4000 + b"\r\n\r\n"
    count = 500
    with web.connection() as opened:
        sender = threading.Thread(target=opened.sendall, args=(one * count,))
        sender.start()
        answers = b""
        while answers.count(b'{"status":"ok"}') < count:
            chunk = opened.recv(65536)
            assert chunk, answers[-300:]
            answers += chunk
        sender.join()

    assert answers.count(b"HTTP/1.1 200 ") == count


def test_nonsense_behind_a_request_is_not_answered_in_its_place(web: Web) -> None:
    body = json.dumps(POP).encode()
    asked = (
        b"POST /v2/generate/text/pop HTTP/1.1\r\nHost: x\r\nPrefer: wait=30\r\n"
        b"apikey: " + web.key.encode() + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    for nonsense in (b"nonsense\r\n\r\n", b"GET / HTTP/2.0\r\n\r\n"):
        with web.connection() as opened:
            opened.sendall(asked + body)
            opened.sendall(nonsense)
            answer = opened.recv(65536)

        assert b" 400 " not in answer

    assert ready(web)


def test_an_announced_body_that_never_begins_ends_its_connection(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Falcon waits for the first byte before it routes, so no deadline of a route applies."""
    from hordechat import server

    class Loop:
        later: tuple[float, Callable[[], None]] | None = None

        def call_later(self, seconds: float, act: Callable[[], None]) -> object:
            Loop.later = (seconds, act)
            return type("Timer", (), {"cancel": lambda _: None})()

    protocol = object.__new__(server.Protocol)
    protocol._body_due, protocol._head_bytes, protocol._head_timer = True, None, None
    protocol.loop = Loop()
    monkeypatch.setattr(server.HttpToolsProtocol, "data_received", lambda *_: None)

    protocol.data_received(b"x")

    assert Loop.later is not None
    assert Loop.later[0] == server.HEAD_SECONDS


def test_an_old_protocol_is_refused(web: Web) -> None:
    with web.connection() as opened:
        opened.sendall(b"GET /health/live\r\n\r\n")

        assert b" 400 " in opened.recv(4096)

    assert ready(web)
