"""What owners, moderators and the operator change of accounts (text_path_reference.md 2.4, 8.3).

Who may change what is judged by the routes. The anonymous account is everyone's: nothing of it is
changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import structlog

from events import codec
from events.types import AccountChanged, AccountDeleted, AccountRekeyed
from handlers.accounts import ANONYMOUS_ID, MOST_NAME, OPERATOR, digest_of
from handlers.errors import AnonForbiddenUserMod, BadRequest, TooLongUserName, UserNotFound
from handlers.log import Log, Refusal
from handlers.users import shared_keys_of

logger = structlog.get_logger()

NONE_MAY_WAIT = -1
"""A concurrency of none at all: 0 is that of the settings."""

EDUCATION_CONCURRENCY = 200
"""Jobs of an account of education that may wait, unless another number comes with the role."""


class Change(NamedTuple):
    """What is to be changed; None: nothing of that."""

    name: str | None = None
    roles: Mapping[str, bool] = {}
    """Of events/roles.py: which it has from now on, and which not."""
    concurrency: int | None = None
    """Jobs that may wait at once; none for 0."""
    worker_invited: int | None = None
    public_workers: bool | None = None
    monthly_kudos: int | None = None  # 10^-4
    usage_multiplier: int | None = None  # 10^-3
    reset_suspicion: bool = False

    def also(self) -> dict[str, bool | int]:
        """What comes with it: a moderator is trusted, and education has more jobs that wait."""
        more: dict[str, bool | int] = {}
        if self.roles.get("moderator"):
            more["trusted"] = True
        if self.roles.get("education") and self.concurrency is None:
            more["concurrency"] = EDUCATION_CONCURRENCY
        return more

    def event(self, user_id: int, by: int) -> AccountChanged:
        """The fact, all of it."""
        also = self.also()
        roles = {**self.roles, **({"trusted": True} if "trusted" in also else {})}
        concurrency = also.get("concurrency", self.concurrency)
        values = {
            "name": self.name,
            "concurrency": NONE_MAY_WAIT if concurrency == 0 else concurrency,
            "worker_invited": self.worker_invited,
            "public_workers": self.public_workers,
            "monthly_kudos": self.monthly_kudos,
            "usage_multiplier": self.usage_multiplier,
            "suspicious": 0 if self.reset_suspicion else None,
        }
        given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        return AccountChanged(
            user_id=user_id,
            changed=(*given, *sorted(roles)),
            by=by,
            roles=tuple(sorted(role for role, has in roles.items() if has)),
            **given,
        )


def check_name(name: str) -> str:
    """A name as it is kept. Raise TooLongUserName, BadRequest for what is no name."""
    name = name.strip()
    if len(name) > MOST_NAME:
        raise TooLongUserName
    if not name or not name.isprintable():
        raise BadRequest("A user's name has characters that can be printed, and nothing else.")
    return name


def check_changeable(user_id: int) -> None:
    """Raise AnonForbiddenUserMod for the account that is everyone's."""
    if user_id == ANONYMOUS_ID:
        raise AnonForbiddenUserMod


async def change_account(log: Log, user_id: int, change: Change, *, by: int = OPERATOR) -> None:
    """Change the account. One that is no service's any more loses its passkey.

    Raise AnonForbiddenUserMod, UserNotFound.
    """
    check_changeable(user_id)
    keys, event = log.keys, change.event(user_id, by)
    partition = keys.of_account(user_id)
    try:
        (position,) = await log.run(
            "change_account",
            partition,
            {
                "account": keys.account(user_id),
                "due_recurring": keys.due(partition, "recurring"),
                "passkeys": keys.passkeys(partition),
            },
            {"user_id": user_id, "event": codec.encode(event)},
        )
    except Refusal as refusal:
        raise UserNotFound from refusal
    logger.info(
        "account_changed",
        user_id=user_id,
        position=position.decode(),
        changed=event.changed,
        by=by,
    )


async def rekey_account(log: Log, secret: str, user_id: int) -> str:
    """Give the account another API key and return it: it is stored nowhere. The former one is
    nobody's. Raise AnonForbiddenUserMod, UserNotFound.

    Keys are drawn until one's digest falls into the account's partition, so one script does all.
    """
    check_changeable(user_id)
    keys = log.keys
    partition = keys.of_account(user_id)
    api_key = secrets.token_urlsafe(16)
    while keys.of(digest := digest_of(secret, api_key)) != partition:
        api_key = secrets.token_urlsafe(16)
    while True:
        former = (await _keys_of(log, user_id)).key
        event = AccountRekeyed(user_id=user_id, key=digest, former=former)
        try:
            await log.run(
                "rekey_account",
                partition,
                {
                    "account": keys.account(user_id),
                    "api_key": keys.api_key(digest),
                    "former": keys.api_key(former),
                },
                {"key": digest, "was": former, "event": codec.encode(event)},
            )
        except Refusal as refusal:
            if refusal.word == "STALE":
                continue
            raise UserNotFound from refusal
        logger.info("account_rekeyed", user_id=user_id)
        return api_key


async def delete_account(log: Log, user_id: int) -> None:
    """Delete the account: its name, keys, roles and profile are gone, and its shared keys.

    Its number stays, and what it owns and owes: the ledger names it, and requests that are under
    way go on. Raise AnonForbiddenUserMod, UserNotFound.
    """
    check_changeable(user_id)
    keys = log.keys
    partition = keys.of_account(user_id)
    while True:
        known = await _keys_of(log, user_id)
        event = AccountDeleted(
            user_id=user_id, key=known.key, passkey=known.passkey, shared_keys=known.shared_keys
        )
        try:
            await log.run(
                "delete_account",
                partition,
                {
                    "account": keys.account(user_id),
                    "api_key": keys.api_key(known.key),
                    "passkeys": keys.passkeys(partition),
                    "of_account": keys.shared_keys(user_id),
                    "profile": keys.profile(user_id),
                    "due_recurring": keys.due(partition, "recurring"),
                    "shared_keys": [keys.shared_key(each) for each in known.shared_keys],
                },
                {
                    "key": known.key,
                    "passkey": known.passkey,
                    "ids": ",".join(known.shared_keys),
                    "event": codec.encode(event),
                },
            )
        except Refusal as refusal:
            if refusal.word == "STALE":
                continue
            raise UserNotFound from refusal
        logger.info("account_deleted", user_id=user_id)
        return


class _Keys(NamedTuple):
    """By what an account is found: HMACs and ids."""

    key: str
    passkey: str  # "" where it has none
    shared_keys: tuple[str, ...]


async def _keys_of(log: Log, user_id: int) -> _Keys:
    key, passkey = await log.read("HMGET", log.keys.account(user_id), "key", "passkey")
    if key is None:
        raise UserNotFound
    shared = await shared_keys_of(log, user_id)
    return _Keys(key.decode(), (passkey or b"").decode(), tuple(shared))
