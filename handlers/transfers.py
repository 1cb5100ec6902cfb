"""Kudos that one account gives to another, or to a shared key of another
(text_path_reference.md 8.3).

The giver's script decides and takes them; the settler brings them to the recipient. "Not enough" is
said only where all that happened before is settled (design section 4).

Decisions where the specification is open:

* With an `Idempotency-Key` a repeat is told what was done the first time, before anything else is
  looked at: whatever became of the two accounts since. As many are remembered as lua/lib/transfers
  keeps of one account.
* An education account's kudos are for its own requests, as the name of the refusal says.
* The minute in which nothing goes back to whom something came from is counted from when it arrived.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import structlog

from events import codec
from events.types import Transferred
from handlers import shared_keys, users
from handlers.accounts import Account, digest_of
from handlers.admission import Settled, never_settled, until_settled
from handlers.amounts import shown
from handlers.errors import (
    BadRequest,
    EducationCannotSendKudos,
    FaultWhenKudosReceiving,
    FaultWhenKudosSending,
    IdempotencyKeyConflict,
    InvalidAPIKey,
    InvalidTargetUsername,
    KudosTransferFromAnon,
    KudosTransferNotEnough,
    KudosTransferToAnon,
    KudosTransferToSelf,
    NegativeKudosTransfer,
    Refused,
    SharedKeyExpired,
    SourceAccountFlagged,
    TargetAccountFlagged,
    TooFastKudosTransfers,
    UserNotFound,
)
from handlers.limits import Limits
from handlers.log import Log, Refusal

logger = structlog.get_logger()

PAUSE_SECONDS = 60
LONGEST_KEY = 255
"""Characters of an `Idempotency-Key`."""

_REFUSALS: dict[str, type[Refused]] = {
    "KEY_CONFLICT": IdempotencyKeyConflict,
    "NO_ACCOUNT": InvalidAPIKey,
    "TOO_FAST": TooFastKudosTransfers,
    "SUSPICIOUS": FaultWhenKudosSending,
    "FLAGGED": SourceAccountFlagged,
    "EDUCATION": EducationCannotSendKudos,
}


class Target(NamedTuple):
    """Whom a client names: an account, or a shared key."""

    user_id: int | None
    shared_key: str = ""

    def __str__(self) -> str:
        """As the giver remembers it."""
        return self.shared_key or str(self.user_id)


def idempotency_of(secret: str, key: str | None) -> str:
    """What is kept of an `Idempotency-Key`, empty without one; raise BadRequest for a bad one."""
    if key is None:
        return ""
    if not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        reason = f"Expected 1 to {LONGEST_KEY} characters that can be printed"
        raise BadRequest(f"Idempotency-Key: {reason}.", errors={"Idempotency-Key": reason})
    return digest_of(secret, f"idempotency {key}")


async def transfer(
    log: Log,
    limits: Limits,
    account: Account,
    target: Target,
    amount: int,
    *,
    idempotency: str = "",
    settled: Settled = never_settled,
) -> bool:
    """Give `amount` (10^-4 kudos) away; return whether it was done now, not by an earlier call of
    the same operation.

    idempotency  of `idempotency_of`: the same one of the same account names the same transfer

    Raise one of the refusals of transfers, or SettlerBehind where it cannot be told.
    """
    if account.anonymous:
        raise KudosTransferFromAnon
    if amount <= 0:
        raise NegativeKudosTransfer
    found = await _recipient(log, limits, account, target)
    recipient = None if isinstance(found, Refused) else found
    transfer_id = str(uuid.uuid4())
    event = Transferred(
        user_id=account.id,
        recipient=recipient or 0,
        amount=amount,
        transfer_id=transfer_id,
        idempotency=idempotency,
        shared_key=target.shared_key,
    )
    for attempt in range(2):
        try:
            repeated = await _run(log, limits, event, target, recipient)
        except Refusal as refusal:
            if isinstance(found, Refused) and refusal.word == "NO_RECIPIENT":
                raise found from None
            if refusal.word in _REFUSALS:
                raise _REFUSALS[refusal.word] from refusal
            if attempt:
                raise _not_enough(amount, int(refusal.details[0])) from refusal
        else:
            logger.info(
                "transferred",
                user_id=account.id,
                recipient=recipient,
                amount=amount,
                repeated=repeated,
            )
            return not repeated
        await until_settled(log, settled)
    raise AssertionError("the second attempt is the last")


async def _recipient(log: Log, limits: Limits, account: Account, target: Target) -> int | Refused:
    """The account that is to receive, or why it may not: told behind what the giver remembers."""
    user_id = target.user_id
    if user_id is None:
        owner = await _owner_of(log, target.shared_key)
        if isinstance(owner, Refused):
            return owner
        user_id = owner
    return await _barred(log, limits, account, user_id) or user_id


async def _barred(log: Log, limits: Limits, account: Account, user_id: int) -> Refused | None:
    try:
        user = await users.find(log, user_id)
    except UserNotFound:
        return InvalidTargetUsername()
    if user.anonymous:
        return KudosTransferToAnon()
    if user.id == account.id:
        return KudosTransferToSelf()
    if "trusted" not in user.roles and user.suspicious >= limits.suspect:
        return FaultWhenKudosReceiving()
    return TargetAccountFlagged() if "flagged" in user.roles else None


async def _owner_of(log: Log, shared_key: str) -> int | Refused:
    try:
        known = await shared_keys.find(log, shared_key)
    except InvalidAPIKey:
        return InvalidTargetUsername()
    if known.expiry_ms and known.expiry_ms <= await log.now_ms(log.keys.of(shared_key)):
        return SharedKeyExpired()
    return known.user_id


async def _run(
    log: Log, limits: Limits, event: Transferred, target: Target, recipient: int | None
) -> bool:
    keys = log.keys
    partition = keys.of_account(event.user_id)
    _, repeated = await log.run(
        "transfer",
        partition,
        {
            "account": keys.account(event.user_id),
            "clearing": keys.clearing(partition),
            "transfers": keys.transfers(event.user_id),
        },
        {
            "transfer_id": event.transfer_id,
            "idempotency": event.idempotency,
            "other": str(target),
            "recipient": "" if recipient is None else recipient,
            "amount": event.amount,
            "suspect": limits.suspect,
            "pause": PAUSE_SECONDS,
            "event": codec.encode(event),
        },
    )
    return repeated == b"1"


def _not_enough(amount: int, available: int) -> KudosTransferNotEnough:
    return KudosTransferNotEnough(
        f"This is {shown(amount)} kudos, and the account has {shown(max(0, available))} to give: "
        "what it holds for requests under way, and the least that an account has, stay."
    )
