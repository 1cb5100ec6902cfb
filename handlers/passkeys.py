"""Passkeys, with which the proxies of service accounts name the addresses of their clients
(text_path_reference.md 2.3).

Of a passkey an HMAC is kept: it is told once, when it is made.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable

import structlog

from events import codec
from events.types import PasskeyChanged
from handlers.account_changes import check_changeable
from handlers.accounts import digest_of
from handlers.errors import NotPrivileged, RedisUnavailable, UserNotFound
from handlers.log import Log, Refusal

logger = structlog.get_logger()

REFRESH_SECONDS = 5.0


async def set_passkey(log: Log, secret: str, user_id: int, *, wanted: bool) -> str:
    """Give the account another passkey and return it, or take the one away that it has: "".

    Raise AnonForbiddenUserMod, UserNotFound; NotPrivileged where it is not a service's.
    """
    check_changeable(user_id)
    keys = log.keys
    partition = keys.of_account(user_id)
    passkey = secrets.token_urlsafe(16) if wanted else ""
    digest = digest_of(secret, passkey) if wanted else ""
    while True:
        has = await log.read("HGET", keys.account(user_id), "passkey")
        former = (has or b"").decode()
        event = PasskeyChanged(user_id=user_id, passkey=digest, former=former)
        try:
            await log.run(
                "set_passkey",
                partition,
                {"account": keys.account(user_id), "passkeys": keys.passkeys(partition)},
                {"passkey": digest, "was": former, "event": codec.encode(event)},
            )
        except Refusal as refusal:
            match refusal.word:
                case "STALE":
                    continue
                case "NO_SERVICE":
                    raise NotPrivileged from refusal
                case _:
                    raise UserNotFound from refusal
        logger.info("passkey_changed", user_id=user_id, has=wanted)
        return passkey


class Passkeys:
    """The passkeys that are known: those of the settings, and those of service accounts as they
    were a moment ago."""

    def __init__(self, log: Log, secret: str, always: Iterable[str] = ()) -> None:
        self._log = log
        self._secret = secret
        self._always = frozenset(digest_of(secret, passkey) for passkey in always)
        self._of_services: frozenset[str] = frozenset()

    def known(self, passkey: str) -> bool:
        """Whether it is one of them: HMACs are compared, so the time it takes tells nothing."""
        digest = digest_of(self._secret, passkey)
        return digest in self._always or digest in self._of_services

    async def refresh(self) -> None:
        """Read those of service accounts again. Raise RedisUnavailable."""
        keys = self._log.keys
        found = await asyncio.gather(
            *(self._log.read("HKEYS", keys.passkeys(partition)) for partition in keys.all())
        )
        self._of_services = frozenset(digest.decode() for part in found for digest in part)

    async def run(self) -> None:
        """Keep them fresh. While Redis is away those that were read last are known."""
        while True:
            try:
                await self.refresh()
            except RedisUnavailable as error:
                logger.warning("passkeys_not_read", reason=str(error))
            await asyncio.sleep(REFRESH_SECONDS)
