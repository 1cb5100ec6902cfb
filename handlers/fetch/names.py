"""Names of hosts, resolved without a thread for each: a slow name server holds nobody else up.

getaddrinfo would take a thread of the loop's few for as long as the system's resolver sees fit,
whoever waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from socket import AF_UNSPEC, SOCK_STREAM

import aiodns
import pycares
from aiodns.error import ARES_ENODATA, ARES_ENOTFOUND, DNSError

ASK_AGAIN_SECONDS = 1.0
"""After which a name server that is silent is asked once more, or the next one is."""
TRIES = 2
_ABSENT = frozenset({ARES_ENODATA, ARES_ENOTFOUND})


class Names:
    """Resolves by /etc/hosts and name servers, in the running loop.

    servers  `address:port` of each; none: those of /etc/resolv.conf
    """

    def __init__(self, servers: Sequence[str] = ()) -> None:
        self._servers = servers
        self._resolver: aiodns.DNSResolver | None = None

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """All addresses of a host, best first; none where there is no such host. Raise OSError
        where that cannot be told. How long it may take is the caller's to say.

        Names are taken as they are written: no search domain is tried.
        """
        if self._resolver is None:
            self._resolver = aiodns.DNSResolver(
                self._servers,
                timeout=ASK_AGAIN_SECONDS,
                tries=TRIES,
                flags=pycares.ARES_FLAG_NOSEARCH,
            )
        try:
            found = await self._resolver.getaddrinfo(
                host, family=AF_UNSPEC, port=port, type=SOCK_STREAM
            )
        except DNSError as error:
            if error.args[0] in _ABSENT:
                return []
            raise OSError(f"a name could not be resolved: {error.args[1]}") from None
        return [node.addr[0].decode() for node in found.nodes]

    async def close(self) -> None:
        """Let go of the sockets. What is being resolved ends with an OSError."""
        if self._resolver is not None:
            await self._resolver.close()
