"""No address outside the public internet passes, in any spelling."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest

from handlers.fetch.reachable import reachable
from tests.spec import spec

DENIED = [
    # network, and whether the addresses right before and right after it are public
    ("0.0.0.0/8", None, True),
    ("10.0.0.0/8", True, True),
    ("100.64.0.0/10", True, True),
    ("127.0.0.0/8", True, True),
    ("168.63.129.16/32", True, True),
    ("169.254.0.0/16", True, True),
    ("172.16.0.0/12", True, True),
    ("192.0.0.0/24", True, True),
    ("192.0.2.0/24", True, True),
    ("192.31.196.0/24", True, True),
    ("192.52.193.0/24", True, True),
    ("192.88.99.0/24", True, True),
    ("192.168.0.0/16", True, True),
    ("192.175.48.0/24", True, True),
    ("198.18.0.0/15", True, True),
    ("198.51.100.0/24", True, True),
    ("203.0.113.0/24", True, True),
    ("224.0.0.0/4", True, False),
    ("240.0.0.0/4", False, None),
    ("255.255.255.255/32", False, None),
    ("::/128", None, False),  # unspecified
    ("::1/128", False, False),  # loopback
    ("::/96", None, False),  # v4-compatible
    ("::ffff:0:0:0/96", False, False),  # v4-translated
    ("64:ff9b::/96", False, False),  # NAT64
    ("64:ff9b:1::/48", False, False),  # NAT64 of one network
    ("100::/64", False, False),  # discard
    ("2001::/32", True, False),  # Teredo
    ("2001:2::/48", False, False),  # benchmarking
    ("2001:10::/28", False, False),  # ORCHID
    ("2001:20::/28", False, False),  # ORCHIDv2
    ("2001::/23", True, True),
    ("2001:db8::/32", True, True),  # documentation
    ("2002::/16", True, True),  # 6to4
    ("2620:4f:8000::/48", True, True),  # AS112
    ("3fff::/20", True, True),  # documentation
    ("4000::/3", True, False),
    ("5f00::/16", False, False),  # SRv6
    ("fc00::/7", False, False),  # unique local
    ("fe80::/10", False, False),  # link-local
    ("fec0::/10", False, False),  # site-local
    ("ff00::/8", False, None),  # multicast
]


@spec("Images", 10)
@pytest.mark.parametrize(("network", "before", "after"), DENIED)
def test_a_denied_network_is_denied_from_its_first_address_to_its_last(
    network: str, before: bool | None, after: bool | None
) -> None:
    denied = ip_network(network)
    first, last = denied.network_address, denied[-1]

    assert reachable(str(first)) is None
    assert reachable(str(last)) is None
    assert reachable(str(denied[denied.num_addresses // 2])) is None
    for beside, public in ((int(first) - 1, before), (int(last) + 1, after)):
        if public is not None:
            address = str(type(first)(beside))
            assert reachable(address) == (address if public else None)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450::1"])
def test_public_addresses_pass(address: str) -> None:
    assert reachable(address) == address


@pytest.mark.parametrize("network", [each for each, _, _ in DENIED if "." in each])
def test_an_ipv4_address_mapped_into_ipv6_is_judged_as_the_ipv4_address(network: str) -> None:
    for address in (ip_network(network)[0], ip_network(network)[-1]):
        mapped = (0xFFFF << 32) + int(address)
        assert reachable(f"::ffff:{address}") is None
        assert reachable(str(IPv6Address(mapped))) is None
        assert reachable(IPv6Address(mapped).exploded) is None
    assert reachable("::ffff:1.1.1.1") == "1.1.1.1"


@pytest.mark.parametrize("inside", ["169.254.169.254", "127.0.0.1", "10.0.0.1", "1.1.1.1"])
@pytest.mark.parametrize(
    "form",
    [
        "::{dotted}",
        "::ffff:0:{dotted}",
        "64:ff9b::{dotted}",
        "64:ff9b:1::{dotted}",
        "2002:{hex}::",
        "2002:{hex}::1",
        "2001:0:{hex}::",  # Teredo: the server
        "2001:0:4136:e378:8000:63bf:{inverted}",  # Teredo: the client
        "fe80::5efe:{dotted}",  # ISATAP
    ],
)
def test_ipv4_inside_any_other_ipv6_is_denied_whatever_it_is(form: str, inside: str) -> None:
    """Who unwraps it, and to where, is the network's affair."""
    number = int(IPv4Address(inside))

    def words(value: int) -> str:
        return f"{value >> 16:x}:{value & 0xFFFF:x}"

    address = form.format(dotted=inside, hex=words(number), inverted=words(number ^ 0xFFFFFFFF))

    assert IPv6Address(address)
    assert reachable(address) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "1.1.1",
        "1.1.1.1.",
        "01.1.1.1",
        "16843009",
        "0x1010101",
        "1.1.1.1%eth0",
        "2606:4700::1111%eth0",
        "2606:4700::1111%",
        "fe80::1%lo",
        "[2606:4700::1111]",
        "1.1.1.1/32",
        " 1.1.1.1",
        "1.1.1.1\n",
        "\uff11.1.1.1",
        "1" * 5000,
    ],
)
def test_what_is_no_plain_address_does_not_pass(text: str) -> None:
    assert reachable(text) is None
