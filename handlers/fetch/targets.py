"""URLs that images may be fetched from, as far as their spelling tells (spec, Images)."""

from __future__ import annotations

import string
from collections.abc import Set
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

import httpx

from handlers.chat.images import MAX_URL_CHARACTERS
from handlers.errors import SourceImageUrlRefused

_PORTS = {"http": 80, "https": 443}
_NAME = frozenset(string.ascii_lowercase + string.digits + "-_")
_NAME_CHARACTERS = 253
_LABEL_CHARACTERS = 63


class Target(NamedTuple):
    """Where a request goes."""

    scheme: str
    host: str  # a name in ASCII and lower case without its last dot, or an address; no brackets
    port: int
    path: bytes  # with the query, as the request line has it

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> httpx.URL:
        """What a redirect's Location is relative to."""
        return httpx.URL(f"{self.scheme}://{self.authority}").copy_with(raw_path=self.path)


def target(url: str, ports: Set[int], *, base: Target | None = None) -> Target:
    """What a URL names; raise SourceImageUrlRefused.

    `base`: of what answered with the URL as a redirect, whose URL may be relative.
    """
    if len(url) > MAX_URL_CHARACTERS:
        raise SourceImageUrlRefused(f"the URL is longer than {MAX_URL_CHARACTERS} characters.")
    if any(_foul(character) for character in url):
        raise SourceImageUrlRefused(
            "white space, control characters and backslashes are not allowed in a URL."
        )
    try:
        parsed = httpx.URL(url) if base is None else base.url.join(url)
        host, path = parsed.raw_host.decode(), parsed.raw_path
    except (httpx.InvalidURL, ValueError):
        raise SourceImageUrlRefused("the URL cannot be read.") from None
    if parsed.scheme not in _PORTS:
        raise SourceImageUrlRefused("images are fetched over http and https only.")
    if parsed.userinfo:
        raise SourceImageUrlRefused("a user name or password is not allowed in a URL.")
    port = _PORTS[parsed.scheme] if parsed.port is None else parsed.port
    if port not in ports:
        listed = ", ".join(map(str, sorted(ports)))
        raise SourceImageUrlRefused(f"images are fetched from ports {listed} only.")
    return Target(parsed.scheme, _host(host), port, path)


def address_in(host: str) -> bool:
    """Whether a target's host is an address, of which nothing has to be resolved."""
    return ":" in host or _numeric(host)


def _foul(character: str) -> bool:
    return character == "\\" or character.isspace() or not character.isprintable()


def _host(host: str) -> str:
    """The host of a parsed URL, in its one spelling."""
    if ":" in host:
        return _plain(IPv6Address, host)
    name = host.removesuffix(".")
    if _numeric(name):
        # Resolvers take 2130706433, 0x7f.1 and 127.1 for addresses, each in its own way.
        return _plain(IPv4Address, name)
    labels = name.split(".")
    if len(name) > _NAME_CHARACTERS or not all(
        0 < len(label) <= _LABEL_CHARACTERS and _NAME.issuperset(label) for label in labels
    ):
        raise SourceImageUrlRefused("the URL's host is no valid name.")
    return name


def _numeric(name: str) -> bool:
    """Whether a host ends in a number, and so cannot be a name: there are no such top domains."""
    last = name.rpartition(".")[2]
    if last.startswith("0x"):
        return set(last[2:]) <= set(string.hexdigits)
    return last.isdigit()


def _plain(kind: type[IPv4Address | IPv6Address], host: str) -> str:
    try:
        return str(kind(host))
    except ValueError:
        raise SourceImageUrlRefused("the URL's host is no plainly written address.") from None
