"""What a web process makes of bytes that are no, or no ordinary, requests."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
import redis

from hordechat.process import Service
from tests.api.site import POP
from tests.conftest import copied
from tests.hordechat.web import Web, ready, served, until


@pytest.fixture(scope="module")
def web(
    valkey_server: Service,
    postgres_server: Service,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Web]:
    """One for all of them: none may break it for those that come after."""
    with redis.Redis.from_url(valkey_server.url) as client:
        client.flushall()
    with (
        copied(postgres_server, migrated_template) as database_url,
        served(valkey_server.url, database_url, tmp_path_factory.mktemp("web")) as made,
    ):
        yield made


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
        statuses: list[int] = []
        while statuses[-1:] != [429]:  # a call that Redis does not count in time is not refused
            statuses.append(client.put("/v2/status/modes", content=b"{").status_code)
            assert len(statuses) < 100
    assert len(statuses) > 30
    assert {*statuses[:-1]} == {400}
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

    until(lambda: ready(web))


def test_trailers_are_bounded_and_kept_by_nobody(web: Web) -> None:
    head = b"GET /health/live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    for trailers in (b"a: b\r\n" * 2**23, b"a: " + b"b" * 2**26):
        with web.connection() as opened:
            opened.sendall(head)
            with pytest.raises(OSError, match=r"reset|pipe"):
                opened.sendall(trailers)

    until(lambda: ready(web))
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

    until(lambda: ready(web))


def test_an_announced_body_that_never_begins_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
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

    until(lambda: ready(web))
