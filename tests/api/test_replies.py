"""Replies to chat jobs over the whole API: what is refused, remembered, counted and announced."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio

from events import faults
from events.keys import channel
from handlers import reply as replies
from handlers.cancel import expire
from tests.api.site import MODEL, Site
from tests.instruments import counted, point
from tests.logged import logged
from tests.spec import spec

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
WORKER_FAULTS = "horde.chat.worker_faults"
JSON_OBJECT = {"response_format": {"type": "json_object"}}
OFFER = {
    "chat_features": [
        "prompt_overflow_refused",
        "tools",
        "json_object",
        "json_schema",
        "structured_output_enforced",
        "tool_choice_enforced",
    ]
}


async def job(site: Site, name: str = "w", **asked: Any) -> tuple[str, str]:
    """A request and the generation that a worker of that name holds."""
    await site.pop(name=name, **OFFER)
    await site.project()
    request_id = await site.queued(**asked)
    await site.project()
    return request_id, (await site.popped(name=name, **OFFER))["id"]


async def told(site: Site, request_id: str) -> dict[str, Any]:
    await site.project()
    answer = await site.status(request_id)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def fails(site: Site, generation_id: str, rc: str, **changed: Any) -> str:
    answer = await site.reply(generation_id, **changed)
    assert (answer.status_code, answer.json()["rc"]) == (400, rc), answer.text
    return str(answer.json()["message"])


async def give_up(site: Site, generation_id: str, **said: Any) -> None:
    body = {"id": generation_id, "state": "faulted", "model_id": MODEL} | said
    sent = {name: value for name, value in body.items() if value is not ...}
    answer = await site.post("/v2/generate/text/submit", sent, site.owner_key)
    assert (answer.status_code, answer.json()) == (200, {"reward": 0.0})


def message(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@asynccontextmanager
async def listening(site: Site, redis_url: str, request_id: str) -> AsyncIterator[list[Any]]:
    """Completion signals of a request, complete when the block ends."""
    heard: list[Any] = []
    async with redis.asyncio.Redis.from_url(redis_url) as client, client.pubsub() as subscription:
        await subscription.subscribe(channel(request_id), "the end")
        yield heard
        await site.project()
        await client.publish("the end", b"")
        async for each in subscription.listen():
            if each["channel"] == b"the end" and each["type"] == "message":
                break
            if each["type"] == "message":
                heard.append(json.loads(each["data"]))


@spec("Refusal record and worker counters", 1)
async def test_a_refused_reply_leaves_the_job_to_its_worker(any_site: Site) -> None:
    """C-037: tool arguments as an object."""
    site = any_site
    request_id, generation_id = await job(site, tools=TOOLS)
    bad = CALL | {"function": {"name": "f", "arguments": {"a": 1}}}

    await fails(site, generation_id, "ChatSubmitInvalid", message=message(None, tool_calls=[bad]))

    keys = site.parts.log.keys
    content = await site.parts.log.read("HGET", keys.content(request_id), "fault_reason")
    assert b"arguments" in content
    standing = await told(site, request_id)
    assert (standing["processing"], standing["fault_reason"], standing["fault_rc"]) == (
        1,
        None,
        None,
    )
    good = message(None, tool_calls=[CALL])
    answer = await site.reply(generation_id, message=good, finish_reason="tool_calls")
    assert answer.status_code == 200
    (generation,) = (await told(site, request_id))["generations"]
    assert (generation["message"], generation["finish_reason"]) == (good, "tool_calls")


@spec("Refusal record and worker counters", 2, 3)
async def test_the_last_refusal_is_told_of_a_request_that_is_faulted(
    site: Site, redis_url: str
) -> None:
    """C-045: three replies that are no JSON, each followed by a fault."""
    request_id, generation_id = await job(site, **JSON_OBJECT)
    async with listening(site, redis_url, request_id) as heard:
        for attempt in range(3):
            if attempt:
                await site.project()
                generation_id = (await site.popped(name=f"w{attempt}", **OFFER))["id"]
            await fails(site, generation_id, "ChatModelMismatch", model_id="other")
            said = await fails(site, generation_id, "ChatSubmitNonconformant")
            await give_up(site, generation_id, fault_reason="reply_refused")
    standing = await told(site, request_id)

    assert (standing["faulted"], standing["fault_reason"], standing["fault_rc"]) == (
        True,
        said,
        "ChatSubmitNonconformant",
    )
    assert heard == [
        {
            "id": request_id,
            "event": "faulted",
            "generations": 0,
            "fault_reason": said,
            "fault_rc": "ChatSubmitNonconformant",
        }
    ]


@spec("Refusal record and worker counters", 1)
async def test_a_long_refusal_is_cut_and_never_enters_the_log(site: Site) -> None:
    request_id, generation_id = await job(site, tools=TOOLS)
    marker = "Q" * 3000
    bad = CALL | {"type": marker}

    await fails(site, generation_id, "ChatSubmitInvalid", message=message(None, tool_calls=[bad]))
    await site.project()

    log = site.parts.log
    content = await log.read("HGET", log.keys.content(request_id), "fault_reason")
    assert 0 < len(content.decode()) <= 1000
    entries = await log.read("XRANGE", log.keys.events(log.keys.of(request_id)), "-", "+")
    assert b"QQQ" not in repr(entries).encode()


@spec("Structured submit", 8, 11, 13)
@spec("Worker fault reasons", 1, 2, 3, 4, 5, 6)
@pytest.mark.parametrize("word", [*faults.MESSAGES, "invented", None, 7, "x" * 5000])
async def test_a_worker_s_reason_is_told_by_a_fixed_sentence(
    site: Site, redis_url: str, word: Any
) -> None:
    before = counted()
    request_id, generation_id = await job(site)
    async with listening(site, redis_url, request_id) as heard:
        for attempt in range(3):
            if attempt:
                await site.project()
                generation_id = (await site.popped(name=f"w{attempt}"))["id"]
            await give_up(site, generation_id, fault_reason=word)
    standing = await told(site, request_id)

    sentence = faults.MESSAGES.get(word) if isinstance(word, str) else None
    rc = "ChatWorkerFault" if sentence else None
    assert (standing["fault_reason"], standing["fault_rc"]) == (sentence, rc)
    extra = {"fault_reason": sentence, "fault_rc": rc} if sentence else {}
    assert heard == [{"id": request_id, "event": "faulted", "generations": 0, **extra}]
    said = "none" if word is None else word if sentence else "unknown"
    reasons = point(WORKER_FAULTS, reason=said, worker_trusted=False)
    assert (counted() - before)[reasons] == 3


@spec("Worker fault reasons", 6)
async def test_every_fault_of_a_chat_job_is_counted_and_of_no_other(site: Site) -> None:
    """In the form of text jobs too, and again where the job ended before; nothing says why."""
    before = counted()
    _, generation_id = await job(site)
    for _ in range(2):
        await give_up(site, generation_id, generation="faulted", model_id=...)
    assert (await site.post("/v2/generate/text/async", {"prompt": "x"}, site.client_key)).is_success
    await site.project()
    await give_up(site, (await site.popped(chat_jobs=False))["id"], fault_reason="generation_error")

    faults_counted = {
        each: count for each, count in (counted() - before).items() if each[0] == WORKER_FAULTS
    }
    assert faults_counted == {point(WORKER_FAULTS, reason="none", worker_trusted=False): 2}


@spec("Worker fault reasons", 6)
async def test_a_refusal_says_more_than_the_reason_of_the_same_job(site: Site) -> None:
    request_id, generation_id = await job(site, **JSON_OBJECT)
    said = await fails(site, generation_id, "ChatSubmitNonconformant")
    await give_up(site, generation_id, fault_reason="generation_error")
    for name in ("b", "c"):
        await site.project()
        await give_up(site, (await site.popped(name=name, **OFFER))["id"])
    standing = await told(site, request_id)

    assert (standing["fault_reason"], standing["fault_rc"]) == (said, "ChatSubmitNonconformant")


@spec("Completion signal", 4)
async def test_an_expiry_still_tells_why_and_leaves_nothing_for_long(
    site: Site, redis_url: str
) -> None:
    request_id, generation_id = await job(site, **JSON_OBJECT)
    said = await fails(site, generation_id, "ChatSubmitNonconformant")
    log = site.parts.log
    async with listening(site, redis_url, request_id) as heard:
        await log.read("HINCRBY", log.keys.control(0), "clock_ms", 1_300_000)
        await expire(log, site.parts.limits, request_id)

    assert [(each["event"], each["fault_reason"]) for each in heard] == [("faulted", said)]
    assert 0 < await log.read("TTL", log.keys.content(request_id)) <= 60
    assert await log.read("HKEYS", log.keys.content(request_id)) == [b"fault_reason"]


@spec("Reply verification", 6, 10)
async def test_dropped_calls_are_told_in_the_log(site: Site) -> None:
    forced = {"type": "function", "function": {"name": "f"}}
    request_id, generation_id = await job(
        site, tools=TOOLS, tool_choice=forced, parallel_tool_calls=False
    )
    calls = [CALL, CALL | {"id": "call_2"}]

    with logged(replies.logger) as lines:
        answer = await site.reply(
            generation_id, message=message(None, tool_calls=calls), finish_reason="tool_calls"
        )

    assert answer.status_code == 200
    (line,) = (line for line in lines if line["event"] == "horde.job_submit.done")
    assert line["dropped_tool_calls"] == 1
    (generation,) = (await told(site, request_id))["generations"]
    assert generation["message"]["tool_calls"] == [CALL]
    assert generation["finish_reason"] == "stop"


@spec("Structured submit", 15)
async def test_an_empty_reply_is_complete_and_counted_by_its_model(site: Site) -> None:
    """C-049."""
    before = counted()
    request_id, generation_id = await job(site)
    table: list[dict[str, Any]] = [
        {"message": message(None, tool_calls=[])},
        {"message": message(None)},
        {"finish_reason": "tool_calls"},
        {"finish_reason": "error"},
    ]
    for changed in table:
        await fails(site, generation_id, "ChatSubmitInvalid", **changed)

    assert (await site.reply(generation_id, message=message(""))).status_code == 200

    assert (await told(site, request_id))["generations"][0]["message"]["content"] == ""
    assert (counted() - before)[point("horde.text.empty_generations", model=MODEL)] == 1


async def test_a_strict_schema_that_never_ends_is_refused_and_others_go_on(site: Site) -> None:
    """C-041."""
    schema = {
        "type": "object",
        "properties": {"p": {"type": "string", "pattern": "^(a+)+$"}},
        "required": ["p"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    request_id, generation_id = await job(site, response_format=form)

    await fails(
        site,
        generation_id,
        "ChatSubmitNonconformant",
        message=message('{"p":"' + "a" * 34 + '!"}'),
    )

    assert (await site.reply(generation_id, message=message('{"p":"aaa"}'))).status_code == 200
    assert (await told(site, request_id))["finished"] == 1


@spec("Structured submit", 12)
async def test_a_reply_that_comes_too_late_is_not_remembered(site: Site) -> None:
    request_id, generation_id = await job(site, **JSON_OBJECT)
    await give_up(site, generation_id)

    await fails(site, generation_id, "AbortedGen")

    log = site.parts.log
    assert await log.read("HGET", log.keys.request(request_id), "fault_rc") is None


async def test_best_effort_takes_what_strict_refuses(site: Site) -> None:
    _, generation_id = await job(site, **JSON_OBJECT, horde={"conformance": "best_effort"})

    assert (await site.reply(generation_id)).status_code == 200


async def test_a_second_submit_is_no_fault_of_a_worker_in_maintenance(site: Site) -> None:
    _, generation_id = await job(site)
    assert (await site.reply(generation_id)).status_code == 200
    await fails(site, generation_id, "DuplicateGen")
    worker_id = (await site.http.get("/v2/workers/name/w")).json()["id"]
    body, headers = {"maintenance": True}, {"apikey": site.owner_key}
    await site.http.put(f"/v2/workers/{worker_id}", json=body, headers=headers)
    before = await site.log_length()

    for ended in ({}, {"state": "faulted", "message": ..., "finish_reason": ...}):
        answer = await site.reply(generation_id, **ended)
        assert (answer.status_code, answer.json()) == (200, {"reward": 0.0})
    assert await site.log_length() == before
