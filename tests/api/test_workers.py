"""Workers as people see and steer them."""

from __future__ import annotations

import asyncio
import math
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from handlers.accounts import open_account
from handlers.errors import OutOfMemory
from tests.api.site import MODEL, POP, SECRET, Site, opened
from tests.spec import spec

NOBODY = "00000000-0000-4000-8000-000000000000"
WORKERS = "/v2/workers"
CHAT = {
    "model_id": MODEL,
    "features": ["prompt_overflow_refused"],
    "limits": {"max_context_length": 8192, "max_length": 2048},
    "image_transports": [],
}


async def get(site: Site, path: str, key: str | None = None, **query: Any) -> Any:
    headers = {} if key is None else {"apikey": key}
    answer = await site.http.get(f"{WORKERS}{path}", headers=headers, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def listed(site: Site, **query: Any) -> list[str]:
    return [each["name"] for each in await get(site, "", **query)]


async def worker_id(site: Site, name: str = "w") -> str:
    return str((await get(site, f"/name/{name}"))["id"])


async def put(site: Site, id_: str, body: Any, key: str | None) -> httpx.Response:
    headers = {} if key is None else {"apikey": key}
    return await site.http.put(f"{WORKERS}/{id_}", json=body, headers=headers)


async def delete(site: Site, id_: str, key: str | None) -> httpx.Response:
    headers = {} if key is None else {"apikey": key}
    return await site.http.delete(f"{WORKERS}/{id_}", headers=headers)


async def moderator(site: Site) -> str:
    _, key = await open_account(site.parts.log, SECRET, "moderator", moderator=True)
    return key


# what is told


@spec("Worker details", 1, 3, 4, 5, 6)
@spec("Worker and status routes", 2)
async def test_a_worker_is_told_of_by_its_id_and_by_its_name(any_site: Site) -> None:
    site = any_site
    id_ = await worker_id(site)

    shown = await get(site, f"/{id_}")

    assert shown == {
        "id": id_,
        "name": "w",
        "type": "text",
        "online": True,
        "requests_fulfilled": 0,
        "uncompleted_jobs": 0,
        "nonconformant_replies": 0,
        "kudos_rewards": 0.0,
        "kudos_details": {"generated": None, "uptime": None},
        "performance": "1.0 tokens per second",
        "threads": 1,
        "uptime": 0,
        "maintenance_mode": False,
        "nsfw": True,
        "trusted": False,
        "flagged": False,
        "team": {"name": None, "id": None},
        "bridge_agent": "unknown:0:unknown",
        "models": [MODEL],
        "max_length": 512,
        "max_context_length": 2048,
        "accepts_chat_jobs": True,
        "accepts_prompt_jobs": True,
        "chat": CHAT,
    }
    assert await get(site, "/name/w") == shown
    assert await get(site, "") == [shown]
    assert await get(site, f"/{id_.upper()}") == shown


@spec("Worker details", 1, 2, 3, 4, 5, 6, 7)
async def test_the_declaration_is_that_of_the_last_pop(site: Site) -> None:
    features = ["tools", "a future feature", "seed", "prompt_overflow_refused"]
    limits = {"max_context_length": 4096, "max_length": 64, "tools_max_temperature": 0.5}
    transports = ["url", "pigeon", "base64"]
    await site.pop(chat_features=features, chat_limits=limits, image_transports=transports)
    await site.project()

    assert (await get(site, "/name/w"))["chat"] == {
        "model_id": MODEL,
        "features": ["prompt_overflow_refused", "seed", "tools"],
        "limits": limits,
        "image_transports": ["base64", "url"],
    }

    await site.pop(chat_jobs=False)
    await site.project()
    shown = await get(site, "/name/w")
    assert (shown["accepts_chat_jobs"], "chat" in shown) == (False, False)

    await site.pop(prompt_jobs=False)
    await site.project()
    assert (await get(site, "/name/w"))["accepts_prompt_jobs"] is False


@spec("Kudos", 15)
async def test_what_a_worker_did_is_told(site: Site) -> None:
    rewards = []
    for ended in ({}, {"state": "faulted", "message": ..., "finish_reason": ...}):
        await site.queued()
        await site.project()
        job = await site.popped()
        rewards.append((await site.reply(job["id"], **ended)).json()["reward"])
    await site.settle()
    await site.project()

    shown = await get(site, "/name/w")

    assert (shown["requests_fulfilled"], shown["uncompleted_jobs"]) == (1, 1)
    assert rewards == [1.2114, 0]  # of which half waits until its owner is trusted
    assert shown["kudos_rewards"] == 1.2114
    assert shown["kudos_details"] == {"generated": 1.2114, "uptime": None}
    speed, _, unit = shown["performance"].partition(" ")
    assert float(speed) > 1
    assert unit == "tokens per second"


@spec("Worker and status routes", 1, 2)
async def test_only_those_are_listed_that_are_online(site: Site) -> None:
    began = asyncio.get_running_loop().time()
    await site.pop(name="late")
    await site.project()
    assert await listed(site) == ["late", "w"]

    await move_clock(site, 200)
    await site.pop(name="late")
    await move_clock(site, 200)
    await site.project()

    assert await listed(site) == ["late"]
    shown = await get(site, "/name/w")
    assert (shown["online"], shown["uptime"]) == (False, 0)
    assert 200 <= (await get(site, "/name/late"))["uptime"] <= 200 + seconds_since(began)


def seconds_since(began: float) -> int:
    """Real seconds, begun ones too: the clock that a test moves goes on by them as well."""
    return math.ceil(asyncio.get_running_loop().time() - began)


async def move_clock(site: Site, seconds: int) -> None:
    log = site.parts.log
    for partition in log.keys.all():
        await log.read("HINCRBY", log.keys.control(partition), "clock_ms", seconds * 1000)


async def test_time_in_maintenance_and_time_away_are_no_uptime(site: Site) -> None:
    began = asyncio.get_running_loop().time()
    id_ = await worker_id(site)
    await put(site, id_, {"maintenance": True}, site.owner_key)
    await move_clock(site, 100)
    await site.pop()
    await put(site, id_, {"maintenance": False}, site.owner_key)
    await move_clock(site, 40)
    await site.pop()
    await move_clock(site, 301)
    await site.pop()
    await site.project()

    assert 40 <= (await get(site, f"/{id_}"))["uptime"] <= 40 + seconds_since(began)


@spec("Worker and status routes", 1)
async def test_the_list_is_filtered_by_type_or_name(site: Site) -> None:
    await site.pop(name="Other")
    await site.project()

    assert await listed(site, type="text") == ["Other", "w"]
    assert await listed(site, type="image") == []
    assert await listed(site, type="interrogation") == []
    assert await listed(site, name="oTHER", type="image") == ["Other"]
    assert await listed(site, name="Othe") == []
    answer = await site.http.get(WORKERS, params={"type": "film"})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["type"])


@spec("Worker and status routes", 3)
async def test_moderators_see_more_and_nobody_else(site: Site) -> None:
    key = await moderator(site)
    for path in ("/name/w", f"/{await worker_id(site)}"):
        shown = await get(site, path, key)
        assert (shown["owner"], shown["paused"], shown["suspicious"]) == ("owner#2", False, 0)
        hidden = {"owner", "paused", "messages", "suspicious", "ipaddr"}
        assert hidden <= shown.keys()
        for other in (None, site.owner_key, site.client_key, "nobody's", "k" * 5000):
            assert hidden.isdisjoint(await get(site, path, other))
    assert (await get(site, "", key))[0]["owner"] == "owner#2"


async def test_a_worker_that_was_too_fast_is_told_to_moderators(site: Site) -> None:
    key = await moderator(site)
    for seconds in (0, 20):
        await site.queued(max_tokens=1000)
        await site.project()
        job = await site.popped()
        await move_clock(site, seconds)
        message = {"role": "assistant", "content": "x" * 4000}
        assert (await site.reply(job["id"], message=message)).status_code == 200
    await site.project()

    assert (await get(site, "/name/w", key))["suspicious"] == 1


async def test_the_address_of_a_worker_is_told_to_moderators_and_stays_out_of_the_log(
    any_site: Site,
) -> None:
    site, address = any_site, "198.51.100.77"
    key, log = await moderator(site), site.parts.log
    id_ = await worker_id(site)
    assert (await get(site, f"/{id_}", key))["ipaddr"] == "127.0.0.1"

    for came in (address, address, f"::ffff:{address}"):
        headers = {"apikey": site.owner_key, "x-forwarded-for": came}
        await site.http.post("/v2/generate/text/pop", json=POP, headers=headers)
        assert (await get(site, f"/{id_}", key))["ipaddr"] == address

    assert 0 < await log.read("TTL", log.keys.worker_address(id_)) <= 86_400
    for partition in log.keys.all():
        entries = await log.read("XRANGE", log.keys.events(partition), "-", "+")
        assert address.encode() not in repr(entries).encode()


async def test_an_address_that_finds_no_room_fails_the_pop_and_breaks_nothing(
    site: Site,
) -> None:
    read = site.parts.log.read
    addresses, id_ = site.parts.addresses, await worker_id(site)
    await read("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(OutOfMemory):
            await addresses.note(id_, "198.51.100.77")
    finally:
        await read("CONFIG", "SET", "maxmemory", "0")

    await addresses.note(id_, "198.51.100.77")
    assert await addresses.of([id_, NOBODY]) == {id_: "198.51.100.77"}


@pytest.mark.parametrize("path", [NOBODY, "w", "%00", "name/W", "name/nobody", "name/%00"])
async def test_of_nobody_there_is_nothing_to_tell(site: Site, path: str) -> None:
    answer = await site.http.get(f"{WORKERS}/{path}")

    assert (answer.status_code, answer.json()["rc"]) == (404, "WorkerNotFound")


async def test_a_name_may_hold_anything(site: Site) -> None:
    for name in ("a/b c", "ü&?#", "50%"):
        await site.pop(name=name)
        await site.project()
        answer = await site.http.get(f"{WORKERS}/name/{quote(name, safe='')}")
        assert answer.json()["name"] == name


@spec("Worker details", 8)
async def test_details_are_kept_for_a_while(redis_url: str, migrated_url: str) -> None:
    async with opened(redis_url, migrated_url, worker_details_cache_seconds=30) as site:
        before = await get(site, "/name/w")

        await site.pop(threads=7)
        await site.project()

        assert await get(site, "/name/w") == before
        assert (await get(site, f"/{before['id']}"))["threads"] == 7  # nobody asked for it before


async def test_who_changed_something_sees_it_at_once(redis_url: str, migrated_url: str) -> None:
    async with opened(redis_url, migrated_url, worker_details_cache_seconds=30) as site:
        id_ = (await get(site, "/name/w"))["id"]
        assert (await get(site, f"/{id_}"))["maintenance_mode"] is False

        await put(site, id_, {"maintenance": True}, site.owner_key)
        await site.project()
        for path in ("/name/w", f"/{id_}"):
            assert (await get(site, path))["maintenance_mode"] is True

        await delete(site, id_, site.owner_key)
        await site.project()
        for path in ("/name/w", f"/{id_}"):
            assert (await site.http.get(f"{WORKERS}{path}")).status_code == 404


# what is changed


@spec("Worker and status routes", 5)
async def test_an_owner_puts_a_worker_into_maintenance_and_out_again(any_site: Site) -> None:
    site = any_site
    id_ = await worker_id(site)
    body = {"maintenance": True, "maintenance_msg": "New disks.", "info": " An attic. "}

    answer = await put(site, id_, body, site.owner_key)

    assert (answer.status_code, answer.json()) == (200, {"maintenance": True, "info": "An attic."})
    await site.queued()
    await site.project()
    refused = await site.pop()
    assert (refused.status_code, refused.json()["rc"]) == (403, "WorkerMaintenance")
    assert refused.json()["message"] == "New disks."
    shown = await get(site, f"/{id_}")
    assert (shown["maintenance_mode"], shown["info"]) == (True, "An attic.")

    assert (await put(site, id_, {"maintenance": False}, site.owner_key)).json() == {
        "maintenance": False
    }
    await site.project()
    assert (await site.popped())["id"]
    assert (await get(site, f"/{id_}"))["maintenance_mode"] is False


@spec("Worker and status routes", 5)
async def test_without_a_message_a_worker_in_maintenance_gets_the_service_s_own(
    site: Site,
) -> None:
    id_ = await worker_id(site)
    await put(site, id_, {"maintenance": True, "maintenance_msg": "Once."}, site.owner_key)

    await put(site, id_, {"maintenance": True}, site.owner_key)

    assert "Once" not in (await site.pop()).json()["message"]


@spec("Worker and status routes", 4)
async def test_who_may_change_what(site: Site) -> None:
    id_, key = await worker_id(site), await moderator(site)
    table: list[tuple[Any, str | None, int, str | None]] = [
        ({"maintenance": True}, site.client_key, 403, "NotOwner"),
        ({"info": "mine"}, site.client_key, 403, "NotOwner"),
        ({"info": "mine"}, site.anonymous, 403, "NotOwner"),
        ({"paused": True}, site.owner_key, 403, "NotModerator"),
        ({"paused": True}, site.client_key, 403, "NotModerator"),
        ({"paused": True, "info": "x"}, site.owner_key, 403, "NotModerator"),
        ({"info": "x"}, "nobody's", 401, "InvalidAPIKey"),
        ({"info": "x"}, None, 400, "BadRequest"),
        ({}, site.owner_key, 400, "NoWorkerModSelected"),
        ({"maintenance_msg": "x"}, site.owner_key, 400, "NoWorkerModSelected"),
        ({"future": 1, "info": None}, site.owner_key, 400, "NoWorkerModSelected"),
        ({"info": "x" * 1001}, site.owner_key, 400, "BadRequest"),
        ({"info": "x\0"}, site.owner_key, 400, "NulByteInPayload"),
        ({"maintenance": "yes"}, site.owner_key, 400, "BadRequest"),
        ({"team": "a team"}, site.owner_key, 400, "BadRequest"),
    ]
    before = await site.log_length()
    for body, caller, status, rc in table:
        answer = await put(site, id_, body, caller)
        assert (answer.status_code, answer.json()["rc"]) == (status, rc), body
    assert await site.log_length() == before

    assert (await put(site, id_, {"paused": True, "info": "seen"}, key)).json() == {
        "paused": True,
        "info": "seen",
    }
    await site.project()
    assert (await get(site, f"/{id_}", key))["paused"] is True


async def test_an_unknown_worker_is_unknown_before_anybody_is_asked_who_they_are(
    site: Site,
) -> None:
    for answer in (
        await put(site, NOBODY, {"info": "x"}, None),
        await put(site, "w", {"info": "x"}, None),
        await delete(site, NOBODY, None),
    ):
        assert (answer.status_code, answer.json()["rc"]) == (404, "WorkerNotFound")


@spec("Worker and status routes", 7)
async def test_an_owner_deletes_a_worker_and_its_name_is_free(any_site: Site) -> None:
    site = any_site
    id_ = await worker_id(site)
    refused = await site.pop(site.client_key)
    assert (refused.status_code, refused.json()["rc"]) == (403, "WrongCredentials")

    for key in (site.client_key, site.anonymous):
        answer = await delete(site, id_, key)
        assert (answer.status_code, answer.json()["rc"]) == (403, "NotOwner")
    answer = await delete(site, id_, site.owner_key)

    assert (answer.status_code, answer.json()) == (200, {"deleted_id": id_, "deleted_name": "w"})
    await site.project()
    assert await listed(site) == []
    assert (await delete(site, id_, site.owner_key)).json()["rc"] == "WorkerNotFound"
    assert (await site.pop(site.client_key)).json()["rc"] == "SettlerBehind"
    await site.settle()
    assert (await site.pop(site.client_key)).status_code == 200
    await site.project()
    client = await site.parts.accounts.find(site.client_key)
    shown = await get(site, "/name/w", await moderator(site))
    assert shown["owner"] == client.username


@spec("Worker and status routes", 7)
async def test_a_worker_that_holds_a_job_is_locked(site: Site) -> None:
    await site.queued()
    await site.project()
    job = await site.popped()
    await site.project()
    id_ = await worker_id(site)

    answer = await delete(site, id_, site.owner_key)
    assert (answer.status_code, answer.json()["rc"]) == (423, "Locked")

    await site.reply(job["id"])
    await site.project()
    assert (await delete(site, id_, site.owner_key)).status_code == 200


async def test_a_job_of_a_worker_that_is_deleted_meanwhile_is_taken(site: Site) -> None:
    await site.queued()
    await site.project()
    id_, job = await worker_id(site), await site.popped()

    assert (await delete(site, id_, site.owner_key)).status_code == 200  # not projected yet

    assert (await site.reply(job["id"])).status_code == 200
    await site.settle()
    await site.project()
    assert await listed(site) == []


# names


@spec("Worker and status routes", 6)
async def test_a_worker_is_renamed_and_its_old_name_is_free(any_site: Site) -> None:
    site = any_site
    id_ = await worker_id(site)

    answer = await put(site, id_, {"name": "  north side ", "info": "x"}, site.owner_key)

    assert (answer.status_code, answer.json()) == (200, {"name": "north side", "info": "x"})
    assert (await site.pop(name="north side")).status_code == 200  # at once
    await site.settle()
    await site.project()
    assert await listed(site) == ["north side"]
    assert (await get(site, "/name/north side"))["id"] == id_
    assert (await site.pop(name="north side")).status_code == 200
    assert (await site.pop(site.client_key)).status_code == 200  # whoever comes first
    await site.project()
    assert await listed(site) == ["north side", "w"]
    assert (await worker_id(site, "north side"), await worker_id(site) != id_) == (id_, True)


@spec("Worker and status routes", 6)
async def test_until_it_is_carried_over_either_name_leads_to_the_worker(any_site: Site) -> None:
    site = any_site
    id_ = await worker_id(site)
    await put(site, id_, {"name": "north side"}, site.owner_key)

    for name in ("w", "north side"):
        assert (await site.pop(name=name, threads=len(name))).status_code == 200
        await site.project()
        assert (await get(site, f"/{id_}"))["threads"] == len(name)
        refused = await site.pop(site.client_key, name=name)
        assert refused.json()["rc"] == "WrongCredentials"

    await site.settle()
    await site.project()
    assert await listed(site) == ["north side"]


@spec("Worker and status routes", 6)
async def test_names_that_a_worker_cannot_get(any_site: Site) -> None:
    site, other = any_site, "the other"
    await site.pop(name=other)
    await site.pop(site.client_key, name="a client's")
    await site.project()
    id_ = await worker_id(site)
    table = [
        ({"name": other}, site.owner_key, 400, "WorkerNameAlreadyExists"),
        ({"name": "a client's"}, site.owner_key, 400, "WorkerNameAlreadyExists"),
        ({"name": other, "info": "x"}, site.owner_key, 400, "WorkerNameAlreadyExists"),
        ({"name": "free name", "paused": True}, site.owner_key, 403, "NotModerator"),
        ({"name": "free name"}, site.client_key, 403, "NotModerator"),
        ({"name": "four"}, site.owner_key, 400, "BadRequest"),
        ({"name": "  four   "}, site.owner_key, 400, "BadRequest"),
        ({"name": "n" * 101}, site.owner_key, 400, "BadRequest"),
        ({"name": "north\0"}, site.owner_key, 400, "NulByteInPayload"),
    ]
    before = await site.log_length()

    for body, key, status, rc in table:
        answer = await put(site, id_, body, key)
        assert (answer.status_code, answer.json()["rc"]) == (status, rc), body

    assert await site.log_length() == before


async def test_a_name_cannot_be_changed_back_before_it_is_free(any_site: Site) -> None:
    site = any_site
    id_ = await worker_id(site)
    await put(site, id_, {"name": "north side"}, site.owner_key)

    answer = await put(site, id_, {"name": "north side"}, site.owner_key)
    assert (answer.status_code, answer.json()["rc"]) == (503, "SettlerBehind")

    await site.settle()
    assert (await put(site, id_, {"name": "north side"}, site.owner_key)).status_code == 200
    assert (await put(site, id_, {"name": "south side"}, site.owner_key)).status_code == 200
    await site.settle()
    assert (await put(site, id_, {"name": "north side"}, site.owner_key)).status_code == 200
    await site.settle()
    await site.project()
    assert await listed(site) == ["north side"]


async def test_the_name_of_a_renamed_worker_is_free_once_it_is_deleted(any_site: Site) -> None:
    site = any_site
    id_ = await worker_id(site)
    await put(site, id_, {"name": "north side"}, site.owner_key)
    await site.settle()

    assert (await delete(site, id_, site.owner_key)).status_code == 200

    waits = await site.pop(site.client_key, name="north side")
    assert (waits.status_code, waits.json()["rc"]) == (503, "SettlerBehind")
    await site.settle()
    assert (await site.pop(site.client_key, name="north side")).status_code == 200


async def test_a_claim_for_a_worker_that_is_deleted_before_it_is_carried_is_freed(
    any_site: Site,
) -> None:
    site = any_site
    id_ = await worker_id(site)
    await put(site, id_, {"name": "north side"}, site.owner_key)
    await delete(site, id_, site.owner_key)

    await site.settle()

    for name in ("w", "north side"):
        assert (await site.pop(site.client_key, name=name)).status_code == 200, name
