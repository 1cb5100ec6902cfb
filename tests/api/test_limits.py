"""Rate limits: how often who may call which route."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api import limits, notation
from api.description.operations import OPERATIONS
from api.patience import Patience
from handlers.accounts import open_account
from hordechat import settings
from hordechat.settings import Settings, SettingsError
from tests.api.asgi_client import Call
from tests.api.site import BODY, SECRET, Site, opened
from tests.api.test_outages import Way, is_away, ways
from tests.proxy import Proxy
from tests.spec import spec

CHAT = "/v2/generate/chat/async"
TEXT = "/v2/generate/text/async"
NOBODY = "00000000-0000-4000-8000-00000000abcd"
OTHER = "00000000-0000-4000-8000-00000000abce"
PASSKEY = "a front's passkey"
SERVICE = "192.0.2.1"
LOOSE = {"chat_request_2sec_limit_per_ip": "9/second", "chat_request_90min_limit_per_ip": "99/hour"}

COUNTED = Patience(limits=20)
"""Every call is counted: Redis is there."""


class Clock:
    """Redis' clock as every partition sees it, standing still until it is moved."""

    def __init__(self, site: Site) -> None:
        self._log = site.parts.log
        self._ms = int(time.time() * 1000) + 3_600_000

    async def move(self, seconds: float) -> None:
        """No partition's clock is earlier than its last event: that is where it stands."""
        self._ms += int(seconds * 1000)
        for partition in self._log.keys.all():
            await self._log.read("HSET", self._log.keys.control(partition), "last_ms", self._ms)


class Limited:
    """A site with limits, and its clock."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.clock = Clock(site)
        self.lasts = True

    async def keep(self, _answer: httpx.Response) -> None:
        """Windows end by the clock that stands still, but Redis clears them up by its own: what is
        counted must not go while a test is held up."""
        if self.lasts:
            async for key in self.site.parts.log.redis.scan("*horde:limit:*"):
                await self.site.parts.log.read("PERSIST", key)

    async def chat(self, address: str, key: str | None = None, **headers: str) -> httpx.Response:
        """Submit a chat request that lacks everything: 400 where no limit refuses it."""
        sent = {"x-forwarded-for": address, **headers}
        return await self.site.post(CHAT, {}, key or self.site.anonymous, sent)

    async def statuses(self, times: int, *call: Any, **headers: str) -> list[int]:
        """The statuses of so many such requests, one after the other."""
        return [(await self.chat(*call, **headers)).status_code for _ in range(times)]


@pytest.fixture
async def limited(request: pytest.FixtureRequest, migrated_url: str) -> AsyncIterator[Limited]:
    """Limits as the settings' defaults have them; a mark's parameter changes some."""
    changed: dict[str, Any] = dict(getattr(request, "param", {}))
    partitions = changed.setdefault("partitions", 1)
    url = request.getfixturevalue("redis_url" if partitions == 1 else "cluster_url")
    always: dict[str, Any] = {
        "rate_limits_enabled": True,
        "whitelisted_ips": SERVICE,
        "proxy_passkeys": PASSKEY,
    }
    async with opened(url, migrated_url, patience=COUNTED, **always | changed) as site:
        limited = Limited(site)
        await limited.clock.move(0)
        site.http.event_hooks["response"].append(limited.keep)
        yield limited


@spec("Rate limits", 8)
async def test_a_call_too_many_is_refused_before_its_body_is_read_and_changes_nothing(
    limited: Limited,
) -> None:
    site = limited.site
    caller = {"x-forwarded-for": "198.51.100.1"}
    answers = [await site.post(CHAT, BODY, site.client_key, caller) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["1", "0"]
    before, asked = await site.log_length(), time.time()

    answer = await site.post(CHAT, b"no JSON", None, caller)

    assert answer.status_code == 429
    assert answer.json() == {"message": "2 per 1 second", "rc": "TooManyRequests"}
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-ratelimit-limit"] == "2"
    assert answer.headers["x-ratelimit-remaining"] == "0"
    assert asked <= int(answer.headers["x-ratelimit-reset"]) <= time.time() + 2
    assert await site.log_length() == before


@spec("Rate limits", 2)
async def test_unset_the_budgets_of_chat_are_those_of_text(limited: Limited) -> None:
    for _ in range(45):
        assert await limited.statuses(3, "198.51.100.1") == [400, 400, 429]  # which counts nothing
        await limited.clock.move(1)

    answer = await limited.chat("198.51.100.1")

    assert (answer.status_code, answer.json()["message"]) == (429, "90 per 1 minute")
    assert answer.headers["retry-after"] == "15"
    await limited.clock.move(15)
    assert (await limited.chat("198.51.100.1")).status_code == 400


@spec("Rate limits", 1, 4)
@pytest.mark.parametrize(
    "limited",
    [
        {
            "chat_request_2sec_limit_per_ip": "3 per 2 second",
            "chat_request_90min_limit_per_ip": "4/minute;5/hour",
            "partitions": partitions,
        }
        for partitions in (1, 4)
    ],
    indirect=True,
    ids=["one partition", "four on a cluster"],
)
async def test_all_clients_behind_one_address_share_both_of_its_budgets(limited: Limited) -> None:
    site = limited.site
    keys = [site.anonymous, site.client_key, site.owner_key, site.client_key]
    answers = [await limited.chat("198.51.100.1", key) for key in keys]
    assert [answer.status_code for answer in answers] == [400, 400, 400, 429]
    assert answers[3].json()["message"] == "3 per 2 second"
    assert (await limited.chat("198.51.100.2")).status_code == 400

    await limited.clock.move(2)
    answers = [await limited.chat("198.51.100.1") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [400, 429]
    assert answers[1].json()["message"] == "4 per 1 minute"

    await limited.clock.move(60)
    answers = [await limited.chat("198.51.100.1") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [400, 429]
    assert answers[1].json()["message"] == "5 per 1 hour"
    assert answers[1].headers["retry-after"] == "120"  # clients ignore more


@spec("Rate limits", 3, 4)
async def test_a_front_s_clients_have_budgets_of_their_own(limited: Limited) -> None:
    known = {"proxy-authorization": PASSKEY}
    for client in ("203.0.113.1", "203.0.113.2", "2001:db8::1"):
        sent = known | {"proxied-for": client}
        assert await limited.statuses(3, "198.51.100.1", None, **sent) == [400, 400, 429]
    spelled = known | {"proxied-for": "2001:DB8:0::1"}
    assert await limited.statuses(1, "198.51.100.1", None, **spelled) == [429]

    unknown = {"proxy-authorization": "nonsense"}
    for client in ("203.0.113.3", "203.0.113.4"):
        sent = unknown | {"proxied-for": client}
        statuses = await limited.statuses(2, "198.51.100.1", None, **sent)
        assert statuses == ([400, 400] if client == "203.0.113.3" else [429, 429])


@spec("Rate limits", 5)
@pytest.mark.parametrize(
    "limited", [{"chat_request_2sec_limit_per_ip": "1/day"}], indirect=True, ids=["narrow"]
)
async def test_a_whitelisted_address_has_the_text_route_s_wide_budgets(limited: Limited) -> None:
    assert await limited.statuses(2, "198.51.100.1") == [400, 429]

    answers = [await limited.chat(SERVICE) for _ in range(11)]

    assert [answer.status_code for answer in answers] == [400] * 10 + [429]
    assert answers[10].json()["message"] == "10 per 1 second"


@spec("Rate limits", 5)
async def test_an_address_from_which_a_trusted_user_generates_gets_them_for_a_day(
    limited: Limited,
) -> None:
    log = limited.site.parts.log
    _, key = await open_account(log, SECRET, "trusted", trusted=True)
    front = {"proxy-authorization": PASSKEY, "proxied-for": "198.51.100.2"}
    for caller in ({"x-forwarded-for": "198.51.100.1"}, front):
        assert (await limited.site.post(CHAT, BODY, key, caller)).status_code == 202

    answers = [await limited.chat("198.51.100.1") for _ in range(11)]

    assert [answer.status_code for answer in answers] == [400] * 10 + [429]
    assert await limited.statuses(2, "198.51.100.2") == [400, 429]  # who came by a front


@spec("Rate limits", 6)
@pytest.mark.parametrize("limited", [LOOSE], indirect=True, ids=["loose for addresses"])
async def test_a_key_has_two_calls_a_second_wherever_they_come_from(limited: Limited) -> None:
    key = limited.site.client_key
    answers = [await limited.chat(f"198.51.100.{n}", key) for n in range(3)]
    assert [answer.status_code for answer in answers] == [400, 400, 429]
    assert answers[2].json()["message"] == "2 per 1 second"
    assert await limited.statuses(1, "198.51.100.9", limited.site.owner_key) == [400]

    nobodys = [await limited.chat("198.51.100.9", "nobody's") for _ in range(3)]
    assert [answer.status_code for answer in nobodys] == [400, 400, 429]


@spec("Rate limits", 6)
@pytest.mark.parametrize("limited", [LOOSE], indirect=True, ids=["loose for addresses"])
async def test_the_anonymous_key_and_trusted_users_addresses_have_sixty(limited: Limited) -> None:
    """A service's address is not among them: each of its users has a key."""
    site = limited.site
    _, trusted = await open_account(site.parts.log, SECRET, "trusted", trusted=True)
    anonymous = [await limited.chat(f"198.51.100.{n}") for n in range(61)]
    assert [answer.status_code for answer in anonymous] == [400] * 60 + [429]
    assert anonymous[60].json()["message"] == "60 per 1 second"

    assert await limited.statuses(3, SERVICE, site.client_key) == [400, 400, 429]
    await site.post(CHAT, BODY, trusted, {"x-forwarded-for": "198.51.101.1"})
    assert await limited.statuses(3, "198.51.101.1", site.owner_key) == [400] * 3


@spec("Rate limits", 7)
async def test_each_route_and_each_request_counts_its_own(limited: Limited) -> None:
    site = limited.site
    assert await limited.statuses(3, "127.0.0.1") == [400, 400, 429]
    assert [(await site.post(TEXT, {}, site.anonymous)).status_code for _ in range(3)] == [
        400,
        400,
        429,
    ]

    answers = [await site.status(NOBODY) for _ in range(60)]
    assert answers[0].headers["x-ratelimit-remaining"] == "59"
    assert {answer.status_code for answer in answers} == {404}
    assert (await site.status(NOBODY)).json()["message"] == "60 per 1 minute"
    assert (await site.status(NOBODY.upper())).status_code == 429  # the same request
    assert (await site.status(OTHER)).status_code == 404
    assert (await site.cancel(NOBODY)).status_code == 404

    assert (await site.pop()).status_code == 200
    assert (await site.reply(NOBODY)).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "budget"),
    [
        ("POST", CHAT, 2),
        ("POST", TEXT, 2),
        ("GET", f"/v2/generate/chat/status/{NOBODY}", 60),
        ("GET", "/v2/generate/text/status/nonsense", 60),
    ],
    ids=["chat", "text", "status", "nonsense"],
)
async def test_a_path_spelled_in_another_way_is_the_same_route(
    limited: Limited, method: str, path: str, budget: int
) -> None:
    """Falcon finds a route behind any number of slashes."""

    async def ask(spelled: str) -> int:
        call = Call(limited.site.app, method, spelled, {"content-length": "2"}).start(b"{}")
        await call.ended()
        return call.status

    answers = [await ask("/" * slashes + path) for slashes in range(budget + 1)]

    assert answers[-1] == 429
    assert answers.count(429) == 1


@pytest.mark.parametrize(
    "path", ["/v2/generate/text/pop", "/v2/generate/text/submit"], ids=["pop", "submit"]
)
async def test_workers_routes_are_limited_by_the_remote_address(
    limited: Limited, path: str
) -> None:
    site = limited.site
    sent = {"proxy-authorization": PASSKEY, "proxied-for": "203.0.113.1"}

    async def ask(**headers: str) -> httpx.Response:
        caller = sent | {"x-forwarded-for": "198.51.100.1"} | headers
        return await site.post(path, {}, site.owner_key, caller)

    assert {(await ask()).status_code for _ in range(60)} == {400}

    answer = await ask()

    assert (answer.status_code, answer.json()["message"]) == (429, "60 per 1 second")
    assert (await ask(**{"proxied-for": "203.0.113.2"})).status_code == 429
    assert (await ask(**{"x-forwarded-for": "198.51.100.2"})).status_code == 400


async def test_an_address_may_stream_six_hundred_jobs_at_once(limited: Limited) -> None:
    """One post a second each, as long as sixty of them end each second."""
    answer = await limited.site.post("/v2/generate/text/progress", {})

    assert answer.headers["x-ratelimit-limit"] == "600"
    assert answer.headers["x-ratelimit-remaining"] == "599"


async def test_any_other_route_has_ninety_a_minute_of_its_own(limited: Limited) -> None:
    get = limited.site.http.get
    statuses = [(await get("/v2/openapi.json")).status_code for _ in range(91)]

    assert statuses == [200] * 90 + [429]
    assert (await get("/docs")).status_code == 200


async def test_health_and_preflights_are_not_limited(limited: Limited) -> None:
    site = limited.site
    for _ in range(100):
        answer = await site.http.get("/health/live")
        assert answer.status_code == 200
        assert "x-ratelimit-limit" not in answer.headers
        assert (await site.http.options(CHAT)).status_code == 200


async def test_parallel_calls_never_get_more_than_there_is(limited: Limited) -> None:
    answers = await asyncio.gather(*(limited.chat("198.51.100.1") for _ in range(20)))

    assert sorted(answer.status_code for answer in answers) == [400] * 2 + [429] * 18


async def test_what_is_kept_ends_by_itself_and_names_nobody(limited: Limited) -> None:
    site = limited.site
    limited.lasts = False
    log = site.parts.log
    before = {key async for key in log.redis.scan("*horde:limit:*")}
    await limited.chat("198.51.100.1", site.client_key)
    await site.http.get(f"/v2/generate/chat/status/{'x' * 5000}")

    windows = {key async for key in log.redis.scan("*horde:limit:*")} - before

    assert len(windows) == 4
    for key in windows:
        assert len(key) < 50
        assert "198.51" not in key
        assert 0 < await log.read("PTTL", key) <= 60_000


@pytest.mark.parametrize(
    "limited", [{"rate_limits_enabled": False}], indirect=True, ids=["switched off"]
)
async def test_switched_off_nobody_is_limited_and_redis_is_not_asked(limited: Limited) -> None:
    answers = [await limited.chat("198.51.100.1") for _ in range(5)]

    assert {answer.status_code for answer in answers} == {400}
    assert not {name for name in answers[0].headers if name.startswith("x-ratelimit")}
    assert [key async for key in limited.site.parts.log.redis.scan("*horde:limit:*")] == []


@ways
async def test_without_redis_nobody_is_limited_and_the_route_answers_within_a_second(
    redis_url: str, migrated_url: str, away: Way
) -> None:
    async with Proxy.before(redis_url) as redis:
        around = (redis_url, migrated_url)
        async with opened(redis.url, migrated_url, around=around, rate_limits_enabled=True) as site:
            await site.status(NOBODY)
            away(redis)

            for _ in range(2):
                await is_away(site.submit(key=site.anonymous), "RedisUnavailable")

            redis.flow()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HORDE_TEXT_REQUEST_2SEC_LIMIT_PER_IP", "often"),
        ("HORDE_TEXT_REQUEST_90MIN_LIMIT_PER_IP", "2/fortnight"),
        ("HORDE_CHAT_REQUEST_2SEC_LIMIT_PER_IP", "5"),
        ("HORDE_CHAT_REQUEST_90MIN_LIMIT_PER_IP", "1/second;"),
        ("HORDE_CHAT_REQUEST_90MIN_LIMIT_PER_IP", "1 per 99999999999 years"),
        ("HORDE_WHITELISTED_IPS", "198.51.100.1,example.org"),
        ("HORDE_FORWARDED_ALLOW_IPS", "10.0.0.0/99"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named_at_the_start(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}: "):
        settings.load({variable: value})


def test_every_rule_is_of_a_route_that_there_is() -> None:
    table = limits.rules(text=("1/second", "1/minute"), chat=("", ""))

    assert {path for path, _ in table} <= {each.path for each in OPERATIONS}


def test_limits_are_written_in_flask_limiter_s_notation() -> None:
    for text in ("5/second", "300/minute", "2 per 1 second", "10/2hour; 5 per day, 1/month|2/year"):
        notation.items_of(text)
        assert settings.load({"HORDE_CHAT_REQUEST_2SEC_LIMIT_PER_IP": text}) != Settings()


async def test_the_routes_of_a_worker_have_thirty_a_minute_each(limited: Limited) -> None:
    site = limited.site

    async def status(id_: str, method: str = "GET") -> int:
        caller = {"x-forwarded-for": "198.51.100.1"}
        return (await site.http.request(method, f"/v2/workers/{id_}", headers=caller)).status_code

    assert {await status(NOBODY) for _ in range(30)} == {404}
    assert await status(NOBODY) == 429
    assert (await status(OTHER), await status(NOBODY, "DELETE")) == (404, 404)


@spec("Accounts", 13)
async def test_the_routes_of_an_account_have_sixty_a_minute_however_its_number_is_spelled(
    limited: Limited,
) -> None:
    site = limited.site

    async def status(id_: str, method: str = "GET") -> int:
        caller = {"x-forwarded-for": "198.51.100.1"}
        return (await site.http.request(method, f"/v2/users/{id_}", headers=caller)).status_code

    assert {await status("1" if n % 2 else "001") for n in range(60)} == {200}
    assert (await status("1"), await status("01")) == (429, 429)
    assert (await status("2"), await status("1", "DELETE")) == (200, 400)


@spec("Shared keys", 10)
async def test_shared_keys_are_made_five_times_a_minute(limited: Limited) -> None:
    site = limited.site

    async def make(address: str) -> int:
        caller = {"x-forwarded-for": address, "apikey": "nobody's"}
        answer = await site.http.put("/v2/sharedkeys", json={}, headers=caller)
        return answer.status_code

    assert [await make("198.51.100.1") for _ in range(6)] == [401] * 5 + [429]
    assert await make("198.51.100.2") == 401


@spec("Kudos", 22)
async def test_each_key_gives_kudos_once_a_second_and_ninety_times_an_hour(
    limited: Limited,
) -> None:
    """And 600 times from an address that is whitelisted; what is refused counts like the rest."""
    site = limited.site

    async def give(key: str | None, address: str = "198.51.100.1") -> tuple[int, str]:
        body = {"username": "nobody", "amount": 1}
        answer = await site.post("/v2/kudos/transfer", body, key, {"x-forwarded-for": address})
        return answer.status_code, answer.json()["message"]

    assert (await give(site.client_key))[0] == 400
    assert await give(site.client_key, "198.51.100.2") == (429, "1 per 1 second")
    assert (await give(site.owner_key))[0] == 400
    for _ in range(89):
        await limited.clock.move(1)
        assert (await give(site.client_key))[0] == 400
    await limited.clock.move(1)
    assert await give(site.client_key) == (429, "90 per 1 hour")
    assert (await give(site.client_key, SERVICE))[0] == 400
    assert (await give(site.owner_key))[0] == 400
    assert (await give(None))[0] == 400  # held to the limit of its address
