"""Content is not history: what clients and workers say to each other is neither in the log, nor in
hot state, nor in Postgres, nor in the lines that the service logs (docs/adr/0006)."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg import sql

from handlers.fetch.fetcher import Fetcher
from hordechat.process import Service
from tests.api.gallery import opened_gallery, picture, shown
from tests.api.site import MODEL, Site
from tests.logged import logged
from tests.origin import PUBLIC, Hosts, Internet, ok, origin
from tests.spec import spec

MARK = "Zq7Zq"
HOLD_CONTENT = ("content:", "chat:stream:", "chat:lease:")
"""Keys with a TTL, whose business content is."""
FEATURES = [
    "prompt_overflow_refused",
    "tools",
    "json_schema",
    "structured_output_enforced",
    "tools_with_response_format",
]


class Marks:
    """Texts that can be told from each other wherever they turn up."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def new(self, what: str) -> str:
        """One more, named by the place that it is put into."""
        self.made.append(f"{MARK}_{what}")
        return self.made[-1]

    def found(self, stored: Iterable[str]) -> set[str]:
        """Those that stand in what is stored."""
        texts = list(stored)
        return {mark for mark in self.made if any(mark in text for text in texts)}


async def _value(site: Site, key: str) -> str:
    read = site.parts.log.read
    match (await read("TYPE", key)).decode():
        case "hash":
            value = await read("HGETALL", key)
        case "stream":
            value = await read("XRANGE", key, "-", "+")
        case "zset":
            value = await read("ZRANGE", key, 0, -1)
        case "set":
            value = await read("SMEMBERS", key)
        case "list":
            value = await read("LRANGE", key, 0, -1)
        case _:
            value = await read("GET", key)
    return repr(value)


async def _in_redis(site: Site) -> tuple[list[str], list[str]]:
    """Values of keys that hold content, and of all others."""
    content: list[str] = []
    others: list[str] = []
    keys = [key async for key in site.parts.log.redis.scan("*")]
    for key in keys:
        value = f"{key} {await _value(site, key)}"
        (content if any(each in key for each in HOLD_CONTENT) else others).append(value)
    return content, others


def _in_postgres(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        ).fetchall()
        return [
            row[0]
            for (table,) in tables
            for row in connection.execute(
                sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(table))
            )
        ]


def _request(marks: Marks) -> dict[str, Any]:
    schema = {
        "type": "object",
        "title": marks.new("schema"),
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    function = {
        "name": marks.new("function"),
        "description": marks.new("description"),
        "parameters": {"type": "object", "title": marks.new("parameters")},
    }
    return {
        "messages": [
            {"role": "system", "content": marks.new("system")},
            {"role": "user", "content": [{"type": "text", "text": marks.new("part")}]},
        ],
        "tools": [{"type": "function", "function": function}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": marks.new("format"), "schema": schema, "strict": True},
        },
        "stop": marks.new("stop"),
        "user": marks.new("user"),
        "metadata": {"k": marks.new("metadata")},
        "stream": True,
    }


async def test_content_stands_where_it_ends_and_nowhere_else(site: Site, migrated_url: str) -> None:
    marks = Marks()

    with logged(*_loggers()) as lines:
        await _business(site, marks)

    content, others = await _in_redis(site)
    rows = _in_postgres(migrated_url)
    assert marks.found(content) >= {f"{MARK}_{what}" for what in ("part", "delta", "reasoning")}
    assert marks.found(others) == set()
    assert marks.found(rows) == set()
    assert marks.found(map(repr, lines)) == set()
    # The search sees what is there.
    assert all(any(MODEL in each for each in place) for place in (others, rows))
    assert {"submitted", "progress", "refused", "horde.job_submit.done", "faulted"} <= {
        line["event"] for line in lines
    }


@spec("Images", 19)
async def test_images_and_where_they_came_from_stand_in_no_place_of_ours(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    """Queued, with turns dropped and messages screened; refused for each of several reasons."""
    marks = Marks()
    file, host = picture("red"), "images.example"
    sent = base64.b64encode(file).decode()
    marks.made += [sent[:20], sent[-20:], repr(file[:4])[2:-1], "JFIF", host]

    def url(path: str) -> str:
        return f"http://{host}/{path}?{marks.new(path)}"

    async with origin({}) as served:
        served.answers |= {f"/red?{MARK}_red": ok(file), f"/text?{MARK}_text": ok(b"")}
        fetcher = Fetcher(
            seconds=5,
            ports=frozenset({80}),
            resolve=Hosts({host: [[PUBLIC]]}).resolve,
            network=Internet({(PUBLIC, 80): served.port}),
        )
        offload = {"chat_messages_offload_enabled": True, "chat_messages_offload_bytes": 0}
        opening = opened_gallery(redis_url, migrated_url, s3_server, fetcher, **offload)
        async with opening as gallery:
            with logged(*_loggers()) as lines:
                old = [*shown(file), {"role": "assistant", "content": "x" * 30_000}]
                answer = await gallery.submit(messages=old + shown(url("red"), file))
                for wrong in ("text", "gone"):
                    assert (await gallery.submit(file, url(wrong))).status_code == 400
                await gallery.site.project()
                await gallery.site.cancel(answer.json()["id"])
                await gallery.site.settle()
                await gallery.site.project()
            content, others = await _in_redis(gallery.site)
            prompt = await gallery.content(answer.json()["id"], "submitted_prompt")

    assert answer.status_code == 202, answer.text
    assert prompt.count(b"[image]") == 3
    assert marks.found(content) == set()
    assert marks.found(others) == set()
    assert marks.found(_in_postgres(migrated_url)) == set()
    # Of what could not be fetched the host is told, and no more.
    told = [repr(line) for line in lines if line["event"] != "image_not_fetched"]
    assert marks.found(told) == set()
    assert marks.found(map(repr, lines)) == {host}
    assert any("horde-r2://" in each for each in content)
    assert any(line["event"] == "submitted" for line in lines)


def _loggers() -> list[Any]:
    """Of all modules of the service."""
    ours = ("api", "handlers", "projections", "lua")
    modules = [each for name, each in sys.modules.items() if name.split(".")[0] in ours]
    return [module.logger for module in modules if hasattr(module, "logger")]


async def _business(site: Site, marks: Marks) -> None:
    """A chat and a text job with replies refused and taken, and a job given up."""
    request_id = await site.queued(**_request(marks))
    await site.post(
        "/v2/generate/text/async", {"prompt": marks.new("prompt"), "models": ["t"]}, site.client_key
    )
    await site.project()
    job = (await site.popped(chat_features=FEATURES))["id"]
    text = (await site.popped(name="text", chat_jobs=False, models=["t"]))["id"]
    await site.project()

    await site.progress(job, 1, marks.new("delta"))
    delta = {"content": "", "reasoning_content": marks.new("thought")}
    body = {"id": job, "seq": 2, "delta": delta}
    assert (await site.post("/v2/generate/text/progress", body, site.owner_key)).status_code == 200
    for bad, finish in (
        ({"content": json.dumps({"n": marks.new("mismatch")})}, "stop"),
        ({"content": marks.new("no_json")}, "stop"),
        ({"content": None, "tool_calls": [_call(marks.new("unknown"), "{}", "c")]}, "tool_calls"),
        ({"content": marks.new("finish")}, marks.new("finish_reason")),
        ({"content": "", "tool_calls": marks.new("calls")}, "stop"),
    ):
        refused = await site.reply(job, message={"role": "assistant", **bad}, finish_reason=finish)
        assert refused.status_code == 400
        assert refused.json()["message"]
    assert (await site.reply(job, model_id=marks.new("model"))).status_code == 400
    good = {
        "role": "assistant",
        "content": '{"n": 1, "n": 2} ',
        "reasoning_content": marks.new("reasoning"),
        "tool_calls": [_call(f"{MARK}_function", marks.new("arguments"), marks.new("call"))],
    }
    assert (await site.reply(job, message=good, finish_reason="tool_calls")).status_code == 200
    submit = "/v2/generate/text/submit"
    reply = {"id": text, "generation": marks.new("text")}
    assert (await site.post(submit, reply, site.owner_key)).status_code == 200
    await site.project()
    other = await site.queued(messages=[{"role": "user", "content": marks.new("faulted")}])
    await site.project()
    fault = {
        "id": (await site.popped())["id"],
        "state": "faulted",
        "model_id": MODEL,
        "fault_reason": marks.new("fault"),
        "message": marks.new("fault_message"),
    }
    assert (await site.post(submit, fault, site.owner_key)).status_code == 200
    await site.cancel(other)
    await site.settle()
    await site.project()
    assert (await site.status(request_id)).json()["done"]


def _call(name: str, arguments: str, id_: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
