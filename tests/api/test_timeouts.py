"""Addresses in timeout: set by moderators and operators, heeded by generate and pop."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from events.keys import Keys
from handlers.accounts import open_account
from handlers.errors import BadRequest, RedisUnavailable, TimeoutIP
from handlers.log import Log
from handlers.timeouts import MOST, Timeouts
from hordechat import commands
from hordechat.settings import Settings
from lua.link import Link, connect
from tests.api.site import BODY, POP, SECRET, Site

ROUTE = "/v2/operations/ipaddr"
CHAT = "/v2/generate/chat/async"
POP_PATH = "/v2/generate/text/pop"
ADDRESS = "198.51.100.7"
DAY = 24 * 60


@pytest.fixture(params=["one partition", "four on a cluster"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    single = request.param == "one partition"
    url = request.getfixturevalue("redis_url" if single else "cluster_url")
    opened = Log(await connect(url, timeout=20), Keys(1 if single else 4), test=True)
    yield opened
    await opened.close()


async def move(log: Log, seconds: int) -> None:
    await log.read("HINCRBY", log.keys.control(0), "clock_ms", seconds * 1000)


async def told(timeouts: Timeouts, address: str) -> str | None:
    """What an address is told; None where it is in no timeout."""
    try:
        await timeouts.check(address)
    except TimeoutIP as refused:
        return refused.message
    return None


async def minutes(timeouts: Timeouts, address: str) -> int | None:
    """For how many more minutes, begun ones too; None where it is in no timeout."""
    message = await told(timeouts, address)
    if message is None:
        return None
    (seconds,) = re.findall(r"^This address is in timeout for (\d+) more seconds\.$", message)
    return -(-int(seconds) // 60)


async def test_a_timeout_is_told_until_it_ends(log: Log) -> None:
    timeouts = Timeouts(log)
    await timeouts.set(ADDRESS, 2)

    assert await minutes(timeouts, ADDRESS) == 2
    assert await told(timeouts, "198.51.100.8") is None
    await move(log, 90)
    assert await minutes(timeouts, ADDRESS) == 1
    await move(log, 30)
    assert await told(timeouts, ADDRESS) is None


async def test_how_long_is_told_up_to_four_days(log: Log) -> None:
    timeouts = Timeouts(log)
    await timeouts.set(ADDRESS, 4 * DAY)
    assert await minutes(timeouts, ADDRESS) == 4 * DAY

    await timeouts.set(ADDRESS, 4 * DAY + 1)

    assert await told(timeouts, ADDRESS) == "This address is in timeout."


async def test_of_several_networks_the_longest_timeout_counts(log: Log) -> None:
    timeouts = Timeouts(log)
    for network, length in (("198.51.100.0/24", 3), (ADDRESS, 2), ("198.51.0.0/16", 1)):
        await timeouts.set(network, length)
    await timeouts.set("2001:DB8::1/32", 5)

    assert await minutes(timeouts, ADDRESS) == 3
    assert await minutes(timeouts, "198.51.100.8") == 3
    assert await minutes(timeouts, "198.51.1.1") == 1
    assert await minutes(timeouts, "2001:db8:7::7") == 5
    assert await told(timeouts, "203.0.113.1") is None


async def test_setting_again_clearing_and_listing(log: Log) -> None:
    timeouts = Timeouts(log)
    for network, length in ((ADDRESS, 9), ("10.9.8.7/8", 2), (f"::ffff:{ADDRESS}", 1)):
        await timeouts.set(network, length)

    listed = [(str(each.network), -(-each.left // 60)) for each in await timeouts.list()]
    assert listed == [(f"{ADDRESS}/32", 1), ("10.0.0.0/8", 2)]

    assert await timeouts.clear("10.0.0.0/8")
    assert not await timeouts.clear("10.0.0.0/8")
    assert await told(timeouts, "10.1.1.1") is None
    await move(log, 61)
    assert await timeouts.list() == []
    assert await log.read("HLEN", log.keys.ip_timeouts()) == 0


async def test_there_are_only_so_many_and_what_is_over_makes_room(log: Log) -> None:
    timeouts = Timeouts(log)
    until = await log.now_ms(0) + 60_000
    table: list[Any] = []
    for number in range(MOST):
        table += [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", until]
    await log.read("HSET", log.keys.ip_timeouts(), *table)

    with pytest.raises(BadRequest, match=f"{MOST} timeouts already"):
        await timeouts.set(ADDRESS, 1)
    assert await told(timeouts, ADDRESS) is None
    await timeouts.set("10.0.0.1", 2)  # one that there is may change

    await move(log, 61)
    await timeouts.set(ADDRESS, 1)
    assert {str(each.network) for each in await timeouts.list()} == {
        "10.0.0.1/32",
        f"{ADDRESS}/32",
    }


@pytest.mark.parametrize("text", ["", "example.org", "198.51.100.7/99", "1" * 5000])
async def test_what_is_no_address_is_refused(redis_url: str, text: str) -> None:
    log = Log(await connect(redis_url, timeout=20), Keys(1), test=True)
    timeouts = Timeouts(log)

    with pytest.raises(BadRequest):
        await timeouts.set(text, 1)
    with pytest.raises(BadRequest):
        await timeouts.clear(text)

    assert await timeouts.list() == []
    await log.close()


async def test_without_redis_an_old_copy_is_not_believed() -> None:
    log = Log(Link("redis://127.0.0.1:1"), Keys(1))

    with pytest.raises(RedisUnavailable):
        await Timeouts(log).check(ADDRESS)

    await log.close()


# over HTTP


async def call(
    site: Site, method: str, key: str | None = None, body: Any = None
) -> tuple[int, Any]:
    headers = {} if key is None else {"apikey": key}
    answer = await site.http.request(method, ROUTE, json=body, headers=headers)
    return answer.status_code, answer.json()


@pytest.fixture
async def moderator(site: Site) -> str:
    _, key = await open_account(site.parts.log, SECRET, "mod", moderator=True)
    return key


async def test_a_moderator_sets_lists_and_clears_timeouts(site: Site, moderator: str) -> None:
    done = (200, {"message": "OK"})
    for body in ({"ipaddr": ADDRESS, "hours": 1}, {"ipaddr": "10.0.0.0/8", "hours": 2}):
        assert await call(site, "POST", moderator, body) == done

    status, listed = await call(site, "GET", moderator)
    assert status == 200
    assert [each["ipaddr"] for each in listed] == [ADDRESS, "10.0.0.0/8"]
    for each, hours in zip(listed, (1, 2), strict=True):
        assert hours * 3600 - 60 < each["seconds"] <= hours * 3600

    for _ in range(2):  # ending one that there is not changes nothing
        assert await call(site, "DELETE", moderator, {"ipaddr": ADDRESS}) == done
    assert [each["ipaddr"] for each in (await call(site, "GET", moderator))[1]] == ["10.0.0.0/8"]


async def test_others_may_not_and_nonsense_is_refused(site: Site, moderator: str) -> None:
    good = {"ipaddr": ADDRESS, "hours": 1}
    table: list[tuple[str, str | None, Any, int, str]] = [
        ("POST", site.client_key, good, 403, "NotModerator"),
        ("POST", site.anonymous, good, 403, "NotModerator"),
        ("POST", "nobody's", good, 401, "InvalidAPIKey"),
        ("POST", None, good, 400, "BadRequest"),
        ("DELETE", site.client_key, {"ipaddr": ADDRESS}, 403, "NotModerator"),
        ("GET", site.client_key, None, 403, "NotModerator"),
        ("GET", None, None, 400, "BadRequest"),
        ("POST", moderator, {"ipaddr": ADDRESS}, 400, "BadRequest"),
        ("POST", moderator, good | {"hours": 0}, 400, "BadRequest"),
        ("POST", moderator, good | {"hours": 10**30}, 400, "BadRequest"),
        ("POST", moderator, good | {"ipaddr": "a\0"}, 400, "BadRequest"),
        ("POST", moderator, good | {"ipaddr": "\N{SNOWMAN}" * 1000}, 400, "BadRequest"),
        ("DELETE", moderator, {"ipaddr": "x"}, 400, "BadRequest"),
    ]

    for method, key, body, status, rc in table:
        got, answer = await call(site, method, key, body)
        assert (got, answer["rc"]) == (status, rc), (method, body)

    assert await call(site, "GET", moderator) == (200, [])


async def test_who_is_in_timeout_neither_submits_nor_pops_and_nothing_is_stored(
    site: Site,
) -> None:
    await site.parts.timeouts.set("198.51.100.0/24", 1)
    before = await site.log_length()
    from_there = {"x-forwarded-for": ADDRESS}
    pop = POP | {"name": "new"}

    for path, body, key in ((CHAT, BODY, site.client_key), (POP_PATH, pop, site.owner_key)):
        answer = await site.post(path, body, key, from_there)
        assert (answer.status_code, answer.json()["rc"]) == (403, "TimeoutIP")
        assert "more seconds" in answer.json()["message"]

    assert await site.log_length() == before
    assert await site.parts.log.read("GET", site.parts.log.keys.worker_name("new")) is None
    assert (await site.pop()).status_code == 200
    elsewhere = {"x-forwarded-for": "203.0.113.1"}
    assert (await site.post(CHAT, BODY, site.client_key, elsewhere)).status_code == 202


async def test_who_may_not_run_workers_is_told_that_first(site: Site) -> None:
    await site.parts.timeouts.set("127.0.0.1", 1)

    assert (await site.pop(key=site.anonymous)).json()["rc"] == "AnonForbiddenWorker"
    assert (await site.pop()).json()["rc"] == "TimeoutIP"


async def test_addresses_never_enter_the_log(site: Site) -> None:
    log = site.parts.log
    await site.parts.timeouts.set(ADDRESS, 1)
    await site.post(CHAT, BODY, site.client_key, {"x-forwarded-for": "203.0.113.99"})

    entries = await log.read("XRANGE", log.keys.events(0), "-", "+")

    assert b"198.51.100" not in repr(entries).encode()
    assert b"203.0.113" not in repr(entries).encode()


def test_operators_do_the_same_by_command(begun_url: str) -> None:
    given = Settings(redis_url=begun_url, database_url="postgresql://nobody")

    set_ = commands.timeout_set(given, address="198.51.100.7/24", minutes=2)
    assert set_ == {"ipaddr": "198.51.100.0/24", "seconds": 120}
    (listed,) = commands.timeout_list(given)
    assert listed["ipaddr"] == "198.51.100.0/24"
    assert commands.timeout_clear(given, address="198.51.100.0/24")
    assert not commands.timeout_clear(given, address="198.51.100.0/24")
    assert commands.timeout_list(given) == []
