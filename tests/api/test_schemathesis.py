"""Calls made up from the served document: none is answered with 5xx, or as it does not tell.

schemathesis runs as its own process against a real server on loopback, with all that a deployment
has running beside it. A call that fails is printed with the command that repeats it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from api.description import examples
from handlers.accounts import open_account
from hordechat.datadir import free_port
from hordechat.settling import settle
from lua.link import Tail
from tests.api.described import template_of
from tests.api.site import LENIENT, SECRET, Site, opened

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
SEED = 20
AMPLE = 100_000
"""Waiting jobs of an account: a bound on them would hide what comes after it."""
JOBS = 20


class Visited:
    """An app that notes how each operation was answered."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.answers: Counter[tuple[str, str, int]] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                method, path = scope["method"], template_of(scope["path"])
                self.answers[method, path, message["status"]] += 1
            await send(message)

        await self._app(scope, receive, noted)


@asynccontextmanager
async def deployed(
    redis_url: str, database_url: str, **changed: Any
) -> AsyncIterator[tuple[Site, Visited, str]]:
    """A site behind a port, with everything running and jobs waiting: yield it and its URL."""
    settings = {"concurrency": AMPLE, "rate_limits_enabled": False} | changed
    async with opened(redis_url, database_url, patience=LENIENT, **settings) as site:
        await _fill(site)
        async with site.projected(), settled(site, redis_url):
            visited = Visited(site.app)
            async with served(visited) as url:
                yield site, visited, url


@asynccontextmanager
async def settled(site: Site, redis_url: str) -> AsyncIterator[None]:
    """A settler that follows the log."""
    tail = Tail(redis_url)
    settling = asyncio.create_task(settle(site.parts.log, site.parts.limits, tail, 0))
    try:
        yield
    finally:
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
        await tail.close()


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """An app behind a port: yield its URL."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


async def _fill(site: Site) -> None:
    """A worker that the examples name, and jobs for it and for any other: made up pops get some."""
    (pop,) = examples.POP.values()
    await site.post("/v2/generate/text/pop", pop, site.owner_key)
    await site.project()
    text = {"prompt": "For whoever comes.", "params": {"n": 20}}
    for _ in range(JOBS):
        for chat in examples.CHAT.values():
            await site.post("/v2/generate/chat/async", chat, site.client_key)
        await site.post("/v2/generate/text/async", text, site.client_key)
    await site.project()


async def run(key: str, url: str, folder: Path, *options: str) -> None:
    """Let schemathesis call the server with an account's key."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/v2/openapi.json"),
        *("--checks", ",".join(CHECKS), "--continue-on-failure"),
        *("--header", f"apikey: {key}"),
        *("--request-timeout", "60", "--seed", str(SEED), "--generation-database", "none"),
        *("--no-color", "--output-truncate", "false", "--warnings", "off"),
        *options,
    ]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert process.returncode == 0, said.decode()


async def test_made_up_calls_are_answered_as_the_document_tells(
    redis_url: str, migrated_url: str, tmp_path: Path
) -> None:
    async with deployed(redis_url, migrated_url) as (site, visited, url):
        phases = ("--phases", "examples,fuzzing")
        await run(site.owner_key, url, tmp_path, *phases, "--max-examples", "10", "--no-shrink")

    # It came behind the first checks. How far behind them depends on chance.
    assert visited.answers["POST", "/v2/generate/chat/async", 202]
    assert visited.answers["POST", "/v2/generate/text/async", 202]
    assert visited.answers["POST", "/v2/generate/text/pop", 200]


@pytest.mark.soak
async def test_long_walks_of_made_up_calls_are_answered_as_the_document_tells(
    redis_url: str, migrated_url: str, tmp_path: Path
) -> None:
    async with deployed(redis_url, migrated_url) as (site, visited, url):
        await run(site.owner_key, url, tmp_path, "--max-examples", "300")

    for family in ("chat", "text"):
        for method in ("GET", "DELETE"):
            assert visited.answers[method, f"/v2/generate/{family}/status/{{request_id}}", 200]


@pytest.mark.soak
async def test_jobs_that_made_up_pops_got_end_as_the_document_tells(
    redis_url: str, migrated_url: str, tmp_path: Path
) -> None:
    """On its own: among all routes, schemathesis starts no walk with a pop."""
    async with deployed(redis_url, migrated_url) as (site, visited, url):
        routes = ("--include-path-regex", "^/v2/generate/text/(pop|submit|progress)$")
        options = ("--phases", "stateful", "--max-examples", "100")
        await run(site.owner_key, url, tmp_path, *routes, *options)

    assert visited.answers["POST", "/v2/generate/text/submit", 200]
    assert visited.answers["POST", "/v2/generate/text/progress", 200]


@pytest.mark.soak
async def test_what_moderators_may_do_is_answered_as_the_document_tells(
    redis_url: str, migrated_url: str, tmp_path: Path
) -> None:
    name = "moderator"
    async with deployed(redis_url, migrated_url, admins=f"{name}#3") as (site, visited, url):
        number, key = await open_account(site.parts.log, SECRET, name, moderator=True)
        assert number == 3
        routes = ("--include-path-regex", "^/v2/(operations|status|users|sharedkeys|find_user)")
        options = ("--phases", "examples,coverage,fuzzing", "--max-examples", "100")
        await run(key, url, tmp_path, *routes, *options)

    assert visited.answers["PUT", "/v2/status/modes", 200]
    assert visited.answers["POST", "/v2/operations/ipaddr", 200]
    assert visited.answers["DELETE", "/v2/operations/ipaddr", 200]
    assert visited.answers["GET", "/v2/users", 200]
    assert visited.answers["PUT", "/v2/sharedkeys", 200]
