"""The life of a text request over HTTP, beside chat requests and on the same workers."""

from __future__ import annotations

from typing import Any

import httpx

from tests.api.site import MODEL, Site
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
    headers = {} if wait is None else {"prefer": f"wait={wait}"}
    answer = await site.http.get(f"/v2/generate/text/status/{request_id}", headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def reply(site: Site, generation_id: str, **changed: Any) -> httpx.Response:
    """Submit a text job's reply."""
    body = {"id": generation_id, "generation": "there was"} | changed
    given = {name: value for name, value in body.items() if value is not ...}
    return await site.post(SUBMIT, given, site.owner_key)


@spec("Text requests", 1, 2, 14, 15, 18)
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
        "kudos": 0.0,
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
    assert (rewarded.status_code, rewarded.json()) == (200, {"reward": 0.0})
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
