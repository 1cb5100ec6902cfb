"""Failure cases that others met, as their inputs came over HTTP. Those that a body alone decides
stand with the rules: search tests/ for their numbers."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import httpx
import msgspec
import pytest

from api.app import create_app
from tests.api.asgi_client import Call
from tests.api.site import BODY, MODEL, POP, Site

CHAT = "/v2/generate/chat/async"
TEXT = "/v2/generate/text/async"
POP_ROUTE = "/v2/generate/text/pop"
IDLE = {"name": "idle", "models": ["idle"], "model_id": "idle"}
GOOD = {
    CHAT: b'{"model":"test/model","messages":[{"role":"user","content":"x"}]',
    TEXT: b'{"prompt":"x"',
    POP_ROUTE: b'{"name":"w","models":["test/model"]',
    "/v2/generate/text/submit": b'{"id":"x","generation":"x"',
    "/v2/generate/text/progress": b'{"id":"x","seq":1,"delta":{"content":"x"}',
    "/v2/status/modes": b'{"maintenance":true',
    "/v2/operations/ipaddr": b'{"ipaddr":"198.51.100.1","hours":1',
}
"""A valid body of each route that takes one, but for its end."""


async def refused(site: Site, path: str, body: Any, rc: str = "BadRequest") -> httpx.Response:
    """The body's refusal: a 400, by which nothing was stored."""
    before = await site.state()
    method = "PUT" if path.endswith("modes") else "POST"
    sent = body if isinstance(body, bytes) else msgspec.json.encode(body)

    answer = await site.http.request(method, path, content=sent, headers={"apikey": site.owner_key})

    assert (answer.status_code, answer.json()["rc"]) == (400, rc), answer.text
    assert await site.state() == before
    return answer


async def test_no_route_reads_a_document_that_nests_without_end(site: Site) -> None:
    """C-001."""
    for path, start in GOOD.items():
        levels = 20_000 if path.startswith("/v2/generate/") else 5_000  # which fits their bounds
        started = time.process_time()
        answer = await refused(
            site, path, start + b',"metadata":' + b"[" * levels + b"]" * levels + b"}"
        )

        assert time.process_time() - started < 1
        assert "nests deeper" in answer.json()["message"]
    assert (await site.submit()).status_code == 202


async def test_half_a_surrogate_pair_is_refused_by_its_place_wherever_it_stands(
    site: Site,
) -> None:
    """C-003: beside an operation key, whose fingerprint would be of it."""
    key = b',"horde":{"operation_key":"' + str(uuid.uuid4()).encode() + b'"}'
    message = b'{"model":"test/model","messages":[{"role":"user",'
    tool = b'"tools":[{"type":"function","function":{"name":"f","description":"hi \\ud83d"}}]'
    for body, place in (
        (message + b'"content":"hi \\ud83d"}]' + key + b"}", "messages[0].content"),
        (message + b'"content":"x","name":"\\ud83d"}]' + key + b"}", "messages[0].name"),
        (GOOD[CHAT] + key + b',"stop":"\\ud83d"}', "stop"),
        (GOOD[CHAT] + key + b"," + tool + b"}", "tools[0].function.description"),
        (GOOD[CHAT] + key + b',"metadata":{"\\ud83d":1}}', "metadata.\\ud83d"),
    ):
        answer = await refused(site, CHAT, body)

        assert list(answer.json()["errors"]) == [place]
    # The key was not claimed by any of them.
    assert (await site.post(CHAT, GOOD[CHAT] + key + b"}", site.owner_key)).status_code == 202


async def test_nul_never_reaches_a_store(site: Site) -> None:
    """C-005."""
    schema = {"type": "object", "properties": {"k\0": {}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for changed, place in (
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages[0].content"),
        ({"model": "m\0"}, "model"),
        ({"tools": [tool]}, "tools[0].function.parameters.properties.k\\u0000"),
    ):
        answer = await refused(site, CHAT, BODY | changed, "NulByteInPayload")
        assert list(answer.json()["errors"]) == [place]

    told = await site.post(CHAT, BODY, site.client_key, {"client-agent": "a%00b:1:c"})
    assert told.status_code == 202
    await site.project()
    reply = {"role": "assistant", "content": "x\0y"}
    assert (await site.reply((await site.popped())["id"], message=reply)).status_code == 200
    await site.project()
    (generation,) = (await site.status(told.json()["id"])).json()["generations"]
    assert generation["message"]["content"] == "x\ufffdy"


async def test_what_is_no_number_is_refused(site: Site) -> None:
    """C-007."""
    for text in (
        b'"temperature":NaN',
        b'"top_p":Infinity',
        b'"temperature":1e999',
        b'"frequency_penalty":-1e999',
    ):
        await refused(site, CHAT, GOOD[CHAT] + b"," + text + b"}")
    limits = POP["chat_limits"] | {"tools_max_temperature": "?"}
    pop = msgspec.json.encode(POP | {"chat_limits": limits})
    for number in (b"NaN", b"1e999"):
        await refused(site, POP_ROUTE, pop.replace(b'"?"', number), "ChatDeclarationInvalid")


async def test_who_repeats_a_key_is_not_taken_at_either_word(site: Site) -> None:
    """C-009: a cheap model and a dear one, a small cap and a large one."""
    body = (
        b'{"model":"cheap","model":"test/model","max_tokens":16,"max_tokens":16384,'
        b'"messages":[{"role":"user","content":"x"}],"horde":{"max_kudos":1,"max_kudos":100000}}'
    )

    answer = await refused(site, CHAT, body)

    assert "repeats a key" in answer.json()["message"]


async def test_clients_that_dribble_hold_up_nobody_and_are_cut(site: Site) -> None:
    """C-013."""
    app = create_app(msgspec.structs.replace(site.parts, body_seconds=5))
    head = {"apikey": site.client_key, "content-length": "30000000"}
    slow = [Call(app, "POST", CHAT, head).start(None) for _ in range(50)]

    async def dribble() -> None:
        while True:
            for call in slow:
                call.send(b" ", more=True)
            await asyncio.sleep(0.05)

    dribbling = asyncio.create_task(dribble())
    request_id = await site.queued()
    await site.project()
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as honest:
        key = {"apikey": site.owner_key}
        asked = 0
        while not all(call.answered for call in slow):
            status = await honest.get(f"/v2/generate/chat/status/{request_id}")
            popped = await honest.post(POP_ROUTE, json=POP | IDLE, headers=key)
            assert (status.status_code, popped.status_code) == (200, 200)
            asked += not any(call.answered for call in slow)
    assert asked > 5  # while all of them dribbled

    dribbling.cancel()
    for call in slow:
        await call.ended()
    assert {(call.status, call.json["rc"]) for call in slow} == {(408, "RequestTimeout")}


async def test_both_names_of_the_token_limit_ask_for_the_same(site: Site) -> None:
    """C-023."""
    horde = {"operation_key": str(uuid.uuid4())}

    first = await site.submit(max_tokens=512, max_completion_tokens=512, horde=horde)
    before = await site.state()
    differ = await site.submit(max_tokens=512, max_completion_tokens=1024, horde=horde)
    again = await site.submit(max_completion_tokens=512, horde=horde)

    assert (first.status_code, differ.json()["rc"]) == (202, "ChatRequestConflict")
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert await site.state() == before


async def test_tools_with_a_format_wait_for_a_worker_that_declares_both_together(
    site: Site,
) -> None:
    """C-033. Above a free allowance its refusal would say the same; there is none yet."""
    declared = ["json_schema", "prompt_overflow_refused", "structured_output_enforced", "tools"]
    await site.pop(chat_features=declared)
    await site.project()
    tool = {"type": "function", "function": {"name": "f"}}
    schema = {"name": "J", "schema": {"type": "object"}}

    request_id = await site.queued(
        tools=[tool], response_format={"type": "json_schema", "json_schema": schema}
    )
    await site.project()

    status = (await site.status(request_id)).json()
    assert (status["waiting"], status["is_possible"]) == (1, False)
    assert status["impossible_reason"] == {
        "kind": "declaration_gap",
        "missing_declarations": ["tools_with_response_format"],
        "exceeded_limits": [],
    }
    assert (await site.pop(chat_features=declared)).json()["id"] is None
    await site.popped(chat_features=[*declared, "tools_with_response_format"])


@pytest.mark.parametrize(
    ("choice", "sent", "stored"),
    [
        ({"type": "function", "function": {"name": "f"}}, ["f"], "stop"),
        ("required", ["f", "g"], "tool_calls"),
    ],
    ids=["a function", "any"],
)
async def test_a_worker_gets_a_forced_function_alone_and_as_required(
    site: Site, choice: Any, sent: list[str], stored: str
) -> None:
    """C-035."""
    features = ["prompt_overflow_refused", "tool_choice_enforced", "tools"]
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    request_id = await site.queued(tools=tools, tool_choice=choice)
    await site.project()

    job = await site.popped(chat_features=features)

    assert [tool["function"]["name"] for tool in job["payload"]["tools"]] == sent
    assert job["payload"]["tool_choice"] == "required"
    called = {"name": "f", "arguments": "{}"}
    calls = [{"id": "call_1", "type": "function", "function": called}]
    reply = {"role": "assistant", "content": None, "tool_calls": calls}
    answer = await site.reply(job["id"], message=reply, finish_reason="tool_calls", model_id=MODEL)
    assert answer.status_code == 200
    await site.project()
    (generation,) = (await site.status(request_id)).json()["generations"]
    assert (generation["message"], generation["finish_reason"]) == (reply, stored)


async def test_a_job_holds_documented_keys_alone(site: Site) -> None:
    """C-099: what its worker does not know never reaches it."""
    for key in ("soft_prompt", "params", "prompt", "horde.models", "horde.webhook"):
        outer, _, inner = key.partition(".")
        body = BODY | {outer: {inner: "x"} if inner else "x"}
        answer = await refused(site, CHAT, body, "UnsupportedChatParameter")
        assert list(answer.json()["errors"]) == [key]
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    asked = {"messages": [{"role": "user", "content": "x", "tool_calls": calls}]}
    answer = await refused(site, CHAT, BODY | asked, "UnsupportedChatParameter")
    assert list(answer.json()["errors"]) == ["messages[0].tool_calls"]

    await site.queued(user="me", metadata={"a": 1}, stream_options={"include_usage": True})
    await site.project()
    job = await site.popped()

    assert job["payload"] == {
        "messages": BODY["messages"],
        "temperature": 1.0,
        "top_p": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "rep_pen": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "max_length": 512,
        "max_context_length": 2048,
        "n": 1,
    }
