"""Accounts as their owners and moderators see them: what hot state has of each."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from events.roles import ROLES
from handlers.accounts import ANONYMOUS_ID, roles_of
from handlers.errors import UserNotFound
from handlers.log import Log

_DIGITS = 18
_UNSCALED = 1000
"""The `usage_multiplier` of an account that was never given one."""
_FIELDS = (
    "name",
    "kind",
    "kudos",
    "escrow",
    "concurrency",
    "worker_invited",
    "public_workers",
    "monthly_kudos",
    "usage_multiplier",
    "suspicious",
    "created_ms",
    "passkey",
    *ROLES,
)


class User(NamedTuple):
    """An account that is there. Amounts are 10^-4 kudos, times the Redis clock."""

    id: int
    name: str
    kind: str  # registered, pseudonymous, anonymous
    kudos: int
    escrow: int
    """What waits until it is trusted."""
    concurrency: int
    """Jobs that may wait at once; 0: as many as the settings say, -1: none."""
    worker_invited: int
    public_workers: bool
    monthly_kudos: int
    usage_multiplier: int  # 10^-3
    suspicious: int
    created_ms: int
    """0 where that was not recorded."""
    passkey: bool
    """Whether its proxies have one."""
    roles: frozenset[str]

    @property
    def username(self) -> str:
        """The unique alias, `name#id`."""
        return f"{self.name}#{self.id}"

    @property
    def anonymous(self) -> bool:
        """Whether it is the account of everyone who has none."""
        return self.id == ANONYMOUS_ID


def number_of(text: str) -> int:
    """The account that is meant by its number, or by `name#number`: only the number counts.

    Raise UserNotFound for what is none.
    """
    digits = text.rpartition("#")[2]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS):
        raise UserNotFound
    return int(digits)


async def find(log: Log, user_id: int) -> User:
    """The account of that number. Raise UserNotFound where there is none, or it is deleted."""
    fields = await log.read("HMGET", log.keys.account(user_id), *_FIELDS)
    if fields[0] is None:
        raise UserNotFound
    name, kind, *values = fields
    numbers, held = values[: -len(ROLES)], values[-len(ROLES) :]
    kudos, escrow, concurrency, invited, public, monthly, multiplier, suspicious, created = (
        int(value or 0) for value in numbers[:-1]
    )
    return User(
        user_id,
        name.decode(),
        (kind or b"registered").decode(),
        kudos,
        escrow,
        concurrency,
        invited,
        public == 1,
        monthly,
        multiplier or _UNSCALED,
        suspicious,
        created,
        bool(numbers[-1]),
        roles_of(held),
    )


async def shared_keys_of(log: Log, user_id: int) -> list[str]:
    """The ids of an account's shared keys, sorted."""
    ids = await log.read("SMEMBERS", log.keys.shared_keys(user_id))
    return sorted(id_.decode() for id_ in ids)


async def every_user(log: Log) -> list[User]:
    """All accounts, by their numbers: for operators, who have time."""
    keys, numbers = log.keys, [0]
    for partition in keys.all():
        last = int(await log.read("GET", keys.accounts(partition)) or 0)
        numbers += range(partition or keys.partitions, last + 1, keys.partitions)
    found: list[User] = []
    for start in range(0, len(numbers), _PAGE):
        page = await asyncio.gather(
            *(find(log, user_id) for user_id in sorted(numbers)[start : start + _PAGE]),
            return_exceptions=True,
        )
        for each in page:
            if isinstance(each, User):
                found.append(each)
            elif not isinstance(each, UserNotFound):
                raise each
    return found


_PAGE = 200
