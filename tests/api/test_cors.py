"""Browsers may call every route and read every answer; every answer tells its node."""

from __future__ import annotations

import socket
from importlib.metadata import version

import httpx
import pytest

from api.app import create_starting_app
from api.patience import Patience
from tests.api.site import BODY, Site, opened

CHAT = "/v2/generate/chat/async"
SENT = {
    "apikey",
    "client-agent",
    "x-fields",
    "x-forwarded-for",
    "proxied-for",
    "proxy-authorization",
    "content-type",
    "prefer",
    "idempotency-key",
}
READ = {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"}


def listed(answer: httpx.Response, header: str) -> set[str]:
    return {name.strip().lower() for name in answer.headers[header].split(",")}


def is_open(answer: httpx.Response) -> None:
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-methods"] == (
        "POST, GET, OPTIONS, PUT, DELETE, PATCH"
    )
    assert listed(answer, "access-control-allow-headers") >= SENT
    assert listed(answer, "access-control-expose-headers") >= READ | {"preference-applied"}
    assert len(answer.headers.get_list("access-control-allow-origin")) == 1


async def test_every_answer_may_be_read_and_tells_its_node(
    redis_url: str, migrated_url: str
) -> None:
    limits = {"rate_limits_enabled": True, "chat_request_2sec_limit_per_ip": "2/day"}
    counted = Patience(limits=20)
    async with opened(redis_url, migrated_url, patience=counted, port=1234, **limits) as site:
        answers = {
            202: await site.submit(),
            200: await site.pop(),
            404: await site.http.get("/v2/nowhere"),
            405: await site.http.delete("/v2/openapi.json"),
            400: await site.post(CHAT, b"{"),
            429: await site.submit(),
            401: await site.pop(key="nobody's"),
        }

    for status, answer in answers.items():
        assert answer.status_code == status
        is_open(answer)
        assert answer.headers["horde-node"] == (
            f"{socket.gethostname()}:1234:{version('hordechat')}"
        )


@pytest.mark.parametrize("path", [CHAT, "/v2/generate/text/pop", "/v2/nowhere"])
async def test_a_preflight_is_answered_without_a_key_or_a_limit(site: Site, path: str) -> None:
    asked = {
        "origin": "http://localhost:5174",
        "access-control-request-method": "POST",
        "access-control-request-headers": "apikey,client-agent,content-type",
    }

    answer = await site.http.options(path, headers=asked)

    assert (answer.status_code, answer.content) == (204, b"")
    is_open(answer)
    assert int(answer.headers["access-control-max-age"]) > 0


async def test_options_without_a_preflight_tell_the_methods_of_a_route(site: Site) -> None:
    answer = await site.http.options(CHAT)

    assert answer.status_code == 200
    assert "POST" in answer.headers["allow"]
    is_open(answer)


async def test_a_bug_s_answer_may_be_read_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.parts.accounts, "find", None)

    answer = await site.post(CHAT, BODY, site.client_key)

    assert answer.status_code == 500
    is_open(answer)


async def test_answers_before_redis_is_there_may_be_read() -> None:
    app = create_starting_app("host:1:2")
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/v2/anything")

    assert answer.status_code == 503
    is_open(answer)
    assert answer.headers["horde-node"] == "host:1:2"
