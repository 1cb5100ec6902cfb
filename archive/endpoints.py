"""Where an object store is: a URL that names a server and nothing else.

Signed URLs hold the bucket and the object's name behind it, and what was signed is what the store
has to see. A path in front of those, which a proxy takes off, would break the signature: so it is
refused, and a store behind a proxy needs a host name of its own.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import urlsplit

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PORTS = {"http": 80, "https": 443}


class Endpoint(NamedTuple):
    """A server that speaks HTTP."""

    scheme: str  # http or https
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """From a URL; raise ValueError, in words that follow its name."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError("is no URL of a server, like `https://s3.example:9000`") from None
        if parts.scheme not in _PORTS:
            raise ValueError("has to begin with http:// or https://")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must not hold a name or a password: S3 has keys of its own")
        if parts.path not in ("", "/"):
            raise ValueError(
                "must not have a path: signed URLs need the store at the root of its host"
            )
        if parts.query or parts.fragment or "?" in url or "#" in url:
            raise ValueError("must not have anything behind the host and its port")
        host = parts.hostname or ""
        if port == 0 or not (_address(host) or _HOST.fullmatch(host)):
            raise ValueError("is no URL of a server, like `https://s3.example:9000`")
        return cls(parts.scheme, host, port or _PORTS[parts.scheme])

    @property
    def netloc(self) -> str:
        """The host, and its port where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def is_local(host: str) -> bool:
    """Whether a host name or an address means the machine that uses it."""
    address = _address(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
