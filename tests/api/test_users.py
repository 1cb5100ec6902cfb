"""Accounts as their owners, moderators and everyone see and change them."""

from __future__ import annotations

from typing import Any

import httpx

from handlers import users
from handlers.account_changes import Change, change_account
from handlers.accounts import ANONYMOUS_KEY, open_account
from tests.api.site import SECRET, Site, opened
from tests.spec import spec

USERS = "/v2/users"


async def call(
    site: Site, method: str, path: str, key: str | None = None, body: Any = None, **query: Any
) -> httpx.Response:
    headers = {} if key is None else {"apikey": key}
    more = {} if body is None else {"json": body}
    return await site.http.request(method, path, headers=headers, params=query, **more)


async def told(site: Site, path: str, key: str | None = None, **query: Any) -> Any:
    answer = await call(site, "GET", path, key, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def put(site: Site, user_id: int, key: str, **body: Any) -> Any:
    answer = await call(site, "PUT", f"{USERS}/{user_id}", key, body)
    return answer.json() if answer.status_code == 200 else (answer.status_code, answer.json()["rc"])


async def someone(site: Site, name: str = "eve", **more: Any) -> tuple[int, str]:
    return await open_account(site.parts.log, SECRET, name, **more)


async def moderator(site: Site) -> str:
    return (await someone(site, "moderator", moderator=True))[1]


async def client_id(site: Site) -> int:
    return (await site.parts.accounts.find(site.client_key)).id


# what is told


@spec("Accounts", 4)
async def test_everyone_is_told_what_is_public_of_an_account(any_site: Site) -> None:
    site = any_site
    id_, _ = await someone(site, kudos=1_234_567, kind="pseudonymous")
    await site.project()

    shown = await told(site, f"{USERS}/{id_}")

    age = shown.pop("account_age")
    assert 0 <= age < 60
    assert shown == {
        "username": f"eve#{id_}",
        "id": id_,
        "kudos": 123.4567,
        "kudos_details": {
            "accumulated": 0,
            "gifted": 0,
            "donated": 0,
            "admin": 123.4567,
            "received": 0,
            "recurring": 0,
            "awarded": 0,
            "styled": 0,
        },
        "concurrency": 30,
        "worker_invited": 0,
        "moderator": False,
        "trusted": False,
        "flagged": False,
        "pseudonymous": True,
        "worker_count": 0,
        "service": False,
        "education": False,
        "customizer": False,
        "deleted": False,
        "styles": [],
        "records": {
            "usage": {"megapixelsteps": 0, "tokens": 0},
            "contribution": {"megapixelsteps": 0, "tokens": 0},
            "fulfillment": {"image": 0, "text": 0, "interrogation": 0},
            "request": {"image": 0, "text": 0, "interrogation": 0},
            "style": {"image": 0, "text": 0, "interrogation": 0},
        },
        "usage": {"megapixelsteps": 0, "requests": 0},
        "contributions": {"megapixelsteps": 0, "fulfillments": 0},
    }
    assert (await told(site, f"{USERS}/{id_}", site.client_key)).keys() == {*shown, "account_age"}


@spec("Accounts", 5)
async def test_an_account_is_told_more_of_itself_and_moderators_most(site: Site) -> None:
    id_, mod = await client_id(site), await moderator(site)
    request_id = await site.queued()
    await put(site, id_, site.client_key, contact="me@example.org")
    await put(site, id_, mod, admin_comment="seen at a fair", monthly_kudos=12)
    await site.project()

    public = await told(site, f"{USERS}/{id_}")
    own = await told(site, f"{USERS}/{id_}", site.client_key)
    most = await told(site, f"{USERS}/{id_}", mod)

    mine = {
        "worker_ids": [],
        "sharedkey_ids": [],
        "contact": "me@example.org",
        "vpn": False,
        "special": False,
        "active_generations": {"text": [request_id], "image": []},
    }
    theirs = {
        "evaluating_kudos": 0,
        "monthly_kudos": {"amount": 12},
        "suspicious": 0,
        "admin_comment": "seen at a fair",
    }
    assert own == public | mine
    assert most == public | mine | theirs
    assert await told(site, "/v2/find_user", site.client_key) == own


@spec("Kudos", 13)
async def test_what_an_account_asked_for_and_what_its_workers_did_is_told(site: Site) -> None:
    """7.7: by what was asked for, once for each job that is paid for; the tax counts as none."""
    await site.queued(max_tokens=600)
    await site.project()
    await site.reply((await site.popped())["id"])
    await site.settle()
    await site.project()

    payer = await told(site, "/v2/find_user", site.client_key)
    owner = await told(site, "/v2/find_user", site.owner_key)

    assert payer["records"]["usage"]["tokens"] == 600
    assert owner["records"]["contribution"]["tokens"] == 600
    assert payer["records"]["request"]["text"] == payer["usage"]["requests"] == 1
    assert owner["records"]["fulfillment"]["text"] == owner["contributions"]["fulfillments"] == 1
    assert owner["records"]["usage"]["tokens"] == payer["records"]["contribution"]["tokens"] == 0
    # 1.2114, of which half waits for trust; 1 of tax and 1 burned; what the floor lifted at first
    assert payer["kudos_details"]["accumulated"] == -3.2114
    assert payer["kudos"] == 100_000 - 3.2114
    assert owner["kudos"] == owner["kudos_details"]["accumulated"] == 25.6014


async def test_whoever_shows_its_workers_is_told_of_as_their_owner(site: Site) -> None:
    owner = await site.parts.accounts.find(site.owner_key)
    (worker,) = await told(site, "/v2/workers")
    assert "owner" not in worker
    assert "worker_ids" not in await told(site, f"{USERS}/{owner.id}")

    assert await put(site, owner.id, site.owner_key, public_workers=True) == {
        "public_workers": True
    }

    (worker,) = await told(site, "/v2/workers")
    shown = await told(site, f"{USERS}/{owner.id}")
    assert (worker["owner"], worker["messages"]) == (owner.username, [])
    assert (shown["worker_ids"], shown["worker_count"]) == ([worker["id"]], 1)


async def test_nobody_is_the_owner_of_the_anonymous_account(site: Site) -> None:
    await site.queued(key=ANONYMOUS_KEY)
    await site.project()
    public = await told(site, f"{USERS}/0")

    assert (public["username"], public["concurrency"]) == ("Anonymous#0", 500)
    assert await told(site, f"{USERS}/0", ANONYMOUS_KEY) == public
    assert await told(site, "/v2/find_user", ANONYMOUS_KEY) == public
    assert "active_generations" not in await told(site, f"{USERS}/0", await moderator(site))


@spec("Accounts", 4)
async def test_what_is_no_account_is_not_found(site: Site) -> None:
    for id_ in ("99999", "x", "-1", "1" * 30, "1.0", "%C2%B2"):
        for method, body in (("GET", None), ("PUT", {"trusted": True}), ("DELETE", None)):
            answer = await call(site, method, f"{USERS}/{id_}", site.client_key, body)
            assert (answer.status_code, answer.json()["rc"]) == (404, "UserNotFound"), id_


@spec("Accounts", 2)
async def test_a_key_finds_its_account_or_nobody(site: Site) -> None:
    missing = await call(site, "GET", "/v2/find_user")
    assert (missing.status_code, missing.json()["rc"]) == (401, "InvalidAPIKey")
    for key in ("nobody's", "", "k" * 300, "00000000-0000-4000-8000-000000000000"):
        unknown = await call(site, "GET", "/v2/find_user", key)
        assert (unknown.status_code, unknown.json()["rc"]) == (404, "UserNotFound")


@spec("Accounts", 3)
async def test_accounts_are_listed_by_their_kudos_or_their_age(site: Site) -> None:
    log = site.parts.log
    for number in range(27):
        await open_account(log, SECRET, f"n{number}", kudos=2_000_000_000 + number)
    gone, key = await open_account(log, SECRET, "gone", kudos=9_000_000)
    assert (await call(site, "DELETE", f"{USERS}/{gone}", key)).status_code == 200
    await site.project()

    first, second = await told(site, USERS), await told(site, USERS, page=2)
    oldest = await told(site, USERS, sort="age")

    names = [user["username"].split("#")[0] for user in (*first, *second)]
    assert (len(first), len(second)) == (25, 5)
    assert names[:27] == [f"n{number}" for number in reversed(range(27))]
    assert {*names[27:]} == {"client", "owner", "Anonymous"}
    assert oldest[0]["username"] == "Anonymous#0"
    assert await told(site, USERS, page=999) == []
    for query in ({"page": 0}, {"page": "x"}, {"sort": "name"}):
        assert (await call(site, "GET", USERS, **query)).status_code == 400


# what is changed


@spec("Accounts", 6)
async def test_an_account_changes_its_name_and_how_to_reach_it(site: Site) -> None:
    id_ = await client_id(site)

    changed = await put(site, id_, site.client_key, username=" Élodie ", contact="x@example.org")

    assert changed == {"username": f"Élodie#{id_}", "contact": "x@example.org"}
    shown = await told(site, f"{USERS}/{id_}", site.client_key)
    assert (shown["username"], shown["contact"]) == (f"Élodie#{id_}", "x@example.org")


@spec("Accounts", 6)
async def test_a_moderator_changes_what_others_may(any_site: Site) -> None:
    site = any_site
    id_, mod = await client_id(site), await moderator(site)
    before = (await users.find(site.parts.log, id_)).kudos
    body = {
        "concurrency": 7,
        "usage_multiplier": 0.5,
        "worker_invited": 25,
        "monthly_kudos": 3,
        "flagged": True,
        "customizer": True,
        "service": True,
        "special": True,
        "vpn": True,
        "public_workers": True,
        "admin_comment": "a comment",
    }

    changed = await put(site, id_, mod, **body, moderator=True, kudos=-10.5, reset_suspicion=True)

    assert changed == body | {
        "moderator": True,
        "trusted": True,
        "new_kudos": before / 10_000 - 10.5,
        "new_suspicion": 0,
    }
    user = await users.find(site.parts.log, id_)
    assert user.roles == {
        "flagged", "customizer", "service", "special", "vpn", "moderator", "trusted",
    }  # fmt: skip
    assert (user.concurrency, user.worker_invited, user.usage_multiplier) == (7, 25, 500)
    assert (user.kudos, user.monthly_kudos) == (before - 105_000, 30_000)

    changed = await put(site, id_, mod, flagged=False, moderator=False)

    assert changed == {"flagged": False, "moderator": False}
    roles = (await users.find(site.parts.log, id_)).roles
    assert roles == user.roles - {"flagged", "moderator"}


@spec("Accounts", 8)
async def test_education_has_more_jobs_that_wait(site: Site) -> None:
    id_, mod = await client_id(site), await moderator(site)

    assert await put(site, id_, mod, education=True) == {"education": True, "concurrency": 200}
    assert (await told(site, f"{USERS}/{id_}"))["concurrency"] == 200
    assert await put(site, id_, mod, education=True, concurrency=9) == {
        "education": True,
        "concurrency": 9,
    }


@spec("Accounts", 8)
async def test_a_concurrency_of_none_lets_nothing_wait(site: Site) -> None:
    id_, mod = await client_id(site), await moderator(site)

    await put(site, id_, mod, concurrency=0)
    await site.settle()

    assert (await told(site, f"{USERS}/{id_}"))["concurrency"] == 0
    refused = await site.submit()
    assert (refused.status_code, refused.json()["rc"]) == (429, "TooManyPrompts")


OTHERS = ({"trusted": True}, {"username": "other"}, {"admin_comment": "a comment"}, {"kudos": 1})


@spec("Accounts", 6)
async def test_who_may_not_change_an_account_changes_nothing(site: Site) -> None:
    id_, mod = await client_id(site), await moderator(site)
    state = await site.state()
    refused = {
        "NotModerator": [
            *((site.owner_key, id_, body) for body in OTHERS),
            *((ANONYMOUS_KEY, id_, body) for body in OTHERS),
            *((site.client_key, id_, body) for body in ({"trusted": True}, {"kudos": 1})),
            (site.client_key, id_, {"username": "other", "vpn": True}),
            (site.client_key, id_, {"generate_proxy_passkey": True, "service": True}),
        ],
        "NotPrivileged": [
            (site.client_key, id_, {"generate_proxy_passkey": True}),
            (mod, id_, {"generate_proxy_passkey": True}),
            (site.client_key, id_, {"username": "other", "generate_proxy_passkey": True}),
            (mod, id_, {"kudos": 5, "trusted": True, "generate_proxy_passkey": True}),
            (mod, id_, {"service": False, "contact": "me@here", "generate_proxy_passkey": True}),
        ],
        "AnonForbiddenUserMod": [
            (ANONYMOUS_KEY, 0, {"username": "other"}),
            (mod, 0, {"trusted": True}),
            (mod, 0, {"kudos": 5}),
        ],
    }

    for rc, attempts in refused.items():
        for key, user_id, body in attempts:
            assert await put(site, user_id, key, **body) == (403, rc), body

    assert await site.state() == state


NO_CHANGES: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "NoUserModSelected"),
    ({"color": "red"}, "NoUserModSelected"),
    ({"reset_suspicion": False}, "NoUserModSelected"),
    ({"username": "x" * 31}, "TooLongUserName"),
    ({"username": "ab"}, "BadRequest"),
    ({"username": " \t "}, "BadRequest"),
    ({"username": "a\nb"}, "BadRequest"),
    ({"username": "a\0bc"}, "NulByteInPayload"),
    ({"contact": "x" * 501}, "BadRequest"),
    ({"concurrency": 501}, "BadRequest"),
    ({"concurrency": -1}, "BadRequest"),
    ({"usage_multiplier": 0.05}, "BadRequest"),
    ({"kudos": 0.00001}, "BadRequest"),
    ({"kudos": 1e300}, "BadRequest"),
    ({"kudos": 900719925474, "username": "other"}, "BadRequest"),
    ({"kudos": "5"}, "BadRequest"),
    ({"trusted": None}, "BadRequest"),
    ({"worker_invited": -1}, "BadRequest"),
)


async def test_what_is_no_change_is_refused(site: Site) -> None:
    id_, mod = await client_id(site), await moderator(site)
    state = await site.state()

    for body, rc in NO_CHANGES:
        assert await put(site, id_, mod, **body) == (400, rc), body

    assert await site.state() == state


async def test_roles_let_a_client_ask_for_more(site: Site) -> None:
    mod, path = await moderator(site), "/v2/generate/text/async"
    proxied = {"prompt": "hi", "proxied_account": "somebody"}
    alone = {"prompt": "hi", "disable_batching": True, "params": {"n": 2}}
    refused = [(await site.post(path, body, site.client_key)).json() for body in (proxied, alone)]
    assert [each["rc"] for each in refused] == ["OnlyServiceAccountProxy", "RequiresTrust"]

    id_ = await client_id(site)
    await put(site, id_, mod, service=True)
    await change_account(site.parts.log, id_, Change(roles={"patron": True}))
    site.parts.accounts.forget(id_)

    for body in (proxied, alone):
        assert (await site.post(path, body, site.client_key)).status_code == 202


# passkeys


@spec("Accounts", 9)
async def test_a_service_names_its_clients_with_a_passkey_until_it_has_another(
    any_site: Site,
) -> None:
    site = any_site
    id_ = await client_id(site)
    await change_account(site.parts.log, id_, Change(roles={"service": True}))

    async def new(**more: bool) -> str:
        changed = await put(site, id_, site.client_key, generate_proxy_passkey=True)
        assert changed.keys() == {"proxy_passkey"}
        await site.parts.passkeys.refresh()
        return str(changed["proxy_passkey"])

    first = await new()
    known = site.parts.passkeys.known
    assert known(first)
    assert not known("")
    assert not known(first[:-1])
    second = await new()
    assert (known(first), known(second)) == (False, True)
    stored = str(await site.state())
    assert second not in stored

    assert await put(site, id_, site.client_key, generate_proxy_passkey=False) == {
        "proxy_passkey": ""
    }
    await site.parts.passkeys.refresh()
    assert not known(second)


@spec("Accounts", 9)
async def test_who_is_no_service_any_more_has_no_passkey(site: Site) -> None:
    id_, mod = await client_id(site), await moderator(site)
    changed = await put(site, id_, mod, service=True, generate_proxy_passkey=True)
    await site.parts.passkeys.refresh()
    assert site.parts.passkeys.known(changed["proxy_passkey"])

    await put(site, id_, mod, service=False)

    await site.parts.passkeys.refresh()
    assert not site.parts.passkeys.known(changed["proxy_passkey"])
    assert not (await users.find(site.parts.log, id_)).passkey


# the end


@spec("Accounts", 10)
async def test_a_deleted_account_is_nobody_s(any_site: Site) -> None:
    site = any_site
    id_, key = await someone(site)
    await put(site, id_, key, contact="eve@example.org")
    shared = (await call(site, "PUT", "/v2/sharedkeys", key, {})).json()["id"]
    for other in (site.client_key, await moderator(site), ANONYMOUS_KEY):
        refused = await call(site, "DELETE", f"{USERS}/{id_}", other)
        assert (refused.status_code, refused.json()["rc"]) == (403, "NotAdmin")

    gone = await call(site, "DELETE", f"{USERS}/{id_}", key)

    assert gone.json() == {"deleted_id": id_, "deleted_name": f"eve#{id_}"}
    assert (await call(site, "GET", f"{USERS}/{id_}")).status_code == 404
    for path, sent in (("/v2/find_user", key), ("/v2/find_user", shared)):
        assert (await call(site, "GET", path, sent)).status_code == 404
    assert (await call(site, "GET", f"/v2/sharedkeys/{shared}")).status_code == 401
    assert (await site.submit(key)).status_code == 401
    state = await site.state()
    assert not [value for name, value in state.items() if "events" not in name and b"eve" in value]


async def test_an_operator_deletes_accounts_and_nobody_the_anonymous_one(
    redis_url: str, migrated_url: str
) -> None:
    async with opened(redis_url, migrated_url, admins="moderator#3") as site:
        admin = await moderator(site)
        id_ = await client_id(site)

        anonymous = await call(site, "DELETE", f"{USERS}/0", ANONYMOUS_KEY)
        assert (anonymous.status_code, anonymous.json()["rc"]) == (403, "AnonForbiddenUserMod")
        anonymous = await call(site, "DELETE", f"{USERS}/0", admin)
        assert (anonymous.status_code, anonymous.json()["rc"]) == (403, "AnonForbiddenUserMod")
        assert (await call(site, "DELETE", f"{USERS}/{id_}", admin)).status_code == 200
        assert (await call(site, "GET", f"{USERS}/{id_}")).status_code == 404
