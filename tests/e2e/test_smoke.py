"""One chat request through every process, by the programs that people use; then a second start."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.e2e.harness import (
    CHAT,
    MODEL,
    Up,
    alive,
    chat,
    eventually,
    status_of,
    until,
)
from tests.e2e.wire import Answer, Http

pytestmark = pytest.mark.e2e

TEXT = "one two three four five six seven"
UNTIMED = {"progressed", "waiting-changed"}
"""How often the one comes, and whether the other comes before the reply, is a matter of pace."""
LIFE = ["admitted", "submitted", "assigned", "submitted-reply", "released", "charged"]


async def test_a_streamed_request_from_end_to_end_and_a_second_start(tmp_path: Path) -> None:
    up = Up(tmp_path).start()
    client_key, owner_key = await asyncio.gather(*(_account(up, name) for name in ("c", "o")))
    worker = up.beside(
        "worker",
        *("worker", "--api-key", owner_key, "--name", "w", "--model", MODEL, "--backend", "echo"),
    )
    async with Http(up.url, client_key) as client:
        request_id = await _submitted(client)
        processing = await _status(client, request_id, lambda told: told["processing"])
        done = await client.call("GET", status_of(request_id), wait=20)

    assert processing.body["generations"] == []
    assert (done.status, done.body["done"], done.body["faulted"]) == (200, True, False)
    (generation,) = done.body["generations"]
    assert generation["message"] == {"role": "assistant", "content": TEXT}
    assert generation["finish_reason"] == "stop"
    assert generation["worker_name"] == "w"
    posts = await _posts(up, request_id)
    assert "".join(posts) == TEXT
    assert len(posts) > 1
    lines = _log(up, request_id)
    words = [line.split()[3] for line in lines]
    assert [word for word in words if word not in UNTIMED] == LIFE
    assert TEXT not in "\n".join(lines)
    assert up.info()["url"] == up.url
    assert worker.end() == 0, worker.tail()
    assert up.bugs(worker.log) == []
    _stop(up)

    up.start()
    async with Http(up.url, client_key) as client:
        again = await client.call("GET", status_of(request_id))
    assert again.body == done.body
    assert "no difference" in up.cli("verify")
    assert "no difference" in up.cli("ledger", "check")
    _stop(up)


def _stop(up: Up) -> None:
    everyone = up.everyone()
    assert len(everyone) > 8
    assert up.end() == 0, up.program.tail()
    assert [pid for pid in everyone if alive(pid)] == []
    assert up.bugs() == []


def _log(up: Up, request_id: str) -> list[str]:
    """The request's events, once the settler was there."""
    seen: list[str] = []

    def settled() -> bool:
        seen[:] = up.cli("log", "--request", request_id).splitlines()
        return {"released", "charged"} <= {line.split()[3] for line in seen}

    until(settled, 60, "the settler")
    return seen


async def _account(up: Up, name: str) -> str:
    told = json.loads(await asyncio.to_thread(up.cli, "user", "create", name))
    assert told["username"] == f"{name}#{told['id']}"
    return told["api_key"]


async def _submitted(client: Http) -> str:
    """Submit, once the worker is seen."""
    ids: list[str] = []

    async def accepted() -> bool:
        answer = await client.call("POST", CHAT, chat(TEXT, stream=True))
        if answer.status == 202:
            ids.append(answer.body["id"])
        else:
            assert answer.rc in ("UnknownChatModel", "NoEligibleWorker"), answer
        return bool(ids)

    await eventually(accepted, 60, "a worker that is seen")
    return ids[0]


async def _status(client: Http, request_id: str, wanted) -> Answer:
    seen: list[Answer] = []

    async def look() -> bool:
        seen.append(await client.call("GET", status_of(request_id)))
        assert seen[-1].status == 200, seen[-1]
        return bool(wanted(seen[-1].body))

    await eventually(look, 60, "a status")
    return seen[-1]


async def _posts(up: Up, request_id: str) -> list[str]:
    """What the worker posted while it generated."""
    import redis.asyncio

    from events.keys import Keys

    async with redis.asyncio.Redis.from_url(up.info()["redis_url"]) as reader:
        entries = await reader.xrange(Keys(1).stream(request_id))
    return [fields[b"content"].decode() for _, fields in entries if b"content" in fields]
