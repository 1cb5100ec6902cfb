"""The life of a chat request over HTTP."""

from __future__ import annotations

import asyncio

from tests.api.site import LENIENT, MESSAGE, MODEL, Site, opened
from tests.spec import spec


@spec("Pricing", 10)
async def test_a_chat_request_is_queued_pulled_streamed_answered_and_read_back(
    any_site: Site,
) -> None:
    site = any_site
    async with asyncio.timeout(60):  # its checks wait for a moment only
        while (await site.http.get("/health/ready")).json() != {"status": "ok"}:
            pass
    await site.pop()  # the worker shows itself
    await site.project()

    answer = await site.submit(stream=True, max_tokens=64, stop="END")
    assert answer.status_code == 202
    assert answer.json() == {"id": answer.json()["id"], "kudos": 8}
    request_id = answer.json()["id"]
    await site.project()

    waiting = (await site.status(request_id)).json()
    assert waiting == {
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
        "context_adjustments": None,
        "fault_reason": None,
        "fault_rc": None,
        "impossible_reason": None,
    }

    job = await site.popped()
    assert job == {
        "payload": {
            "messages": [{"role": "user", "content": "hi"}],
            "max_length": 64,
            "max_context_length": 2048,
            "temperature": 1.0,
            "top_p": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "rep_pen": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "n": 1,
            "stop_sequence": ["END"],
            "stream_progress": True,
        },
        "id": job["id"],
        "ids": [job["id"]],
        "model": MODEL,
        "ttl": 150,
        "skipped": {},
        "messages": [],
        "softprompt": None,
        "extra_source_images": None,
        "chat": True,
    }
    posted = await site.progress(job["id"], 1, "hel")
    assert posted.json() == {"accepted_seq": 1, "cancelled": False}
    await site.project()
    assert (await site.status(request_id)).json()["processing"] == 1

    rewarded = await site.reply(job["id"], completion_tokens=2, seed=7)
    told = {"reward": 1.2114}  # of a model that nobody knows: flat, by 20 tokens of prompt
    assert (rewarded.status_code, rewarded.json()) == (200, told)
    await site.project()

    done = (await site.status(request_id)).json()
    assert (done["done"], done["finished"], done["waiting"], done["processing"]) == (True, 1, 0, 0)
    (generation,) = done["generations"]
    wait = generation.pop("queue_wait_seconds")
    worker_id = generation.pop("worker_id")
    assert 0 <= wait < 60
    assert len(worker_id) == 36
    assert generation == {
        "id": job["id"],
        "message": MESSAGE,
        "finish_reason": "stop",
        "native_finish_reason": None,
        "prompt_tokens": None,
        "completion_tokens": 2,
        "reasoning_tokens": None,
        "charge_basis": "output_estimate",
        "seed": 7,
        "gen_metadata": [],
        "worker_name": "w",
        "model": MODEL,
        "state": "ok",
    }


@spec("Routes", 1, 5)
async def test_a_request_that_nobody_can_serve_is_accepted_with_a_warning(
    redis_url: str, migrated_url: str
) -> None:
    """Its model is served, but no worker takes so long a context."""
    async with (
        opened(redis_url, migrated_url, patience=LENIENT) as site,
        site.projected(),
    ):
        answer = (await site.submit(horde={"max_context_length": 100_000})).json()

    assert answer.keys() == {"id", "kudos", "message", "warnings"}
    assert "expires in 20 minutes" in answer["message"]
    assert "fewer tokens" in answer["message"]
    assert [warning["code"] for warning in answer["warnings"]] == ["NoAvailableWorker"]
    assert answer["message"] == answer["warnings"][0]["message"]


async def test_a_worker_that_came_a_moment_ago_counts(site: Site) -> None:
    """Its check-in is not projected when the request comes: the answer waits for it."""
    async with site.projected():
        await site.pop()
        answer = (await site.submit()).json()

    assert "warnings" not in answer


async def test_anyone_may_ask_anonymously(site: Site) -> None:
    assert (await site.submit(site.anonymous)).status_code == 202


async def test_an_id_of_no_request_is_not_found(site: Site) -> None:
    no_ids = (
        "00000000-0000-4000-8000-000000000000",
        "nonsense",
        "00000000-0000-4000-8000-00000000000g",
        "00000000000040008000000000000000",
        "%00",
        "\N{GREEK SMALL LETTER ALPHA}" * 36,
    )
    for request_id in no_ids:
        for method in ("GET", "DELETE"):
            path = f"/v2/generate/chat/status/{request_id}"
            answer = await site.http.request(method, path)
            assert (answer.status_code, answer.json()["rc"]) == (404, "RequestNotFound")


async def test_a_cancel_answers_with_the_status_before_it(site: Site) -> None:
    request_id = await site.queued()
    await site.project()

    before = await site.cancel(request_id)
    assert (before.status_code, before.json()["waiting"], before.json()["done"]) == (200, 1, False)
    await site.project()

    after = (await site.status(request_id)).json()
    assert (after["waiting"], after["done"], after["faulted"]) == (0, True, False)
    assert (await site.pop()).json()["id"] is None
    again = await site.cancel(request_id)
    assert (again.status_code, again.json()["done"]) == (200, True)


@spec("Streaming progress", 13)
async def test_a_streaming_worker_learns_of_the_cancel_and_its_submit_is_refused(
    site: Site,
) -> None:
    request_id = await site.queued(stream=True)
    await site.project()
    job = await site.popped()
    await site.project()
    await site.cancel(request_id)

    posted = await site.progress(job["id"], 1, "too late")
    late = await site.reply(job["id"])

    assert (posted.status_code, posted.json()["cancelled"]) == (200, True)
    assert (late.status_code, late.json()["rc"]) == (400, "AbortedGen")
    assert "150 seconds" in late.json()["message"]


async def test_a_status_that_waits_is_answered_when_the_request_is_done(site: Site) -> None:
    request_id = await site.queued()
    async with site.projected():
        asked = asyncio.create_task(site.status(request_id, wait=30))
        job = await site.popped(wait=20)
        assert not asked.done()
        await site.reply(job["id"])
        async with asyncio.timeout(20):
            answer = await asked

    assert answer.json()["generations"][0]["message"] == MESSAGE
    assert answer.headers["preference-applied"] == "wait=30"


async def test_a_status_that_waits_too_long_tells_how_things_stand(site: Site) -> None:
    request_id = await site.queued()
    await site.project()

    async with asyncio.timeout(20):
        answer = await site.status(request_id, wait=1)

    assert (answer.json()["done"], answer.headers["preference-applied"]) == (False, "wait=1")


async def test_a_hint_that_was_lost_costs_a_second(site: Site) -> None:
    """The rows are there, but nobody was told."""
    request_id = await site.queued()
    await site.project()
    job = await site.popped()
    await site.project()
    asked = asyncio.create_task(site.status(request_id, wait=30))
    await asyncio.sleep(0.2)
    site.parts.follower._on_status.clear()
    await site.reply(job["id"])
    async with site.projected(), asyncio.timeout(20):
        answer = await asked

    assert answer.json()["done"] is True


async def test_drain_ends_a_status_that_waits(site: Site) -> None:
    request_id = await site.queued()
    await site.project()
    asked = asyncio.create_task(site.status(request_id, wait=30))
    await asyncio.sleep(0.05)

    site.parts.drain.start()
    async with asyncio.timeout(20):
        answer = await asked

    assert (answer.status_code, answer.json()["done"]) == (200, False)


async def test_a_reader_never_sees_less_than_what_was_acknowledged(any_site: Site) -> None:
    site = any_site
    async with site.projected():
        for _ in range(20):
            request_id = await site.queued()
            assert (await site.status(request_id)).json()["waiting"] == 1
            job = await site.popped(wait=20)
            assert (await site.status(request_id)).json()["processing"] == 1
            await site.reply(job["id"])
            assert (await site.status(request_id)).json()["finished"] == 1


async def test_a_read_model_that_is_behind_is_no_404(site: Site) -> None:
    request_id = await site.queued()

    async with asyncio.timeout(20):
        answer = await site.status(request_id)

    assert (answer.status_code, answer.json()["rc"]) == (503, "ReadModelBehind")
    assert answer.headers["retry-after"]


async def test_a_cancel_is_carried_out_where_its_status_cannot_be_read(site: Site) -> None:
    request_id = await site.queued()

    answer = await site.cancel(request_id)
    await site.project()

    assert (answer.status_code, answer.json()["rc"]) == (503, "ReadModelBehind")
    assert (await site.status(request_id)).json()["done"] is True


async def test_a_reply_whose_content_is_gone_is_not_found(site: Site) -> None:
    request_id = await site.queued()
    await site.project()
    job = await site.popped()
    await site.reply(job["id"])
    await site.project()
    await site.parts.log.read("DEL", site.parts.log.keys.content(request_id))

    answer = await site.status(request_id)

    assert (answer.status_code, answer.json()["rc"]) == (404, "RequestNotFound")


async def test_a_request_faulted_three_times_is_faulted_itself(any_site: Site) -> None:
    site = any_site
    request_id = await site.queued()
    for name in ("a", "b", "c"):
        await site.project()
        job = await site.popped(name=name)
        body = {"id": job["id"], "state": "faulted", "model_id": MODEL}
        for _ in range(2):  # a repeat changes nothing
            answer = await site.post("/v2/generate/text/submit", body, site.owner_key)
            assert (answer.status_code, answer.json()) == (200, {"reward": 0.0})
    await site.project()

    status = (await site.status(request_id)).json()

    assert (status["faulted"], status["done"], status["restarted"]) == (True, True, 3)
    assert (await site.pop(name="d")).json()["id"] is None
