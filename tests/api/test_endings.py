"""How jobs end, told to their workers and clients: cancels, expiries, lapses, faults, replies in
parts. Inputs of failure cases that others met."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from handlers.janitor import Janitor
from tests.api.site import Site, opened
from tests.api.test_replies import fails, give_up, job, listening, message, told
from tests.spec import spec

IDLE = {"name": "idle", "models": ["idle"], "model_id": "idle"}


async def passes(site: Site, seconds: int) -> None:
    """So much time goes by, and the janitor comes."""
    log = site.parts.log
    for partition in log.keys.all():
        await log.read("HINCRBY", log.keys.control(partition), "clock_ms", seconds * 1000)
    for partition in log.keys.all():
        await Janitor(log, site.parts.limits, partition).sweep()
    await site.settle()
    await site.project()


async def taken(site: Site, name: str = "w", **asked: Any) -> tuple[str, str]:
    """A request, and the job that a worker holds of it."""
    request_id = await site.queued(**asked)
    await site.project()
    generation_id = (await site.popped(name=name))["id"]
    await site.project()
    return request_id, generation_id


async def said(site: Site, generation_id: str, seq: int = 1) -> tuple[int, Any]:
    """What a post is answered: its status, and what tells it from others."""
    answer = await site.progress(generation_id, seq, "x")
    body = answer.json()
    return answer.status_code, body.get("rc", body.get("cancelled"))


async def aborts(site: Site, name: str = "w") -> int:
    log = site.parts.log
    worker_id = (await log.read("GET", log.keys.worker_name(name))).decode()
    return int(await log.read("HGET", log.keys.worker(worker_id), "aborts") or 0)


@spec("Streaming progress", 6, 12, 13)
@spec("Structured submit", 12)
async def test_a_worker_is_not_blamed_for_what_others_ended(any_site: Site) -> None:
    """C-095: a cancel, a fault of its own, an expiry."""
    site = any_site
    cancelled, job_cancelled = await taken(site, stream=True)
    assert (await site.cancel(cancelled)).status_code == 200
    assert await said(site, job_cancelled) == (200, True)
    assert await said(site, job_cancelled) == (200, True)
    await fails(site, job_cancelled, "AbortedGen")
    await give_up(site, job_cancelled)
    await site.settle()
    assert await aborts(site) == 0

    _, job_faulted = await taken(site, "f", stream=True)
    await give_up(site, job_faulted)
    assert await said(site, job_faulted) == (404, "ChatJobAborted")
    await fails(site, job_faulted, "AbortedGen")
    await give_up(site, job_faulted)
    await site.settle()
    assert await aborts(site, "f") == 1

    _, job_expired = await taken(site, stream=True)
    await passes(site, 1201)
    assert await said(site, job_expired) == (404, "ChatJobAborted")
    late = await site.reply(job_expired)
    assert (late.status_code, late.json()["rc"]) == (404, "InvalidJobID")


@spec("Streaming progress", 7)
async def test_a_job_that_was_delivered_takes_no_more_posts(site: Site) -> None:
    _, generation_id = await taken(site, stream=True)
    assert (await site.reply(generation_id)).status_code == 200

    assert await said(site, generation_id) == (404, "ChatProgressNotStreaming")
    assert (await site.reply(generation_id)).json()["rc"] == "DuplicateGen"


@spec("Structured submit", 13)
@spec("Completion signal", 1, 4)
async def test_a_request_that_no_worker_finishes_is_faulted_at_the_third(
    site: Site, redis_url: str
) -> None:
    """C-097."""
    request_id = await site.queued(n=1)
    await site.project()
    async with listening(site, redis_url, request_id) as heard:
        for name in ("a", "b", "c"):
            assert (await site.popped(name=name))["id"]
            await passes(site, 151)

    assert heard == [{"id": request_id, "event": "faulted", "generations": 0}]
    status = await told(site, request_id)
    assert (status["faulted"], status["done"], status["waiting"]) == (True, True, 0)
    assert (await site.pop(name="d")).json()["id"] is None


@spec("Reasoning", 1, 2)
@spec("Streaming progress", 3)
async def test_thinking_stays_apart_from_the_answer(site: Site) -> None:
    """C-047."""
    request_id, generation_id = await taken(site, stream=True)
    path = "/v2/generate/text/progress"
    deltas = ({"reasoning_content": "let me"}, {"content": "4"})
    for seq, delta in enumerate(deltas, 1):
        body = {"id": generation_id, "seq": seq, "delta": delta}
        assert (await site.post(path, body, site.owner_key)).status_code == 200
    log = site.parts.log
    entries = await log.read("XRANGE", log.keys.stream(request_id), "-", "+")

    sent = message("4", reasoning_content="let me")
    assert (await site.reply(generation_id, message=sent)).status_code == 200

    fields = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in entries]
    assert [(each[b"content"], each.get(b"reasoning_content")) for each in fields] == [
        (b"", b"let me"),
        (b"4", None),
    ]
    (generation,) = (await told(site, request_id))["generations"]
    assert generation["message"] == sent
    events = await log.read("XRANGE", log.keys.events(log.keys.of(request_id)), "-", "+")
    (stored,) = (flat for _, flat in events if b"submitted-reply" in flat)
    assert stored[stored.index(b"characters") + 1] == b"7"


async def test_what_a_check_costs_is_bounded_and_nobody_beside_notices(
    redis_url: str, migrated_url: str
) -> None:
    """C-041, and C-043 beside it. The check may take longer than whatever holds the test up."""
    async with opened(redis_url, migrated_url, reply_check_seconds=5) as site:
        await _costs_are_bounded(site)


async def _costs_are_bounded(site: Site) -> None:
    schema = {
        "type": "object",
        "properties": {"p": {"pattern": "^(a+)+$"}, "n": {"multipleOf": 0.5}},
        "required": ["p", "n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    request_id, generation_id = await job(site, response_format=form)

    async def reply(p: str, n: str) -> tuple[int, str | None, float]:
        started = time.monotonic()
        content = '{"p":' + json.dumps(p) + ',"n":' + n + "}"
        answer = await site.reply(generation_id, message=message(content))
        return answer.status_code, answer.json().get("rc"), time.monotonic() - started

    await reply("b", "1")  # a process is there
    await site.project()
    endless = asyncio.create_task(reply("a" * 34 + "!", "1"))
    slowest, asked = 0.0, 0
    while not endless.done():
        started = time.monotonic()
        assert (await site.pop(**IDLE)).status_code == 200
        assert (await site.status(request_id)).status_code == 200
        slowest, asked = max(slowest, time.monotonic() - started), asked + 1

    status, rc, took = await endless
    assert (status, rc) == (400, "ChatSubmitNonconformant")
    assert took < 60  # without a bound it would take for ever
    assert slowest < took / 2
    assert asked > 5
    assert (await reply("aa", "1" + "0" * 400))[:2] == (400, "ChatSubmitNonconformant")
    assert (await reply("aa", "1e308"))[:2] == (200, None)
