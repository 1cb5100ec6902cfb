"""What the service tells of itself: models, load, totals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.kept import Kept
from tests.api.site import MODEL, Site, opened
from tests.spec import spec

MODELS = "/v2/status/models"
KNOWN = "Qwen3-8B"


async def get(site: Site, path: str, **query: Any) -> Any:
    answer = await site.http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def models(site: Site, **query: Any) -> dict[str, Any]:
    found = await get(site, MODELS, **{"type": "text"} | query)
    return {each.pop("name"): each for each in found}


async def work(site: Site, characters: int = 400) -> None:
    """A request that gets its reply."""
    await site.queued()
    await site.project()
    job = await site.popped()
    message = {"role": "assistant", "content": "x" * characters}
    assert (await site.reply(job["id"], message=message)).status_code == 200
    await site.project()


@spec("Chat model list", 2)
async def test_models_are_those_that_online_workers_serve(any_site: Site) -> None:
    site = any_site
    await site.pop(name="text", models=["a", MODEL], chat_jobs=False, threads=3)
    await site.project()

    found = await models(site)

    entry = {"type": "text", "performance": 0.0, "queued": 0, "jobs": 0, "eta": 0}
    assert found == {"a": entry | {"count": 3}, MODEL: entry | {"count": 4}}
    assert list(found) == ["a", MODEL]


@spec("Chat model list", 1, 6, 7, 8, 9, 10)
async def test_with_chat_they_are_those_of_chat_workers_and_how(site: Site) -> None:
    await site.pop(name="text", models=["a", MODEL], chat_jobs=False)
    limits = {"max_context_length": 4096, "max_length": 4000}
    features = ["tools", "seed", "not a feature"]
    await site.pop(name="other", chat_limits=limits, chat_features=features, threads=2)
    await site.project()
    log = site.parts.log
    first = min(
        [entry[0] for entry in await log.read("XRANGE", log.keys.events(0), "-", "+")
         if b"checked-in" in entry[1]]
    )  # fmt: skip

    assert await models(site, chat="true") == {
        MODEL: {
            "type": "text",
            "count": 4,
            "performance": 0.0,
            "queued": 0,
            "jobs": 0,
            "eta": 0,
            "chat": {
                "workers": 2,
                "max_context_length": 8192,
                "max_length": 4000,
                "features": ["prompt_overflow_refused", "seed", "tools"],
                "created": int(first.partition(b"-")[0]) // 1000,
            },
        }
    }
    assert "chat" not in (await models(site))[MODEL]


@spec("Chat model list", 4, 5)
async def test_chat_only_workers_count_for_chat_alone(site: Site) -> None:
    await site.pop(name="chat", models=["b"], model_id="b", prompt_jobs=False, threads=5)
    await site.pop(name="mixed", models=["b"], chat_jobs=False, threads=2)
    await site.pop(name="only", models=["c"], model_id="c", prompt_jobs=False)
    await site.project()

    found = await models(site, chat="true")

    assert {name: (each["count"], each["chat"]["workers"]) for name, each in found.items()} == {
        "b": (2, 1),
        "c": (0, 1),
        MODEL: (1, 1),
    }
    assert (await models(site))["c"]["count"] == 0


async def test_workers_in_maintenance_or_away_do_not_count(site: Site) -> None:
    found = await get(site, "/v2/workers/name/w")
    answer = await site.http.put(
        f"/v2/workers/{found['id']}", json={"maintenance": True}, headers={"apikey": site.owner_key}
    )
    assert answer.status_code == 200
    await site.project()
    assert await models(site) == {}
    assert await models(site, chat="true") == {}
    assert (await get(site, "/v2/status/performance"))["text_worker_count"] == 0


@spec("Chat model list", 11)
@spec("Worker and status routes", 12)
async def test_what_waits_and_what_is_worked_on_is_told(site: Site) -> None:
    await work(site, characters=400)
    await site.queued(max_tokens=100)
    await site.queued(max_tokens=200)
    text = {"prompt": "Once", "params": {"max_length": 50, "n": 3}, "models": [MODEL, "x"]}
    assert (await site.post("/v2/generate/text/async", text, site.client_key)).status_code == 202
    text = {"prompt": "Once", "params": {"max_length": 70}}
    assert (await site.post("/v2/generate/text/async", text, site.client_key)).status_code == 202
    await site.project()
    await site.popped()
    await site.project()

    model = (await models(site))[MODEL]
    load = await get(site, "/v2/status/performance")

    assert (model["jobs"], model["queued"]) == (5, 350)
    assert model["performance"] > 0
    assert model["eta"] == int(350 / model["performance"]) or model["performance"] > 350
    assert load == {
        "queued_requests": 0,
        "queued_text_requests": 6,
        "queued_tokens": 100 + 200 + 3 * 50 + 70,
        "past_minute_tokens": 100,
        "text_worker_count": 1,
        "text_thread_count": 1,
        "worker_count": 0,
        "thread_count": 0,
        "queued_megapixelsteps": 0.0,
        "past_minute_megapixelsteps": 0.0,
        "queued_forms": 0,
        "interrogator_count": 0,
        "interrogator_thread_count": 0,
    }
    assert "x" not in await models(site)  # asked for, served by nobody, and not known


async def test_a_queue_that_nothing_shortens_has_the_longest_eta(site: Site) -> None:
    await site.queued()
    await site.project()

    assert (await models(site))[MODEL]["eta"] == 10_000


@spec("Worker and status routes", 10)
async def test_the_list_is_filtered(site: Site) -> None:
    for name, threads in ((KNOWN, 3), ("my_horde_special_one", 5)):
        await site.pop(name=name, models=[name], chat_jobs=False, threads=threads)
    await site.project()

    assert set(await models(site)) == {MODEL, KNOWN}
    assert set(await models(site, model_state="known")) == {KNOWN}
    assert set(await models(site, model_state="custom")) == {MODEL}
    assert set(await models(site, min_count=2)) == {KNOWN}
    assert set(await models(site, max_count=2)) == {MODEL}
    assert set(await models(site, min_count=4)) == set()


@spec("Chat model list", 3)
async def test_there_are_no_models_of_another_type(site: Site) -> None:
    assert await get(site, MODELS) == []
    assert await get(site, MODELS, type="image") == []
    for query in ({"chat": "true"}, {"chat": "true", "type": "image"}):
        answer = await site.http.get(MODELS, params=query)
        assert (answer.status_code, answer.json()["rc"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("type", "film"),
        ("model_state", "any"),
        ("chat", "maybe"),
        ("min_count", "few"),
        ("max_count", "1.5"),
        ("max_count", "9" * 30),
        ("max_count", "²"),
    ],
)
async def test_queries_that_say_nothing_are_refused(site: Site, name: str, value: str) -> None:
    answer = await site.http.get(MODELS, params={"type": "text", name: value})

    assert (answer.status_code, list(answer.json()["errors"])) == (400, [name])


@spec("Worker and status routes", 11)
async def test_one_model_is_told_of_by_its_name(site: Site) -> None:
    await site.pop(name="k", models=[KNOWN], chat_jobs=False, threads=3)
    await site.project()

    (found,) = await get(site, f"{MODELS}/{KNOWN}")

    assert (found["name"], found["count"]) == (KNOWN, 3)
    assert await get(site, f"{MODELS}/Qwen3-30B-A3B") == []  # known, and served by nobody
    answer = await site.http.get(f"{MODELS}/{MODEL}")
    assert (answer.status_code, answer.json()["rc"]) == (404, "UnknownChatModel")


@spec("Worker and status routes", 14)
async def test_totals_count_replies_and_their_tokens(any_site: Site) -> None:
    site = any_site
    nothing = {"requests": 0, "tokens": 0}
    windows = ("minute", "hour", "day", "month", "total")
    assert await get(site, "/v2/stats/text/totals") == dict.fromkeys(windows, nothing)
    assert await get(site, "/v2/stats/text/models") == {"day": {}, "month": {}, "total": {}}

    await work(site, characters=400)
    await work(site, characters=4)

    both = {"requests": 2, "tokens": 100 + 20}
    assert await get(site, "/v2/stats/text/totals") == dict.fromkeys(windows, both)
    assert (await get(site, "/v2/stats/text/models"))["month"] == {MODEL: 2}


@spec("Worker and status routes", 13)
async def test_the_heartbeat_asks_nobody(redis_url: str, migrated_url: str) -> None:
    async with opened(redis_url, migrated_url, rate_limits_enabled=True) as site:
        answers = [await get(site, "/v2/status/heartbeat") for _ in range(120)]

        assert {each["message"] for each in answers} == {"OK"}
        assert answers[0]["db_connection"] is True
        site.parts.database.answers = False
        beat = await get(site, "/v2/status/heartbeat")
        assert (beat["message"], beat["db_connection"]) == ("DOWN", False)
    async with opened(redis_url, migrated_url, memory_limit_bytes=1) as site:
        await site.parts.guard.sample()
        assert (await get(site, "/v2/status/heartbeat"))["message"] == "OVERLOADED"


@spec("Chat model list", 12)
async def test_the_list_is_kept_for_a_while(redis_url: str, migrated_url: str) -> None:
    async with opened(redis_url, migrated_url, models_cache_seconds=60) as site:
        before = await models(site)

        await site.pop(threads=9)
        await site.project()

        assert await models(site) == before


# what keeps answers


async def test_callers_share_one_reading_and_its_answer() -> None:
    kept: Kept[str, int] = Kept(60)
    readings = 0

    async def read() -> int:
        nonlocal readings
        readings += 1
        await asyncio.sleep(0)
        return readings

    first = asyncio.create_task(kept.get("a", read))
    second = asyncio.create_task(kept.get("a", read))
    await asyncio.sleep(0)
    first.cancel()

    assert await second == 1
    assert await kept.get("a", read) == 1
    assert await kept.get("b", read) == 2


async def test_what_failed_is_asked_again() -> None:
    kept: Kept[str, int] = Kept(60)

    async def fail() -> int:
        raise ValueError("away")

    async def read() -> int:
        return 1

    with pytest.raises(ValueError, match="away"):
        await kept.get("a", fail)
    assert await kept.get("a", read) == 1


async def test_no_more_answers_are_kept_than_allowed() -> None:
    kept: Kept[int, int] = Kept(60, most=2)
    asked: list[int] = []

    for key in (1, 2, 3, 1, 3):

        async def read(key: int = key) -> int:
            asked.append(key)
            return key

        await kept.get(key, read)

    assert asked == [1, 2, 3, 1]
