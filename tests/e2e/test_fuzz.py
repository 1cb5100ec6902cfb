"""Bodies that may be anything, against a running service: each is answered, none with a 500; pops
beside them are answered at once, and the web processes' memory stays where it was."""

from __future__ import annotations

import asyncio
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.conftest import Pool, only_plain
from tests.e2e.harness import CHAT, MODEL, POP, declaration, family
from tests.e2e.wire import Http
from tests.handlers.chat.test_fuzz import bodies as chat_bodies
from tests.handlers.text.test_fuzz import bodies as text_bodies

TEXT = "/v2/generate/text/async"
SUBMIT = "/v2/generate/text/submit"
PROGRESS = "/v2/generate/text/progress"
CONNECTIONS = 4
STALL_SECONDS = 5.0
"""More than a busy machine holds a process up."""
GROWN_BYTES = 150 * 2**20
"""Of all web processes: a few bodies at once, and what allocators keep."""
LONG = b'"' + b"long text " * 100_000 + b'"'
"""1 MiB in one string, wherever a body says "m" or "é"."""


def drawn(strategy: st.SearchStrategy[bytes], count: int) -> list[bytes]:
    """So many bodies, others in each run."""
    found: list[bytes] = []

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(raw: bytes) -> None:
        found.append(raw)

    collect()
    return found


def calls(count: int) -> list[tuple[str, bytes]]:
    """Where each body goes. Half of the chat bodies name a model that is served; one in twenty is
    made long."""
    found = []
    for at, raw in enumerate(drawn(chat_bodies(), count)):
        served = raw.replace(b'"m"', b'"' + MODEL.encode() + b'"') if at % 2 else raw
        longer = served.replace(b'"x"', LONG, 1) if at % 20 == 0 else served
        found += [(CHAT, longer)] + [(path, raw) for path in (POP, SUBMIT, PROGRESS) if at % 4 == 0]
    found += [(TEXT, raw) for raw in drawn(text_bodies(), count)]
    return found


async def fuzz(pool: Pool, count: int) -> None:
    """Send them all over a few connections; pop beside them until they are through."""
    web = [psutil.Process(pid) for pid in family(pool.up.pid("web"))]
    assert web
    before = sum(process.memory_info().rss for process in web)
    left = calls(count)
    statuses: dict[int, int] = {}
    queued: list[str] = []
    slowest = 0.0

    async def send() -> None:
        async with Http(pool.up.url, pool.client) as client:
            while left:
                path, raw = left.pop()
                answer = await client.call("POST", path, raw)
                statuses[answer.status] = statuses.get(answer.status, 0) + 1
                assert answer.status < 500 or answer.status == 503, (path, raw[:2000], answer)
                assert answer.status < 400 or answer.rc, (path, raw[:2000], answer)
                if answer.status == 202:
                    family_ = "chat" if path == CHAT else "text"
                    queued.append(f"/v2/generate/{family_}/status/{answer.body['id']}")

    async def pop() -> None:
        nonlocal slowest
        async with Http(pool.up.url, pool.owner) as worker:
            body: dict[str, Any] = declaration("beside") | {"models": ["idle"], "model_id": "idle"}
            while left:
                answer = await worker.call("POST", POP, body | {"prompt_jobs": False})
                assert answer.status == 200, answer
                slowest = max(slowest, answer.seconds)

    await asyncio.gather(pop(), *(send() for _ in range(CONNECTIONS)))
    async with Http(pool.up.url, pool.client) as client:
        for path in queued:
            assert (await client.call("DELETE", path)).status == 200

    assert statuses[202] > 0
    assert statuses[400] > 0
    assert slowest < STALL_SECONDS
    assert sum(process.memory_info().rss for process in web) - before < GROWN_BYTES


@only_plain
async def test_no_body_breaks_or_stalls_the_service(pool: Pool) -> None:
    await fuzz(pool, 250)


@pytest.mark.soak
@only_plain
async def test_many_bodies_break_or_stall_nothing(pool: Pool) -> None:
    await fuzz(pool, 5000)
