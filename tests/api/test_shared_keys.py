"""Shared keys: made, told of, changed, deleted, and what they are good for."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from handlers import shared_keys
from handlers.account_changes import Change, change_account
from handlers.accounts import ANONYMOUS_KEY
from tests.api.site import Site
from tests.spec import spec

PATH = "/v2/sharedkeys"
DAY = 86_400


async def call(
    site: Site, method: str, id_: str = "", key: str | None = None, body: Any = None
) -> httpx.Response:
    headers = {} if key is None else {"apikey": key}
    more = {} if body is None else {"json": body}
    path = f"{PATH}/{id_}" if id_ else PATH
    return await site.http.request(method, path, headers=headers, **more)


async def made(site: Site, key: str | None = None, **body: Any) -> Any:
    answer = await call(site, "PUT", "", key or site.client_key, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def pass_time(site: Site, seconds: int) -> None:
    log = site.parts.log
    for partition in log.keys.all():
        await log.read("HINCRBY", log.keys.control(partition), "clock_ms", seconds * 1000)


@spec("Shared keys", 1, 2)
async def test_a_shared_key_is_made_and_told_of_to_whoever_has_it(any_site: Site) -> None:
    site = any_site
    account = await site.parts.accounts.find(site.client_key)

    key = await made(site)
    full = await made(
        site,
        kudos=-1,
        expiry=2,
        name="Club",
        max_text_tokens=300,
        max_image_pixels=4_194_304,
        max_image_steps=500,
    )

    id_ = key.pop("id")
    assert key == {
        "username": account.username,
        "kudos": 5000,
        "utilized": 0,
        "max_image_pixels": -1,
        "max_image_steps": -1,
        "max_text_tokens": -1,
    }
    assert (await call(site, "GET", id_)).json() == key | {"id": id_}
    assert (await call(site, "GET", id_.upper())).json() == key | {"id": id_}
    ends = parsedate_to_datetime(full["expiry"]).timestamp() * 1000
    now_ms = await site.parts.log.now_ms(0)
    assert abs(now_ms + 2 * DAY * 1000 - ends) < 10_000
    assert full | key | {"id": "", "expiry": ""} == {
        **key, "id": "", "expiry": "", "name": "Club",
    }  # fmt: skip
    assert (full["kudos"], full["max_text_tokens"]) == (-1, 300)
    own = await site.http.get("/v2/find_user", headers={"apikey": site.client_key})
    assert own.json()["sharedkey_ids"] == sorted([id_, full["id"]])


@spec("Shared keys", 2)
async def test_its_owner_changes_and_deletes_it(any_site: Site) -> None:
    site = any_site
    key = await made(site, name="Club", expiry=9)

    changed = await call(
        site, "PATCH", key["id"], site.client_key, {"kudos": 0, "expiry": -1, "max_text_tokens": 8}
    )

    del key["expiry"]
    assert changed.json() == key | {"kudos": 0, "max_text_tokens": 8}
    assert (await call(site, "GET", key["id"])).json() == changed.json()
    assert (await call(site, "DELETE", key["id"], site.client_key)).json() == {"message": "OK"}
    for method, body in (("GET", None), ("PATCH", {"kudos": 1}), ("DELETE", None)):
        gone = await call(site, method, key["id"], site.client_key, body)
        assert (gone.status_code, gone.json()["rc"]) == (401, "InvalidAPIKey")
        assert gone.json()["message"] == "There is no such shared key."


@spec("Shared keys", 1, 2)
async def test_refusals_change_nothing(site: Site) -> None:
    id_ = (await made(site))["id"]
    state = await site.state()
    ranges = [
        {"kudos": -2}, {"kudos": 50_000_001}, {"kudos": 1.5}, {"expiry": -2}, {"expiry": 40_000},
        {"name": "ab"}, {"name": "x" * 256}, {"max_text_tokens": 501}, {"max_text_tokens": -2},
        {"max_image_pixels": 4_194_305}, {"max_image_steps": 501},
    ]  # fmt: skip
    attempts = [
        *(("PUT", "", site.client_key, body, 400, "BadRequest") for body in ranges),
        *(("PATCH", id_, site.client_key, body, 400, "BadRequest") for body in ranges),
        ("PUT", "", site.client_key, {"name": "a\0bc"}, 400, "NulByteInPayload"),
        ("PUT", "", ANONYMOUS_KEY, {}, 403, "AnonForbidden"),
        ("PUT", "", "nobody's", {}, 401, "InvalidAPIKey"),
        ("PUT", "", id_, {}, 401, "InvalidAPIKey"),
        ("PATCH", id_, site.client_key, {}, 400, "NoSharedKeyModSelected"),
        ("PATCH", id_, site.owner_key, {"kudos": 1}, 403, "Forbidden"),
        ("PATCH", id_, ANONYMOUS_KEY, {"kudos": 1}, 403, "Forbidden"),
        ("DELETE", id_, site.owner_key, None, 403, "Forbidden"),
        ("PATCH", "x", site.client_key, {"kudos": 1}, 401, "InvalidAPIKey"),
        ("GET", "x", None, None, 401, "InvalidAPIKey"),
    ]

    for method, name, key, body, status, rc in attempts:
        refused = await call(site, method, name, key, body)
        assert (refused.status_code, refused.json()["rc"]) == (status, rc), (method, body)

    assert await site.state() == state


@spec("Shared keys", 3)
async def test_an_account_has_so_many_shared_keys_by_its_roles(site: Site) -> None:
    account = await site.parts.accounts.find(site.client_key)
    for roles, most in (({}, shared_keys.MOST), ({"trusted": True}, shared_keys.MOST_TRUSTED)):
        await change_account(site.parts.log, account.id, Change(roles=roles or {"vpn": True}))
        has = await site.parts.log.read("SCARD", site.parts.log.keys.shared_keys(account.id))
        for _ in range(most - has):
            await made(site)
        refused = await call(site, "PUT", "", site.client_key, {})
        assert (refused.status_code, refused.json()["rc"]) == (403, "Forbidden")
        assert str(most) in refused.json()["message"]

    await change_account(site.parts.log, account.id, Change(roles={"education": True}))
    await made(site)


@spec("Shared keys", 4, 9)
async def test_with_it_its_owner_s_kudos_are_spent_and_nothing_else_is_done(any_site: Site) -> None:
    site = any_site
    account = await site.parts.accounts.find(site.client_key)
    id_ = (await made(site, name="Club"))["id"]

    queued = await site.submit(id_)

    assert queued.status_code == 202, queued.text
    hot = await site.parts.log.read(
        "HMGET", site.parts.log.keys.request(queued.json()["id"]), "user", "shared_key"
    )
    assert hot == [str(account.id).encode(), id_.encode()]
    found = await site.http.get("/v2/find_user", headers={"apikey": id_})
    assert found.json()["username"] == f"{account.username} (Shared Key: Club)"
    assert "contact" not in found.json()
    assert (await site.pop(id_)).status_code == 401
    user = f"/v2/users/{account.id}"
    refused = await site.http.put(user, json={"username": "other"}, headers={"apikey": id_})
    assert refused.status_code == 401
    shown = await site.http.get(user, headers={"apikey": id_})
    assert "sharedkey_ids" not in shown.json()


async def test_whoever_submitted_with_it_is_told_what_and_others_are_not(site: Site) -> None:
    first, second = (await made(site))["id"], (await made(site))["id"]
    body = {"prompt": "hi", "params": {"max_length": 16}}
    sent = await site.post("/v2/generate/text/async", body, first)
    path = f"/v2/generate/text/request/{sent.json()['id']}"

    told = [
        (await site.http.get(path, headers={"apikey": key})).status_code
        for key in (first, site.client_key, second, site.owner_key)
    ]

    assert told == [200, 200, 403, 403]


@spec("Shared keys", 5, 7)
async def test_its_time_and_its_cap_are_kept(any_site: Site) -> None:
    site = any_site
    key = await made(site, expiry=1, max_text_tokens=300)
    assert (await site.submit(key["id"], max_tokens=300)).status_code == 202
    state = await site.state()
    body = {"prompt": "hi", "params": {"max_length": 301}}
    for long in (
        await site.submit(key["id"], max_tokens=301),
        await site.post("/v2/generate/text/async", body, key["id"]),
    ):
        assert (long.status_code, long.json()["rc"]) == (400, "BadRequest")
        assert "300" in long.json()["message"]
    assert await site.state() == state

    await pass_time(site, DAY + 1)

    state = await site.state()
    late = await site.submit(key["id"], max_tokens=300)
    assert (late.status_code, late.json()["rc"]) == (403, "SharedKeyExpired")
    assert await site.state() == state
