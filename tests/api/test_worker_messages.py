"""Messages for workers over HTTP."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from handlers.accounts import open_account
from handlers.worker_messages import MOST, MOST_OF_OWNER
from tests.api.site import SECRET, Site
from tests.spec import spec

MESSAGES = "/v2/workers/messages"
NOBODY = "00000000-0000-4000-8000-000000000000"


async def post(site: Site, key: str | None, **body: Any) -> httpx.Response:
    return await site.post(MESSAGES, body, key)


async def left(site: Site, key: str, **body: Any) -> dict[str, Any]:
    answer = await post(site, key, **body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def told(site: Site, **changed: Any) -> list[str]:
    """What comes with a pop."""
    return [each["message"] for each in (await site.pop(**changed)).json()["messages"]]


async def listed(site: Site, key: str, **query: Any) -> list[str]:
    answer = await site.http.get(MESSAGES, headers={"apikey": key}, params=query)
    assert answer.status_code == 200, answer.text
    return [each["message"] for each in answer.json()]


async def call(site: Site, method: str, id_: str, key: str) -> tuple[int, Any]:
    answer = await site.http.request(method, f"{MESSAGES}/{id_}", headers={"apikey": key})
    return answer.status_code, answer.json()


async def worker_id(site: Site, name: str = "w") -> str:
    return str((await site.http.get(f"/v2/workers/name/{name}")).json()["id"])


async def moderator(site: Site) -> str:
    _, key = await open_account(site.parts.log, SECRET, "moderator", moderator=True)
    return key


async def move_clock(site: Site, seconds: int) -> None:
    log = site.parts.log
    for partition in log.keys.all():
        await log.read("HINCRBY", log.keys.control(partition), "clock_ms", seconds * 1000)


@spec("Worker and status routes", 9)
async def test_a_message_comes_with_its_worker_s_pops_while_it_lasts(any_site: Site) -> None:
    site, id_ = any_site, await worker_id(any_site)
    await site.pop(name="other")
    owner = await site.parts.accounts.find(site.owner_key)

    message = await left(site, site.owner_key, message="Update me", worker_id=id_, expiry=2)

    assert (await site.pop()).json()["messages"] == [message]
    assert message | {"id": "", "expiry": ""} == {
        "id": "",
        "message": "Update me",
        "origin": owner.username,
        "expiry": "",
        "worker_id": id_,
    }
    now_ms = await site.parts.log.now_ms(0)
    seconds = parsedate_to_datetime(message["expiry"]).timestamp() - now_ms / 1000
    assert 7100 < seconds <= 7200
    assert await told(site, name="other") == []
    await site.queued()
    await site.project()
    assert (await site.popped())["messages"] == [message]

    await move_clock(site, 7201)
    assert await told(site) == []
    assert await listed(site, site.owner_key) == []


@spec("Worker and status routes", 9)
async def test_a_message_for_all_comes_with_everyone_s(any_site: Site) -> None:
    site, key = any_site, await moderator(any_site)
    await left(site, key, message="Hello", origin="The crew", expiry=3)
    await left(site, key, message="First", worker_id=await worker_id(site), expiry=1)

    assert await told(site) == ["First", "Hello"]
    pop = await site.pop(site.client_key, name="other")
    assert [(each["message"], each["origin"]) for each in pop.json()["messages"]] == [
        ("Hello", "The crew")
    ]


@spec("Worker and status routes", 8)
async def test_who_may_leave_what(site: Site) -> None:
    id_, key = await worker_id(site), await moderator(site)
    table: list[tuple[str | None, dict[str, Any], int, str]] = [
        (site.owner_key, {}, 403, "NotModerator"),
        (site.anonymous, {}, 403, "NotModerator"),
        (site.client_key, {"worker_id": id_}, 403, "NotOwner"),
        (site.owner_key, {"worker_id": NOBODY}, 404, "WorkerNotFound"),
        (site.owner_key, {"worker_id": "w"}, 404, "WorkerNotFound"),
        ("nobody's", {"worker_id": id_}, 401, "InvalidAPIKey"),
        (None, {"worker_id": id_}, 400, "BadRequest"),
        (key, {"message": ""}, 400, "BadRequest"),
        (key, {"message": "m" * 10_241}, 400, "BadRequest"),
        (key, {"message": "m\0"}, 400, "NulByteInPayload"),
        (key, {"expiry": 0}, 400, "BadRequest"),
        (key, {"expiry": 721}, 400, "BadRequest"),
        (key, {"message": None}, 400, "BadRequest"),
    ]

    for caller, body, status, rc in table:
        answer = await post(site, caller, **{"message": "m"} | body)
        assert (answer.status_code, answer.json()["rc"]) == (status, rc), body

    assert await listed(site, key) == []
    named = await left(site, site.owner_key, message="m", worker_id=id_, origin="Moderators")
    assert named["origin"] != "Moderators"
    assert (await left(site, key, message="m", worker_id=id_))["origin"] == "Moderators"


@spec("Worker and status routes", 8)
async def test_who_may_read_and_delete_what(any_site: Site) -> None:
    site, key = any_site, await moderator(any_site)
    id_ = await worker_id(site)
    to_all = await left(site, key, message="all", expiry=2)
    own = await left(site, site.owner_key, message="own", worker_id=id_, expiry=1)

    assert await listed(site, key) == ["own", "all"]
    assert await listed(site, site.owner_key) == ["own", "all"]
    for other in (site.client_key, site.anonymous):
        assert await listed(site, other) == ["all"]
        assert (await call(site, "GET", own["id"], other))[1]["rc"] == "MessageNotFound"
        assert (await call(site, "DELETE", own["id"], other))[1]["rc"] == "MessageNotFound"
    assert await listed(site, key, worker_id=id_) == ["own"]
    assert await listed(site, key, worker_id="w") == []
    assert await call(site, "GET", own["id"].upper(), site.owner_key) == (200, own)
    status, refused = await call(site, "DELETE", to_all["id"], site.owner_key)
    assert (status, refused["rc"]) == (403, "NotModerator")
    shown = await site.http.get(f"/v2/workers/{id_}", headers={"apikey": key})
    assert [each["message"] for each in shown.json()["messages"]] == ["own", "all"]
    assert "messages" not in (await site.http.get(f"/v2/workers/{id_}")).json()

    assert await call(site, "DELETE", own["id"], site.owner_key) == (200, {"message": "OK"})
    assert await call(site, "DELETE", to_all["id"], key) == (200, {"message": "OK"})

    assert await told(site) == []
    for id_ in (own["id"], NOBODY, "x"):
        for method in ("GET", "DELETE"):
            assert (await call(site, method, id_, key))[1]["rc"] == "MessageNotFound"


async def test_there_are_only_so_many_until_some_are_over(site: Site) -> None:
    key = await moderator(site)
    for number in range(MOST):
        await left(site, key, message=str(number), expiry=1)

    full = await post(site, key, message="one more")
    assert (full.status_code, full.json()["rc"]) == (400, "BadRequest")

    await move_clock(site, 3601)
    await left(site, key, message="one more")
    assert await told(site) == ["one more"]


async def test_owners_leave_only_so_many_and_take_no_room_from_moderators(site: Site) -> None:
    key, own = await moderator(site), await worker_id(site)
    for number in range(MOST_OF_OWNER):
        await left(site, site.owner_key, message=str(number), worker_id=own, expiry=1)

    full = await post(site, site.owner_key, message="one more", worker_id=own)
    assert (full.status_code, full.json()["rc"]) == (400, "BadRequest")
    assert len(await listed(site, site.owner_key)) == MOST_OF_OWNER

    for number in range(MOST):  # of an owner's none counts among these
        await left(site, key, message=f"moderators' {number}")
    full = await post(site, key, message="one more")
    assert (full.status_code, full.json()["rc"]) == (400, "BadRequest")

    await move_clock(site, 3601)
    await left(site, site.owner_key, message="one more", worker_id=own)


async def test_a_message_that_was_left_before_its_leaver_was_told_apart_is_still_told(
    site: Site,
) -> None:
    log = site.parts.log
    ends = await log.now_ms(0) + 60_000
    key = log.keys.worker_messages()
    await log.read("HSET", key, NOBODY, f'{ends} {{"message":"old","origin":"o"}}', "version", 1)

    assert await told(site) == ["old"]


async def test_messages_are_no_history(site: Site) -> None:
    before = await site.log_length()

    await left(site, site.owner_key, message="words", worker_id=await worker_id(site))

    assert await site.log_length() == before
