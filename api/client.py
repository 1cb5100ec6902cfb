"""Who calls, as far as an address tells: peers, proxies that are believed, and whitelists.

text_path_reference.md 2.3 and 2.5. Addresses are compared in one spelling (handlers/addresses.py)
and never written anywhere as they are: Redis gets an HMAC.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import falcon.asgi

from handlers.accounts import Account, digest_of
from handlers.addresses import Ranges, address_of
from handlers.log import Log

LOCAL = "127.0.0.1"
_CALLER = "caller"
WHITELISTED_SECONDS = 86_400
_WHITELISTED = frozenset(("trusted", "education", "service"))
_KEPT_SECONDS = 5.0
_KEPT = 10_000


class Caller(NamedTuple):
    """Whose call it is."""

    address: str
    proxied: bool
    """A front with a passkey named the address: it is one of its clients."""


class Callers:
    """Finds out who calls.

    `forwarded` are the peers whose X-Forwarded-For is believed, for one hop: its last entry is what
    that peer added. What stands before it came from outside, and may be anything.
    """

    def __init__(self, *, forwarded: Ranges, passkeys: Callable[[str], bool]) -> None:
        """`passkeys`: whether it is one that a proxy may name its clients with."""
        self._forwarded = forwarded
        self._passkeys = passkeys
        self._peer = lru_cache(_KEPT)(self._look_up)

    def remote(self, req: falcon.asgi.Request) -> str:
        """The remote address: of the peer, or of the client of a proxy that is believed.

        A peer without an address (a unix socket) is this machine. A header that holds no address
        is ignored.
        """
        peer: Any = req.scope.get("client")
        address, believed = self._peer(peer[0] if peer else LOCAL)
        if believed:
            header = req.get_header("x-forwarded-for")
            if header is not None:
                return address_of(header.rpartition(",")[2].strip()) or address
        return address

    def caller(self, req: falcon.asgi.Request) -> Caller:
        """Who calls a generate route.

        `Proxied-For` counts only beside a `Proxy-Authorization` that is one of the passkeys. Found
        once for a call: limits, whitelists and timeouts all ask.
        """
        caller: Caller | None = req.context.get(_CALLER)
        if caller is None:
            caller = req.context[_CALLER] = self._find(req)
        return caller

    def _find(self, req: falcon.asgi.Request) -> Caller:
        named = req.get_header("proxied-for")
        if named is not None and self._passkeys(req.get_header("proxy-authorization") or ""):
            address = address_of(named.strip())
            if address is not None:
                return Caller(address, proxied=True)
        return Caller(self.remote(req), proxied=False)

    def _look_up(self, peer: str) -> tuple[str, bool]:
        address = address_of(peer) or LOCAL
        return address, address in self._forwarded


class Whitelist:
    """Addresses with wider budgets: those of the settings, and for a day after each of their calls
    those from which accounts generate that are trusted, of education or a service's.

    All processes share the latter; what one has read it keeps for some seconds.
    """

    def __init__(self, log: Log, secret: str, always: Ranges, *, kept: int = _KEPT) -> None:
        self._log = log
        self._secret = secret
        self._always = always
        self._most = kept
        self._read: OrderedDict[str, tuple[float, bool]] = OrderedDict()

    def always(self, address: str) -> bool:
        """Whether the settings list an address."""
        return address in self._always

    async def earned(self, address: str) -> bool:
        """Whether such an account generated from an address; raise RedisUnavailable."""
        known = self._known(address)
        if known is None:
            known = await self._log.read("EXISTS", self._key(address)) == 1
            self._keep(address, known)
        return known

    async def called(self, caller: Caller, account: Account) -> None:
        """An account generates from here: whitelist the address of one that calls itself.

        A front's clients are not its account, and who was given a shared key is not, either. Raise
        RedisUnavailable.
        """
        itself = account.shared_key is None and not caller.proxied
        if itself and account.roles & _WHITELISTED and not self._known(caller.address):
            key = self._key(caller.address)
            await self._log.read("SET", key, "1", "EX", WHITELISTED_SECONDS)
            self._keep(caller.address, listed=True)

    def _known(self, address: str) -> bool | None:
        read = self._read.get(address)
        if read is None or asyncio.get_running_loop().time() - read[0] >= _KEPT_SECONDS:
            return None
        return read[1]

    def _keep(self, address: str, listed: bool) -> None:
        if self._log.test:  # tests do not wait for other processes to forget
            return
        self._read[address] = (asyncio.get_running_loop().time(), listed)
        self._read.move_to_end(address)
        if len(self._read) > self._most:
            self._read.popitem(last=False)

    def _key(self, address: str) -> str:
        return self._log.keys.whitelist(digest_of(self._secret, address))
