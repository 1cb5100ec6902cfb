"""Which addresses images are fetched from: those of the public internet, by our own list.

The standard library's predicates are not asked: which of them holds what changes between releases
of Python, and on 3.11 shared, 6to4 and NAT64 addresses pass them all (spec, Images).
"""

from __future__ import annotations

from ipaddress import IPv6Network, ip_address, ip_network

from handlers.addresses import Ranges, address_of

_IPV4 = (
    "0.0.0.0/8",  # "this network", and unspecified
    "10.0.0.0/8",  # private
    "100.64.0.0/10",  # shared, of carriers; metadata of some clouds
    "127.0.0.0/8",  # loopback
    "168.63.129.16/32",  # the host of a virtual machine at Azure, in a public network's clothes
    "169.254.0.0/16",  # link-local; metadata of most clouds
    "172.16.0.0/12",  # private
    "192.0.0.0/24",  # IETF protocol assignments
    "192.0.2.0/24",  # documentation
    "192.31.196.0/24",  # AS112: answers for private names
    "192.52.193.0/24",  # AMT: relays of multicast
    "192.88.99.0/24",  # 6to4 relays
    "192.168.0.0/16",  # private
    "192.175.48.0/24",  # AS112
    "198.18.0.0/15",  # benchmarking
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and broadcast
)
_UNICAST = IPv6Network("2000::/3")
"""All that is assigned for the public internet. What lies outside is loopback, unspecified,
v4-compatible, v4-translated, NAT64, discard, SRv6, unique local, link-local, site-local, multicast,
or reserved."""
_IPV6 = (
    "2001::/23",  # IETF protocol assignments: Teredo, benchmarking, ORCHID and more
    "2001:db8::/32",  # documentation
    "2002::/16",  # 6to4: holds an IPv4 address
    "2620:4f:8000::/48",  # AS112
    "3fff::/20",  # documentation
)
_DENIED = Ranges.of(map(ip_network, (*_IPV4, *_IPV6)))


def reachable(text: str) -> str | None:
    """The one spelling of an address that may be connected to; None for any other, and for what is
    no address or is scoped to a zone.

    An IPv4 address mapped into IPv6 is judged, and spelled, as the IPv4 address.
    """
    address = address_of(text)
    if address is None or address in _DENIED:
        return None
    parsed = ip_address(address)
    return address if parsed.version == 4 or parsed in _UNICAST else None  # noqa: PLR2004
