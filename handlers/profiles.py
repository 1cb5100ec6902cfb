"""What an account's owner and moderators wrote of it: how to reach them, what to know of them.

Words of people are no history: they stand beside the log, and go with the account.
"""

from __future__ import annotations

from typing import NamedTuple

from handlers.account_changes import check_changeable
from handlers.errors import UserNotFound
from handlers.log import Log, Refusal


class Profile(NamedTuple):
    """Both may be empty; in a change, None leaves as it is."""

    contact: str | None = None
    """For moderators, by its owner."""
    admin_comment: str | None = None
    """For moderators, by moderators."""


async def read_profile(log: Log, user_id: int) -> Profile:
    """What was written of the account."""
    fields = await log.read("HMGET", log.keys.profile(user_id), *Profile._fields)
    return Profile(*((value or b"").decode() for value in fields))


async def set_profile(log: Log, user_id: int, profile: Profile) -> None:
    """Write it. Raise AnonForbiddenUserMod, UserNotFound."""
    check_changeable(user_id)
    written = [
        part
        for name, value in profile._asdict().items()
        if value is not None
        for part in (name, value)
    ]
    try:
        await log.run(
            "set_profile",
            log.keys.of_account(user_id),
            {"account": log.keys.account(user_id), "profile": log.keys.profile(user_id)},
            {"fields": written},
        )
    except Refusal as refusal:
        raise UserNotFound from refusal
