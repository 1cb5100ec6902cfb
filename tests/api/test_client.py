"""Who calls: peers, proxies that are believed, passkeys and whitelists."""

from __future__ import annotations

from collections.abc import AsyncIterator

import falcon.asgi
import pytest
from falcon.testing import create_asgi_req

from api.client import Caller, Callers, Whitelist
from events.keys import Keys
from handlers.accounts import Account, SharedKey
from handlers.addresses import Ranges, address_of, network_of, networks_of, spelled
from handlers.errors import RedisUnavailable
from handlers.log import Log
from lua.link import Link, connect
from tests.spec import spec

CALLERS = Callers(
    forwarded=Ranges.of(networks_of("127.0.0.1,::1,10.0.0.0/8")),
    passkeys={"one", "two"}.__contains__,
)


def request(peer: str | None = "127.0.0.1", **headers: str) -> falcon.asgi.Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    req = create_asgi_req(headers=named)
    req.scope["client"] = peer and (peer, 1)
    return req


@pytest.mark.parametrize(
    ("peer", "header", "address"),
    [
        ("203.0.113.7", None, "203.0.113.7"),
        ("203.0.113.7", "198.51.100.1", "203.0.113.7"),
        ("127.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("::ffff:10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("::1", "6.6.6.6, 198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "198.51.100.1,", "127.0.0.1"),
        ("127.0.0.1", "198.51.100.1, unknown", "127.0.0.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "198.51.100.1:80", "127.0.0.1"),
        ("127.0.0.1", "1" * 10_000, "127.0.0.1"),
        ("127.0.0.1", "\xff", "127.0.0.1"),
        ("127.0.0.1", "2001:DB8:0:0::1", "2001:db8::1"),
        ("127.0.0.1", "::FFFF:198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "fe80::1%eth0", "127.0.0.1"),
        (None, None, "127.0.0.1"),
        (None, "198.51.100.1", "198.51.100.1"),
    ],
)
def test_a_forwarded_address_is_believed_of_known_peers_for_one_hop(
    peer: str | None, header: str | None, address: str
) -> None:
    headers = {} if header is None else {"x_forwarded_for": header}

    assert CALLERS.remote(request(peer, **headers)) == address


@spec("Rate limits", 3)
@pytest.mark.parametrize(
    ("passkey", "named", "caller"),
    [
        ("one", "198.51.100.1", Caller("198.51.100.1", proxied=True)),
        ("two", " 2001:DB8::1 ", Caller("2001:db8::1", proxied=True)),
        ("one", "nonsense", Caller("203.0.113.7", proxied=False)),
        ("One", "198.51.100.1", Caller("203.0.113.7", proxied=False)),
        ("on", "198.51.100.1", Caller("203.0.113.7", proxied=False)),
        ("\xe9", "198.51.100.1", Caller("203.0.113.7", proxied=False)),
        ("", "198.51.100.1", Caller("203.0.113.7", proxied=False)),
        (None, "198.51.100.1", Caller("203.0.113.7", proxied=False)),
        ("one", None, Caller("203.0.113.7", proxied=False)),
    ],
)
def test_a_front_names_its_client_with_a_passkey_that_is_known(
    passkey: str | None, named: str | None, caller: Caller
) -> None:
    headers = {"proxy_authorization": passkey, "proxied_for": named}
    sent = {name: value for name, value in headers.items() if value is not None}

    assert CALLERS.caller(request("203.0.113.7", **sent)) == caller


def test_without_passkeys_nobody_is_a_front() -> None:
    callers = Callers(forwarded=Ranges({}), passkeys=set[str]().__contains__)

    for passkey in ("", "one"):
        req = request("127.0.0.1", proxy_authorization=passkey, proxied_for="198.51.100.1")
        assert callers.caller(req) == Caller("127.0.0.1", proxied=False)


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("198.51.100.7/24", "198.51.100.0/24"),
        (" 2001:DB8:0::1 ", "2001:db8::1"),
        ("2001:db8::1/32", "2001:db8::/32"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.0/120", "198.51.100.0/24"),
        ("::/0", "::/0"),
    ],
)
def test_a_network_has_one_spelling(text: str, network: str) -> None:
    assert spelled(network_of(text)) == network


@pytest.mark.parametrize(
    "text", ["", "x", "1.2.3", "1.2.3.4/33", "fe80::1%1", "1.2.3.4,5", "1" * 99]
)
def test_what_is_no_network_is_refused(text: str) -> None:
    assert address_of(text) is None
    with pytest.raises(ValueError, match="neither an address nor a network"):
        network_of(text)


def test_networks_that_hold_an_address_are_found_by_its_prefixes() -> None:
    numbers = {"198.51.100.7": 1, "198.51.100.0/24": 2, "0.0.0.0/0": 3, "2001:db8::/32": 4}
    ranges = Ranges({network_of(text): number for text, number in numbers.items()})

    assert sorted(ranges.numbers("198.51.100.7")) == [1, 2, 3]
    assert sorted(ranges.numbers("198.51.100.8")) == [2, 3]
    assert ranges.numbers("203.0.113.7") == [3]
    assert ranges.numbers("2001:db8:1::1") == [4]
    assert ranges.numbers("2001:db9::1") == []


# whitelists


def account(*roles: str, shared_key: SharedKey | None = None) -> Account:
    held = frozenset(roles)
    return Account(7, "a", "trusted" in held, False, "00", roles=held, shared_key=shared_key)


@pytest.fixture(params=["one partition", "four on a cluster"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    single = request.param == "one partition"
    url = request.getfixturevalue("redis_url" if single else "cluster_url")
    opened = Log(await connect(url, timeout=20), Keys(1 if single else 4), test=True)
    yield opened
    await opened.close()


@spec("Rate limits", 5)
@pytest.mark.parametrize("role", ["trusted", "education", "service"])
async def test_an_address_from_which_a_user_of_such_a_role_generates_is_whitelisted_for_a_day(
    log: Log, role: str
) -> None:
    here, elsewhere = Whitelist(log, "s", Ranges({})), Whitelist(log, "s", Ranges({}))
    caller = Caller("198.51.100.1", proxied=False)
    assert not await elsewhere.earned(caller.address)

    await here.called(caller, account(role))

    assert await here.earned(caller.address)
    assert await elsewhere.earned(caller.address)
    assert not await elsewhere.earned("198.51.100.2")
    stored = [key async for key in log.redis.scan("*horde:whitelist:*")]
    assert len(stored) == 1
    assert "198.51" not in stored[0]
    assert 86_390 < await log.read("TTL", stored[0]) <= 86_400


@pytest.mark.parametrize(
    ("caller", "proxied"),
    [
        (account("patron", "vpn"), False),
        (account("trusted"), True),
        (account("trusted", shared_key=SharedKey("k", -1, 0, -1)), False),
    ],
    ids=["of other roles", "proxied", "with a shared key"],
)
async def test_other_callers_whitelist_nothing(
    redis_url: str, caller: Account, proxied: bool
) -> None:
    log = Log(Link(redis_url, timeout=20), Keys(1), test=True)
    whitelist = Whitelist(log, "s", Ranges({}))

    await whitelist.called(Caller("198.51.100.1", proxied), caller)

    assert not await whitelist.earned("198.51.100.1")
    assert [key async for key in log.redis.scan("*")] == []
    await log.close()


async def test_addresses_of_the_settings_are_whitelisted_without_asking() -> None:
    log = Log(Link("redis://127.0.0.1:1"), Keys(1))
    whitelist = Whitelist(log, "s", Ranges.of(networks_of("198.51.100.0/24, 2001:db8::1")))

    assert whitelist.always("198.51.100.9")
    assert whitelist.always("2001:db8::1")
    assert not whitelist.always("203.0.113.7")
    with pytest.raises(RedisUnavailable):
        await whitelist.earned("198.51.100.9")
    await log.close()


async def test_what_was_read_is_kept_for_a_while_and_of_so_many_addresses(redis_url: str) -> None:
    log = Log(Link(redis_url, timeout=20), Keys(1))
    whitelist = Whitelist(log, "s", Ranges({}), kept=10)
    for number in range(100):
        await whitelist.earned(f"198.51.100.{number}")
    here = Caller("198.51.100.99", proxied=False)
    await Whitelist(log, "s", Ranges({})).called(here, account("trusted"))

    assert not await whitelist.earned(here.address)  # until some seconds have passed
    assert len(whitelist._read) == 10
    await log.close()
