"""Kudos that the operator or a moderator gives, or takes."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from events import codec
from events.base import KUDOS
from events.types import Granted
from handlers.accounts import OPERATOR
from handlers.amounts import MOST
from handlers.errors import BadRequest, Refused, UserNotFound
from handlers.log import Log, Refusal

logger = structlog.get_logger()

_TOO_MUCH = f"An account has at most {MOST} kudos."


class Grant(NamedTuple):
    """What became of it."""

    kudos: int
    """The balance afterwards, 10^-4 kudos."""
    repeated: bool
    """It was made before: nothing was changed."""


def check_grant(kudos: int, amount: int) -> None:
    """Raise BadRequest where an account that has so much may not be given as much more."""
    if amount > 0 and kudos + amount > MOST * KUDOS:
        raise BadRequest(_TOO_MUCH, errors={"kudos": _TOO_MUCH})


async def grant(
    log: Log,
    user_id: int,
    amount: int,
    *,
    grant_id: str,
    by: int = OPERATOR,
    cause: str = "admin",
) -> Grant:
    """Give an account so much (10^-4 kudos), or take some where it is less than 0: what would be
    left below its floor is lifted to it, as an event of its own.

    grant_id  names this grant of this account: another call with it changes nothing
    by        the account of the moderator who does
    cause     admin, recurring

    Raise UserNotFound; BadRequest where the account would have more than MOST kudos.
    """
    keys = log.keys
    partition = keys.of_account(user_id)
    event = Granted(user_id=user_id, amount=amount, grant_id=grant_id, cause=cause, by=by)
    try:
        kudos, repeated = await log.run(
            "grant",
            partition,
            {
                "account": keys.account(user_id),
                "clearing": keys.clearing(partition),
                "transfers": keys.transfers(user_id),
                "due_recurring": keys.due(partition, "recurring"),
            },
            {
                "grant_id": grant_id,
                "user_id": user_id,
                "amount": amount,
                "most": MOST * KUDOS,
                "event": codec.encode(event),
            },
        )
    except Refusal as refusal:
        if refusal.word == "TOO_MUCH":
            raise BadRequest(_TOO_MUCH, errors={"kudos": _TOO_MUCH}) from refusal
        raise UserNotFound from refusal
    logger.info("granted", user_id=user_id, amount=amount, by=by, repeated=repeated == b"1")
    return Grant(int(kudos), repeated == b"1")


async def give_monthly(log: Log, user_id: int, due_ms: int) -> bool:
    """Give an account the monthly kudos that were due at that time; whether it was done now.

    The time names the grant: whoever comes second changes nothing. An account that may not be given
    as many (any more) keeps nobody else waiting.
    """
    amount = int(await log.read("HGET", log.keys.account(user_id), "monthly_kudos") or 0)
    if not amount:
        return False
    try:
        given = await grant(log, user_id, amount, grant_id=f"monthly {due_ms}", cause="recurring")
    except Refused as refused:
        logger.warning("monthly_kudos_not_given", user_id=user_id, reason=str(refused))
        return False
    return not given.repeated
