"""Which worker is offered what over HTTP, what it is told of the rest, and what the client sees."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.accounts import open_account
from tests.api.site import LENIENT, MODEL, POP, SECRET, Site, opened
from tests.instruments import counted, point
from tests.spec import spec

TOKENS = 700
"""Of a measured job: at 5 a second they take 140 s, which is within a lease of 150 s."""


async def measured(site: Site, tokens_per_second: float, name: str = "w") -> None:
    """Let the worker serve one job at this speed.

    It is so long that the real seconds which the test itself takes for it hardly count.
    """
    await site.queued(max_tokens=TOKENS)
    await site.project()
    job = await site.popped(name=name)
    await pass_time(site, TOKENS / tokens_per_second)
    said = {"role": "assistant", "content": "word" * TOKENS}
    assert (await site.reply(job["id"], message=said)).status_code == 200
    await site.settle()
    await site.project()


async def pass_time(site: Site, seconds: float) -> None:
    for partition in site.parts.log.keys.all():
        control = site.parts.log.keys.control(partition)
        await site.parts.log.read("HINCRBY", control, "clock_ms", int(seconds * 1000))


async def status(site: Site, request_id: str) -> dict[str, Any]:
    await site.project()
    return dict((await site.status(request_id)).json())


@spec("Job lease", 8, 9, 13)
async def test_a_worker_is_offered_what_it_finishes_in_its_lease(site: Site) -> None:
    """C-093."""
    long = await site.queued(max_tokens=1201)
    await site.project()
    assert (await site.pop()).json()["skipped"] == {"lease_speed": 1}
    fits = await site.queued(max_tokens=1200)
    await site.project()
    assert (await site.popped())["id"]
    assert (await status(site, fits))["processing"] == 1
    await site.cancel(long)

    await measured(site, 5.3)  # down to 5 in 8 s more
    await site.queued(max_tokens=600)
    await site.queued(max_tokens=640)
    await site.project()
    assert (await site.popped())["payload"]["max_length"] == 600
    before = counted()
    refused = (await site.pop()).json()
    assert (refused["id"], refused["skipped"]) == (None, {"lease_speed": 1})
    name = "horde.pop.lease_capacity_limited"
    assert (counted() - before)[point(name, gentype="text")] == 1


@spec("Job lease", 9)
async def test_waits_are_told_by_measured_speeds(site: Site) -> None:
    await measured(site, 5)

    request_id = await site.queued(max_tokens=500)

    told = (await status(site, request_id))["wait_time"]
    assert 95 <= told <= 110  # a busy machine makes it measure less than 5


@spec("Eligibility", 4, 5)
async def test_what_no_restriction_allows_waits_without_blame(
    redis_url: str, migrated_url: str
) -> None:
    """C-105."""
    elsewhere = "00000000-0000-4000-8000-000000000000"
    async with (
        opened(redis_url, migrated_url, patience=LENIENT) as site,
        site.projected(),
    ):
        for horde in ({"only": [elsewhere]}, {"trusted_workers": True}):
            answer = await site.submit(horde=horde)
            assert answer.json()["warnings"][0]["code"] == "NoAvailableWorker"

            told = (await site.status(answer.json()["id"])).json()

            assert (told["is_possible"], told["impossible_reason"]) == (False, None)


@spec("Eligibility", 3)
@spec("Impossible reason", 2)
async def test_an_oversized_request_holds_nobody_back_and_says_why(site: Site) -> None:
    """C-109."""
    big = await site.queued(horde={"max_context_length": 9000})
    small = [await site.queued() for _ in range(10)]
    await site.project()

    for _ in small:
        await site.reply((await site.popped())["id"])

    told = await status(site, big)
    assert told["impossible_reason"] == {
        "kind": "declaration_gap",
        "missing_declarations": [],
        "exceeded_limits": ["max_context_length"],
    }
    assert (await site.pop()).json()["skipped"] == {"max_context_length": 1}


@spec("Impossible reason", 3)
async def test_the_reason_is_gone_once_a_worker_declares_what_is_missing(site: Site) -> None:
    request_id = await site.queued(seed=1)
    assert (await status(site, request_id))["impossible_reason"]["missing_declarations"] == ["seed"]

    await site.pop(name="other", chat_features=[*POP["chat_features"], "seed"], models=[MODEL])

    told = await status(site, request_id)
    assert told["impossible_reason"] is None


async def test_what_can_never_compete_does_not_lengthen_the_wait(site: Site) -> None:
    """C-107: requests that need what no worker declares, or are longer than any serves, and one
    that any worker serves."""
    for asked in ({"seed": 1}, {"horde": {"max_context_length": 9000}}):
        for _ in range(3):
            await site.queued(max_tokens=1000, **asked)
    plain = await site.queued(max_tokens=100)

    told = await status(site, plain)

    assert (told["queue_position"], told["wait_time"]) == (7, 10)


@pytest.mark.parametrize("named", [[], ["client#1"]])
async def test_requests_of_named_accounts_are_served_first(site: Site, named: list[str]) -> None:
    """`client` has far more kudos than the owner of the worker."""
    own = await site.submit(key=site.owner_key)
    rich = await site.queued()
    await site.project()

    first = await site.popped(priority_usernames=named)
    await site.reply(first["id"])

    assert (await status(site, own.json()["id"] if not named else rich))["done"]


@spec("Chat declaration on pop", 7, 8)
async def test_each_pop_is_judged_by_its_own_declaration(site: Site) -> None:
    """All within the 30 seconds in which an unchanged one is not written again."""
    await site.queued(seed=1)
    await site.project()

    without = await site.pop()
    legacy = await site.pop(
        **dict.fromkeys(("chat_jobs", "chat_features", "chat_limits", "model_id"))
    )
    within = await site.pop(chat_features=[*POP["chat_features"], "seed"])

    assert (without.json()["id"], legacy.json()["id"]) == (None, None)
    assert within.json()["id"]


@spec("Eligibility", 6)
async def test_a_worker_of_before_chat_never_sees_a_chat_request(site: Site) -> None:
    await site.queued()
    await site.project()

    answer = await site.pop(
        **dict.fromkeys(("chat_jobs", "chat_features", "chat_limits", "model_id"))
    )

    assert (answer.json()["id"], answer.json()["skipped"]) == (None, {})


@spec("Job lease", 10)
async def test_a_legacy_text_job_over_capacity_is_offered_and_told_of(site: Site) -> None:
    await site.post(
        "/v2/generate/text/async",
        {"prompt": "x", "models": [MODEL], "params": {"max_length": 1500}},
        site.client_key,
    )
    await site.project()
    before = counted()

    job = await site.popped(max_length=2000)

    assert job["id"]
    name = "horde.text.gate_shadow.assignments"
    assert (counted() - before)[point(name, worker_trusted=False, size_bucket="1025-2048")] == 1


async def test_an_account_may_have_three_workers_and_keeps_those_it_has(
    redis_url: str, migrated_url: str
) -> None:
    """C-103."""
    async with opened(redis_url, migrated_url, workers_per_user=3) as site:
        for name in ("w", "x", "y"):
            assert (await site.pop(name=name)).status_code == 200
        await site.project()

        fourth = await site.pop(name="z")

        assert (fourth.status_code, fourth.json()["rc"]) == (403, "TooManyWorkers")
        assert (await site.pop(name="w")).status_code == 200


async def test_another_account_s_name_is_refused_and_says_what_to_do(site: Site) -> None:
    """C-103."""
    await site.pop()

    answer = await site.pop(key=site.client_key)

    assert (answer.status_code, answer.json()["rc"]) == (403, "WrongCredentials")
    assert "Choose another name" in answer.json()["message"]


async def test_workers_of_a_flagged_account_get_nothing(site: Site) -> None:
    _, key = await open_account(site.parts.log, SECRET, "flagged", flagged=True)

    answer = await site.pop(key=key, name="f")

    assert (answer.status_code, answer.json()["rc"]) == (403, "WorkerFlaggedMaintenance")


@spec("Impossible reason", 5)
async def test_a_job_keeps_the_declaration_that_it_was_assigned_under(site: Site) -> None:
    request_id = await site.queued()
    await site.project()
    await site.popped()

    await site.pop(chat_limits={"max_context_length": 4096, "max_length": 700})
    await site.project()

    row = (await site.parts.loader.get(request_id)).row
    assert row is not None
    (job,) = row.generations
    assigned = (job.model, job.assigned_max_context_length, job.assigned_max_length)
    assert assigned == (MODEL, 8192, 2048)


async def test_a_paused_worker_gets_decoys_of_others_and_its_owner_s_own(site: Site) -> None:
    await site.pop()
    worker = site.parts.log.keys.worker((await site.http.get("/v2/workers/name/w")).json()["id"])
    await site.parts.log.read("HSET", worker, "paused", "1")
    other = await site.queued(stream=True)
    await site.project()

    decoy = await site.popped()
    assert decoy["payload"]["messages"] == [{"role": "user", "content": "hi"}]
    assert (await site.progress(decoy["id"], 1, "x")).status_code == 200
    assert (await site.reply(decoy["id"])).json() == {"reward": 1.2114}  # as of a real one
    assert (await site.pop()).json()["id"] is None
    own = await site.submit(key=site.owner_key)
    await site.project()
    real = await site.popped()
    await site.reply(real["id"])

    assert (await status(site, own.json()["id"]))["done"]
    told = await status(site, other)
    assert (told["waiting"], told["processing"], told["finished"]) == (1, 0, 0)
    assert (await site.popped(name="not paused"))["id"]
