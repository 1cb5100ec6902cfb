"""IP addresses and networks: one spelling for each, and quick look-ups of an address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_LONGEST = 49  # an IPv6 network that ends in an IPv4 address
_KEPT = 8192
_MAPPED_BITS = 96


def address_of(text: str) -> str | None:
    """The one spelling of an address; None for what is none.

    IPv6 is compressed and in lower case, without a zone. An IPv4 address inside IPv6
    (`::ffff:203.0.113.7`) is the IPv4 address: it is the same caller.
    """
    return _address_of(text) if len(text) <= _LONGEST else None


@lru_cache(_KEPT)
def _address_of(text: str) -> str | None:
    try:
        address = _parsed(text)
    except ValueError:
        return None
    return str(address)


def network_of(text: str) -> Network:
    """An address or a network in CIDR notation, as a network; raise ValueError.

    Host bits are dropped: `203.0.113.7/24` is `203.0.113.0/24`.
    """
    stripped = text.strip()
    if len(stripped) > _LONGEST or "%" in stripped:
        raise ValueError(f"{text[:_LONGEST]!r} is neither an address nor a network")
    try:
        network = ip_network(stripped, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is neither an address nor a network") from None
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is not None and network.prefixlen >= _MAPPED_BITS:
        return ip_network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def networks_of(listed: str) -> list[Network]:
    """Comma-separated addresses and networks; raise ValueError for the first that is neither."""
    return [network_of(each) for each in listed.split(",") if each.strip()]


def spelled(network: Network) -> str:
    """A network as people write it: one address without its prefix length."""
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    return str(network)


class Ranges:
    """Networks with a number each: which of them hold an address costs one look-up for each prefix
    length in use, however many there are."""

    def __init__(self, numbers: Mapping[Network, int]) -> None:
        self._tables: dict[int, list[tuple[int, dict[int, int]]]] = {4: [], 6: []}
        tables: dict[tuple[int, int], dict[int, int]] = {}
        for network, number in numbers.items():
            shift = network.max_prefixlen - network.prefixlen
            table = tables.setdefault((network.version, shift), {})
            table[int(network.network_address) >> shift] = number
        for (version, shift), table in tables.items():
            self._tables[version].append((shift, table))

    @classmethod
    def of(cls, networks: Iterable[Network]) -> Ranges:
        """Networks alone: what they hold is in, by `in`."""
        return cls(dict.fromkeys(networks, 1))

    def numbers(self, address: str) -> list[int]:
        """The numbers of all networks that hold an address, as `address_of` spells it."""
        if not self._tables[4] and not self._tables[6]:
            return []
        parsed = ip_address(address)
        value = int(parsed)
        tables = self._tables[parsed.version]
        return [table[value >> shift] for shift, table in tables if value >> shift in table]

    def __contains__(self, address: str) -> bool:
        return bool(self.numbers(address))


def _parsed(text: str) -> Address:
    if "%" in text:  # a zone is of one machine: it names no caller
        raise ValueError(text)
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address
    return address
