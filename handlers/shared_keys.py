"""Shared keys: with them an account's kudos are spent by others, within a budget
(text_path_reference.md 2.2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import structlog

from events import codec
from events.base import KUDOS
from events.types import SharedKeyChanged, SharedKeyDeleted, SharedKeyOpened
from handlers.accounts import Account
from handlers.errors import (
    AnonForbidden,
    BadRequest,
    Forbidden,
    InvalidAPIKey,
    SharedKeyExpired,
)
from handlers.log import Log, Refusal

logger = structlog.get_logger()

MOST, MOST_TRUSTED, MOST_EDUCATION = 3, 10, 1000
"""Shared keys of an account, of a trusted one, of one of education."""

DEFAULT_KUDOS = 5000
UNLIMITED = -1
NEVER = 0
_DAY_MS = 86_400_000
_FIELDS = (
    "user",
    "name",
    "kudos",
    "utilized",
    "expiry_ms",
    "max_text_tokens",
    "max_image_pixels",
    "max_image_steps",
)

GONE = "There is no such shared key."
"""Of one that a path names. As the `apikey` of a call it is an unknown one like any other."""


class Known(NamedTuple):
    """A shared key as hot state has it."""

    id: str
    user_id: int
    name: str
    kudos: int  # 10^-4, that may be spent; -1: no end
    utilized: int  # 10^-4, in all
    expiry_ms: int  # Redis clock; 0: never
    max_text_tokens: int  # of one request, like the next two; -1: no cap
    max_image_pixels: int
    max_image_steps: int


class Terms(NamedTuple):
    """What a shared key is to be like; in a change, None leaves as it is."""

    name: str | None = None
    kudos: int | None = None
    """Whole ones; -1: no end."""
    days: int | None = None
    """From now until it expires; -1: never."""
    max_text_tokens: int | None = None
    max_image_pixels: int | None = None
    max_image_steps: int | None = None


def check_expiry(account: Account, now_ms: int) -> None:
    """Raise SharedKeyExpired where the account is called with a key whose time is up."""
    key = account.shared_key
    if key is not None and key.expiry_ms != NEVER and key.expiry_ms <= now_ms:
        raise SharedKeyExpired


def check_tokens(account: Account, max_length: int) -> None:
    """Raise BadRequest where a request asks for more tokens than the key that it is sent with may
    ask for."""
    key = account.shared_key
    if key is not None and UNLIMITED < key.max_text_tokens < max_length:
        raise BadRequest(
            f"The request asks for {max_length} tokens; {key.max_text_tokens} is the most that may "
            "be asked for with this shared key."
        )


async def find(log: Log, id_: str) -> Known:
    """The shared key of that id (a UUID in lower case); raise InvalidAPIKey."""
    fields = await log.read("HMGET", log.keys.shared_key(id_), *_FIELDS)
    if fields[0] is None:
        raise InvalidAPIKey(GONE)
    user_id, name, *numbers = fields
    return Known(id_, int(user_id), name.decode(), *map(int, numbers))


def check_owner(account: Account, known: Known) -> None:
    """Raise Forbidden where it is another account's."""
    if known.user_id != account.id:
        raise Forbidden(f"The shared key {known.id} belongs to another user.")


async def open_shared_key(log: Log, account: Account, terms: Terms) -> str:
    """Make a shared key of the account; return its id, which is the key itself.

    Raise AnonForbidden, InvalidAPIKey where the account is gone, Forbidden where it has as many as
    it may have.
    """
    if account.anonymous:
        raise AnonForbidden
    keys = log.keys
    id_ = keys.new_shared_key(account.id)
    given = await _values(log, account.id, terms)
    if "kudos" not in given:
        given["kudos"] = DEFAULT_KUDOS * KUDOS
    event = SharedKeyOpened(shared_key=id_, user_id=account.id, **given)
    try:
        await log.run(
            "open_shared_key",
            keys.of(id_),
            {
                "account": keys.account(account.id),
                "shared_key": keys.shared_key(id_),
                "of_account": keys.shared_keys(account.id),
            },
            {
                "most": MOST,
                "trusted": MOST_TRUSTED,
                "education": MOST_EDUCATION,
                "event": codec.encode(event),
            },
        )
    except Refusal as refusal:
        if refusal.word == "NO_ACCOUNT":
            raise InvalidAPIKey from refusal
        most = int(refusal.details[0])
        raise Forbidden(
            f"This account has {most} shared keys, as many as it may have."
        ) from refusal
    logger.info("shared_key_opened", user_id=account.id)
    return id_


async def change_shared_key(log: Log, account: Account, known: Known, terms: Terms) -> None:
    """Change a shared key. Raise Forbidden for another's, InvalidAPIKey where it is gone."""
    check_owner(account, known)
    given = await _values(log, account.id, terms)
    event = SharedKeyChanged(shared_key=known.id, user_id=account.id, changed=tuple(given), **given)
    try:
        await log.run(
            "change_shared_key",
            log.keys.of(known.id),
            {"shared_key": log.keys.shared_key(known.id)},
            {"user_id": account.id, "event": codec.encode(event)},
        )
    except Refusal as refusal:
        raise InvalidAPIKey(GONE) from refusal
    logger.info("shared_key_changed", user_id=account.id, changed=event.changed)


async def delete_shared_key(log: Log, account: Account, known: Known) -> None:
    """Delete a shared key. Raise Forbidden for another's, InvalidAPIKey where it is gone."""
    check_owner(account, known)
    keys = log.keys
    try:
        await log.run(
            "delete_shared_key",
            keys.of(known.id),
            {
                "shared_key": keys.shared_key(known.id),
                "of_account": keys.shared_keys(account.id),
            },
            {
                "user_id": account.id,
                "event": codec.encode(SharedKeyDeleted(shared_key=known.id, user_id=account.id)),
            },
        )
    except Refusal as refusal:
        raise InvalidAPIKey(GONE) from refusal
    logger.info("shared_key_deleted", user_id=account.id)


async def _values(log: Log, user_id: int, terms: Terms) -> dict[str, Any]:
    """The fields of the event that the terms name."""
    given: dict[str, Any] = {
        name: value
        for name, value in terms._asdict().items()
        if value is not None and name not in ("kudos", "days")
    }
    if terms.kudos is not None:
        given["kudos"] = terms.kudos * KUDOS if terms.kudos != UNLIMITED else UNLIMITED
    if terms.days is not None:
        now_ms = await log.now_ms(log.keys.of_account(user_id))
        given["expiry_ms"] = NEVER if terms.days == UNLIMITED else now_ms + terms.days * _DAY_MS
    return given
