"""What the submit routes of both families answer."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from api.availability import Availability
from handlers.accounts import Account
from handlers.errors import Unserved
from handlers.submit import NewRequest
from projections import database
from projections.rules import Wanted


class Warning_(msgspec.Struct, frozen=True):  # noqa: N801 - the built-in has the name
    """One entry of `warnings`."""

    code: str
    message: str


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 202 (text_path_reference.md 3.6)."""

    id: str
    kudos: float
    """The estimate."""
    message: str | UnsetType = UNSET
    warnings: list[Warning_] | UnsetType = UNSET


async def queued(
    availability: Availability,
    request_ttl: int,
    account: Account,
    new: NewRequest,
    request_id: str,
    kudos: int,
) -> Queued:
    """The answer for a request that stands in the log: nothing turns it into an error any more.

    It warns where no online worker can serve it now; `request_ttl` is in seconds.
    """
    wanted = Wanted.of(new.demand, user_id=account.id, chat=new.chat, max_length=new.max_length)
    try:
        nobody = await availability.nobody(wanted)
    except (Unserved, database.DatabaseUnavailable, TimeoutError):
        nobody = False
    if not nobody:
        return Queued(id=request_id, kudos=float(kudos))
    warning = Warning_(
        "NoAvailableWorker",
        "No online worker can serve this request right now. It waits for one, and expires in "
        f"{request_ttl // 60} minutes. Asking for fewer tokens, more models or fewer "
        "features may help.",
    )
    return Queued(id=request_id, kudos=float(kudos), message=warning.message, warnings=[warning])
