"""The life of a text request over HTTP, beside chat requests and on the same workers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from tests.api.asgi_client import Call
from tests.api.site import LENIENT, MODEL, POP, Site, opened
from tests.proxy import Proxy
from tests.spec import spec

PROMPT = "Once upon a time"
ASYNC = "/v2/generate/text/async"
SUBMIT = "/v2/generate/text/submit"
CSAM = {"type": "censorship", "value": "csam"}


async def submit(site: Site, key: str | None = None, **changed: Any) -> httpx.Response:
    """Ask for text."""
    body = {"prompt": PROMPT, "models": [MODEL]} | changed
    return await site.post(ASYNC, body, key or site.client_key)


async def queued(site: Site, **changed: Any) -> str:
    """Queue a request that is accepted; return its id, with the read models up to date."""
    answer = await submit(site, **changed)
    assert answer.status_code == 202, answer.text
    await site.project()
    return str(answer.json()["id"])


async def status(site: Site, request_id: str, wait: int | None = None) -> dict[str, Any]:
    """The status, with the read models up to date."""
    answer = await site.read(f"/v2/generate/text/status/{request_id}", wait)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def reply(site: Site, generation_id: str, **changed: Any) -> httpx.Response:
    """Submit a text job's reply."""
    body = {"id": generation_id, "generation": "there was"} | changed
    given = {name: value for name, value in body.items() if value is not ...}
    return await site.post(SUBMIT, given, site.owner_key)


@spec("Text requests", 1, 2, 14, 15, 18)
@spec("Pricing", 11)
async def test_a_text_request_is_queued_pulled_answered_and_read_back(any_site: Site) -> None:
    site = any_site
    await site.pop()  # the worker shows itself
    await site.project()

    answer = await submit(site, params={"max_length": 64, "stop_sequence": ["END"], "unknown": 1})
    assert answer.status_code == 202
    assert answer.json() == {"id": answer.json()["id"], "kudos": 8}
    request_id = answer.json()["id"]
    await site.project()
    assert await status(site, request_id) == {
        "generations": [],
        "finished": 0,
        "processing": 0,
        "restarted": 0,
        "waiting": 1,
        "done": False,
        "faulted": False,
        "wait_time": 6,
        "queue_position": 1,
        "kudos": 1.0,
        "is_possible": True,
        "eligible_workers": 1,
        "eligible_worker_threads": 1,
        "might_stall": False,
    }

    job = await site.popped()
    assert job == {
        "payload": {
            "prompt": PROMPT,
            "n": 1,
            "max_length": 64,
            "max_context_length": 2048,
            "stop_sequence": ["END"],
            "min_p": 0.0,
            "smoothing_factor": 0.0,
            "dynatemp_range": 0.0,
            "dynatemp_exponent": 1.0,
        },
        "id": job["id"],
        "ids": [job["id"]],
        "model": MODEL,
        "ttl": 150,
        "skipped": {},
        "messages": [],
        "softprompt": None,
        "extra_source_images": None,
    }
    await site.project()
    assert (await status(site, request_id))["processing"] == 1

    rewarded = await reply(site, job["id"], seed="7", generation="there was\0")
    told = {"reward": 1.2114}  # of a model that nobody knows: flat, by 20 tokens of prompt
    assert (rewarded.status_code, rewarded.json()) == (200, told)
    await site.project()
    done = await status(site, request_id)
    assert (done["done"], done["finished"], done["waiting"], done["processing"]) == (True, 1, 0, 0)
    (generation,) = done["generations"]
    assert len(generation.pop("worker_id")) == 36
    assert generation == {
        "id": job["id"],
        "text": "there was\ufffd",
        "seed": 7,
        "gen_metadata": [],
        "worker_name": "w",
        "model": MODEL,
        "state": "ok",
    }


@spec("Text requests", 9, 15)
async def test_a_request_of_three_jobs_is_done_with_its_third_reply(any_site: Site) -> None:
    site = any_site
    request_id = await queued(site, params={"n": 3})

    jobs = []
    for name in ("a", "b", "c"):
        jobs.append(await site.popped(name=name))
        await site.project()
    assert len({job["id"] for job in jobs}) == 3
    assert all(job["payload"] == jobs[0]["payload"] for job in jobs)
    assert (await site.pop(name="d")).json()["id"] is None

    for number, job in enumerate(jobs):
        assert (await status(site, request_id))["done"] is False
        await reply(site, job["id"], generation=f"reply {number}")
        await site.project()
    done = await status(site, request_id)
    assert (done["done"], done["finished"]) == (True, 3)
    texts = [(each["text"], each["worker_name"]) for each in done["generations"]]
    assert texts == [("reply 0", "a"), ("reply 1", "b"), ("reply 2", "c")]


@spec("Text requests", 9)
async def test_a_worker_takes_as_many_jobs_as_it_asks_for(site: Site) -> None:
    request_id = await queued(site, models=[], params={"n": 3})

    first = await site.popped(amount=2, models=[MODEL, "other/model"])
    second = await site.popped(amount=2)

    assert (len(first["ids"]), first["id"], first["payload"]["n"]) == (2, first["ids"][0], 1)
    assert second["ids"] == [second["id"]]
    for id_ in (*first["ids"], *second["ids"]):
        await reply(site, id_)
    await site.project()
    done = await status(site, request_id)
    assert done["done"] is True
    models = [each["model"] for each in done["generations"]]
    assert models[0] == models[1] == first["model"]
    assert first["model"] in (MODEL, "other/model")


async def test_jobs_of_a_worker_that_left_go_to_the_next(site: Site) -> None:
    """The server has seen the end of the connection, but its message is still on the way."""
    request_id = await queued(site, params={"n": 2})
    gone = Call(site.app, "POST", "/v2/generate/text/pop", {"apikey": site.owner_key})
    gone.transport.closing = True
    async with site.projected():
        await gone.start(json.dumps(POP | {"name": "gone", "amount": 2}).encode()).ended()
        assert len(gone.json["ids"]) == 2
        taken = [await site.popped(name="next", wait=20), await site.popped(name="next", wait=20)]
        for job in taken:
            await reply(site, job["id"])
        told = await status(site, request_id)

    assert (told["done"], told["finished"], told["restarted"]) == (True, 2, 0)


@spec("Routes", 4)
@spec("Text requests", 18)
async def test_text_and_chat_share_workers_and_nothing_else(any_site: Site) -> None:
    site = any_site
    text_id, chat_id = await queued(site), await site.queued()
    await site.project()

    for path in (
        f"/v2/generate/chat/status/{text_id}",
        f"/v2/generate/text/status/{chat_id}",
        f"/v2/generate/text/request/{chat_id}",
        "/v2/generate/text/request/nonsense",
        "/v2/generate/text/status/nonsense",
    ):
        for method in ("GET",) if "request" in path else ("GET", "DELETE"):
            answer = await site.http.request(method, path, headers={"apikey": site.client_key})
            assert (answer.status_code, answer.json()["rc"]) == (404, "RequestNotFound")

    jobs = [await site.popped(), await site.popped()]
    assert sorted(job.get("chat", False) for job in jobs) == [False, True]
    for job in jobs:
        if job.get("chat"):
            assert (await site.reply(job["id"])).status_code == 200
        else:
            assert (await reply(site, job["id"])).status_code == 200
    await site.project()
    assert (await status(site, text_id))["generations"][0]["text"] == "there was"
    assert (await site.status(chat_id)).json()["generations"][0]["message"]["content"] == "hello"


@spec("Text requests", 18)
async def test_workers_get_the_jobs_that_they_declared(site: Site) -> None:
    await queued(site)
    await site.queued()
    await site.project()

    chat_only = await site.popped(name="chat", prompt_jobs=False)
    text_only = await site.popped(name="text", chat_jobs=False)

    assert (chat_only["chat"], "chat" in text_only) == (True, False)
    assert text_only["payload"]["prompt"] == PROMPT


@spec("Text requests", 6, 7, 8)
async def test_a_job_goes_only_to_a_worker_that_it_may_have(site: Site) -> None:
    mine, other = ("one", "two")
    await site.pop(name=mine)
    await site.pop(name=other)
    log = site.parts.log
    ids = {
        name: (await log.read("GET", log.keys.worker_name(name))).decode() for name in (mine, other)
    }
    validated = {"bridge_agent": "KoboldCppEmbedWorker:1.2:x"}
    table: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
        ({"workers": [ids[mine].upper()]}, {"name": other}, {"name": mine}),
        ({"workers": [ids[other]], "worker_blacklist": True}, {"name": other}, {"name": mine}),
        ({"models": ["a", "b"]}, {"models": [MODEL]}, {"models": [MODEL, "b"]}),
        ({"params": {"max_length": 513}}, {}, {"max_length": 513}),
        (
            {"params": {"max_context_length": 2049}},
            {},
            {"max_context_length": 2049},
        ),
        ({"validated_backends": True}, {}, validated),
    ]
    for asked, unfit, fit in table:
        await queued(site, **asked)

        assert (await site.pop(**unfit)).json()["id"] is None, asked
        job = await site.popped(**fit)
        assert job["model"] == ("b" if "models" in asked else MODEL)
        await reply(site, job["id"])

    await queued(site, trusted_workers=True)
    assert (await site.pop()).json()["skipped"] == {"untrusted": 1}


@spec("Text requests", 16)
async def test_a_cancelled_request_is_done_with_what_was_on_its_way(site: Site) -> None:
    request_id = await queued(site, params={"n": 2})
    job = await site.popped()
    await site.project()

    path = f"/v2/generate/text/status/{request_id}"
    before = await site.http.delete(path)
    assert (before.status_code, before.json()["waiting"], before.json()["processing"]) == (
        200,
        1,
        1,
    )
    await site.project()
    assert (await status(site, request_id))["waiting"] == 0
    assert (await reply(site, job["id"])).status_code == 200
    await site.project()

    done = await status(site, request_id)
    assert (done["done"], done["finished"], done["faulted"]) == (True, 1, False)
    assert (await site.http.delete(path)).json()["done"] is True


async def test_a_status_that_waits_is_answered_when_the_request_is_done(site: Site) -> None:
    request_id = await queued(site)
    job = await site.popped()
    async with site.projected():
        asked = asyncio.create_task(status(site, request_id, wait=30))
        await reply(site, job["id"])
        async with asyncio.timeout(20):
            told = await asked

    assert told["generations"][0]["text"] == "there was"


async def test_what_a_worker_held_back_is_told_by_state_and_metadata(site: Site) -> None:
    table: list[tuple[dict[str, Any], str, list[Any]]] = [
        ({"state": "censored"}, "censored", []),
        ({"state": "csam"}, "csam", [CSAM]),
        ({"gen_metadata": [CSAM | {"ref": "why"}]}, "csam", [CSAM | {"ref": "why"}]),
    ]
    for said, state, metadata in table:
        request_id = await queued(site)
        await reply(site, (await site.popped())["id"], **said)
        await site.project()

        (generation,) = (await status(site, request_id))["generations"]
        assert (generation["state"], generation["gen_metadata"]) == (state, metadata)

    chat_id = await site.queued()
    await site.project()
    await site.reply((await site.popped())["id"], state="csam")
    await site.project()
    (generation,) = (await site.status(chat_id)).json()["generations"]
    assert (generation["state"], generation["gen_metadata"]) == ("csam", [CSAM])


@spec("Structured submit", 10)
async def test_a_refused_submit_of_a_text_job_stores_nothing(site: Site) -> None:
    request_id = await queued(site)
    job = await site.popped()
    message = {"role": "assistant", "content": "x"}
    table: list[tuple[dict[str, Any], str]] = [
        ({"generation": ...}, "BadRequest"),
        ({"generation": ..., "state": "faulted"}, "BadRequest"),
        ({"generation": None}, "BadRequest"),
        ({"state": "fine"}, "BadRequest"),
        ({"gen_metadata": [CSAM] * 51}, "BadRequest"),
        ({"gen_metadata": [{"type": "lora", "value": "x"}]}, "BadRequest"),
        ({"message": message, "finish_reason": "stop"}, "ChatSubmitInvalid"),
        ({"generation": ..., "message": message, "finish_reason": "stop"}, "ChatSubmitInvalid"),
        ({"generation": ..., "message": message, "state": "faulted"}, "ChatSubmitInvalid"),
        ({"generation": ..., "model_id": MODEL}, "ChatSubmitInvalid"),
    ]
    before = await site.log_length()

    for changed, rc in table:
        answer = await reply(site, job["id"], **changed)
        assert (answer.status_code, answer.json()["rc"]) == (400, rc), changed
    content = await site.parts.log.read("HKEYS", site.parts.log.keys.content(request_id))

    assert await site.log_length() == before
    assert f"reply:{job['id']}".encode() not in content
    assert (await reply(site, job["id"])).status_code == 200
    assert (await reply(site, job["id"])).json()["rc"] == "DuplicateGen"


async def test_a_text_job_that_is_given_up_three_times_faults_its_request(site: Site) -> None:
    request_id = await queued(site)
    for name in ("a", "b", "c"):
        job = await site.popped(name=name)
        # A worker of chat jobs gives up in its own form: what else it says is ignored.
        chat_form = {"generation": ..., "model_id": "other", "fault_reason": "generation_error"}
        answer = await reply(site, job["id"], state="faulted", **(chat_form if name == "b" else {}))
        assert answer.json() == {"reward": 0.0}
        await site.project()

    told = await status(site, request_id)

    assert (told["faulted"], told["done"], told["restarted"]) == (True, True, 3)
    assert (await reply(site, job["id"])).json()["rc"] == "AbortedGen"


async def test_a_request_that_nobody_can_serve_waits_with_a_warning(
    redis_url: str, migrated_url: str
) -> None:
    async with (
        opened(redis_url, migrated_url, patience=LENIENT) as site,
        site.projected(),
    ):
        answer = (await submit(site, models=["nobody/serves/it"])).json()
        told = await status(site, answer["id"])

    assert [warning["code"] for warning in answer["warnings"]] == ["NoAvailableWorker"]
    assert (told["waiting"], told["is_possible"], told["might_stall"]) == (1, False, True)


async def test_who_waits_for_any_model_is_ahead_of_those_who_wait_for_one(site: Site) -> None:
    await queued(site, models=[])
    await queued(site, models=["another/model"])

    told = await status(site, await queued(site))

    assert (told["queue_position"], told["wait_time"]) == (3, 16)  # of 80 tokens each, 10 a second


@spec("Text requests", 10)
async def test_a_dry_run_quotes_and_queues_nothing(site: Site) -> None:
    before = await site.state()

    answer = await submit(site, dry_run=True, params={"n": 2, "max_length": 200, "top_k": 3})

    assert answer.status_code == 200
    assert await site.state() == before
    assert answer.json() == {
        "kudos": answer.json()["kudos"],
        "resolved": {
            "prompt": PROMPT,
            "models": [MODEL],
            "style": None,
            "params": {
                "n": 2,
                "max_length": 200,
                "max_context_length": 2048,
                "top_k": 3,
                "min_p": 0.0,
                "smoothing_factor": 0.0,
                "dynatemp_range": 0.0,
                "dynatemp_exponent": 1.0,
            },
            "estimated_prompt_tokens": 4,
            "context_fit": "ignore",
        },
    }
    assert (
        answer.json()["kudos"]
        == (await submit(site, params={"n": 2, "max_length": 200})).json()["kudos"]
    )


@spec("Text requests", 12)
async def test_a_context_is_left_refused_or_grown(site: Site) -> None:
    await site.pop(max_context_length=4096)
    await site.project()
    long = {"prompt": "x" * 4 * 2000}

    ignored = await queued(site, **long)
    job = await site.popped(max_context_length=4096)
    assert job["payload"]["max_context_length"] == 2048
    await reply(site, job["id"])
    grown = await queued(site, **long, context_fit="grow")
    job = await site.popped(max_context_length=4096)
    assert job["payload"]["max_context_length"] == 3072
    await site.project()
    before = await site.log_length()
    refused = [
        await submit(site, **long, context_fit="reject"),
        await submit(site, prompt="x" * 4 * 4096, context_fit="grow"),
        await submit(site, **long, context_fit="grow", models=["nobody/serves/it"]),
    ]

    assert [answer.json()["rc"] for answer in refused] == ["PromptExceedsContext"] * 3
    assert await site.log_length() == before
    assert len({ignored, grown}) == 2


@spec("Text requests", 3, 12)
async def test_a_context_that_may_grow_grows_for_a_long_reply_too(site: Site) -> None:
    """As it was asked for, it would be shorter than the reply."""
    await site.pop(max_length=2000, max_context_length=4096)
    await site.project()
    asked = {"params": {"max_length": 2000, "max_context_length": 80}}
    before = await site.state()

    told = await submit(site, **asked)

    assert (told.status_code, told.json()["rc"]) == (400, "TokenOverflow")
    assert await site.state() == before
    await queued(site, **asked, context_fit="grow")
    job = await site.popped(max_length=2000, max_context_length=4096)
    assert job["payload"]["max_context_length"] == 2048


@spec("Text requests", 17)
async def test_stored_parameters_are_told_to_the_key_that_submitted_them(any_site: Site) -> None:
    site = any_site
    asked = {"params": {"n": 2, "top_k": 3}, "worker_blacklist": True, "slow_workers": False}
    request_id = await queued(site, **asked)
    path = f"/v2/generate/text/request/{request_id}"

    told = await site.http.get(path, headers={"apikey": site.client_key})

    assert told.headers["cache-control"] == "private, no-store"
    assert told.json() == {
        "prompt": PROMPT,
        "params": {
            "n": 2,
            "max_length": 80,
            "max_context_length": 2048,
            "top_k": 3,
            "min_p": 0.0,
            "smoothing_factor": 0.0,
            "dynatemp_range": 0.0,
            "dynatemp_exponent": 1.0,
        },
        "models": [MODEL],
        "workers": [],
        "worker_blacklist": True,
        "trusted_workers": False,
        "validated_backends": False,
        "slow_workers": False,
        "context_fit": "ignore",
        "allow_downgrade": False,
        "disable_batching": False,
    }
    for key, status_code, rc in (
        (site.owner_key, 403, "WrongCredentials"),
        (site.anonymous, 403, "WrongCredentials"),
        ("unknown", 401, "InvalidAPIKey"),
        (None, 400, "BadRequest"),
    ):
        answer = await site.http.get(path, headers={} if key is None else {"apikey": key})
        assert (answer.status_code, answer.json()["rc"]) == (status_code, rc)


async def test_without_redis_the_status_is_told_without_the_texts(
    redis_url: str, migrated_url: str
) -> None:
    async with Proxy.before(redis_url) as redis:
        around = (redis_url, migrated_url)
        async with opened(redis.url, migrated_url, around=around) as site:
            request_id, chat_id = await queued(site), await site.queued()
            await reply(site, (await site.popped(chat_jobs=False))["id"])
            await site.project()
            redis.stall()

            told = await status(site, request_id)
            chat = await site.http.get(f"/v2/generate/text/status/{chat_id}")

            redis.flow()
    assert (told["done"], told["finished"], told["might_stall"]) == (True, 1, False)
    assert told["generations"][0]["text"] is None
    assert told["message"]
    assert (chat.status_code, chat.json()["rc"]) == (503, "RedisUnavailable")
