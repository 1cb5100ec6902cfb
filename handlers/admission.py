"""The account's side of a submit: whether its jobs may wait, whether it has the kudos that they
need upfront, and what its operation keys name.

Decided by `admit` on the account. "Too many" and "too little" are said only where all that happened
before is settled (design section 4): jobs that were handed out meanwhile do not wait any more, and
what a request held is free once it is done.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from events import codec
from events.base import KUDOS, Position
from events.types import Admitted
from handlers.accounts import Account, digest_of
from handlers.errors import (
    InvalidAPIKey,
    KudosUpfront,
    Refused,
    SettlerBehind,
    SharedKeyEmpty,
    SharedKeyExpired,
    SharedKeyInsufficientKudos,
    TooManyPrompts,
)
from handlers.limits import Limits
from handlers.log import Log, Refusal
from handlers.objects import NOTHING, Kept

MOST_SCOPES = 20
"""Models of an anonymous request whose jobs are counted: more than a chat request may name."""

CLOSED = "-"
"""In place of what an admission stores, where there is none any more (lua/admit.lua)."""

Settled = Callable[[Sequence[Position]], Awaitable[bool]]
"""Whether the settler came to these heads, one for each partition; waits for it a moment."""


async def never_settled(_heads: Sequence[Position]) -> bool:
    """For callers that do not follow the settler: nothing is known."""
    return False


class Operation(NamedTuple):
    """One submission as its client names it."""

    key: str
    """A UUID in its canonical form."""

    fingerprint: str
    """HMAC of the fingerprint: the log holds nothing from which content could be guessed."""

    @classmethod
    def of(cls, secret: str, key: str, fingerprint: str) -> Operation:
        """From the client's key, a UUID, and the SHA-256 of what it asks for, hexadecimal."""
        return cls(str(uuid.UUID(key)), digest_of(secret, fingerprint))


class Claim(NamedTuple):
    """What an account's operation key names."""

    request_id: str
    fingerprint: str
    """As in `Operation`."""

    kudos: int
    """The estimate that its client was told, 10^-4 kudos."""

    deadline_ms: int
    """Until when the request may be stored."""


class Admission(NamedTuple):
    """A request that may be stored."""

    request_id: str
    deadline_ms: int
    priority: int
    """Where its request stands before it ages, 10^-4 kudos."""

    claim: Claim | None = None
    """Where another submission of the operation was admitted first."""

    kept: Kept | None = NOTHING
    """What may be stored in the object store for it; None where the claim's admission is closed."""


async def find_claim(log: Log, account: Account, operation_key: str) -> Claim | None:
    """What the account's operation key names, if anything."""
    request_id, fingerprint, kudos, deadline_ms = await log.read(
        "HMGET",
        log.keys.claim(account.id, operation_key),
        "request",
        "fingerprint",
        "kudos",
        "deadline_ms",
    )
    if request_id is None:
        return None
    return Claim(request_id.decode(), fingerprint.decode(), int(kudos), int(deadline_ms))


class Opened(NamedTuple):
    """What an open admission names."""

    operation_key: str  # "" where it has none, like the next
    shared_key: str
    kept: Kept = NOTHING


async def opened(log: Log, user_id: int, request_id: str) -> Opened | None:
    """What the account's admission of a request names; None where there is none any more."""
    admission = await log.read("HGET", log.keys.account(user_id), f"admission:{request_id}")
    if admission is None:
        return None
    parts = admission.decode().split(":")
    return Opened(parts[2], parts[6], Kept.parse(parts[7]) if len(parts) > 7 else NOTHING)  # noqa: PLR2004 - see lua/lib/waiting


async def check_concurrency(
    log: Log,
    limits: Limits,
    account: Account,
    jobs: int,
    models: Iterable[str],
    settled: Settled = never_settled,
    *,
    operation: Operation | None = None,
) -> None:
    """Refuse early what `admit` would refuse; it decides again.

    The jobs of an operation that was admitted before, and then not stored, are counted already.
    Raise TooManyPrompts, or SettlerBehind where it cannot be told.
    """
    scopes, most = scopes_of(account, models), limits.concurrency_of(account)
    if await _waiting(log, account, scopes) + jobs <= most:
        return
    if operation and await find_claim(log, account, operation.key):
        return
    await until_settled(log, settled)
    waiting = await _waiting(log, account, scopes)
    if waiting + jobs > most:
        raise _too_many(account, waiting, jobs, most)


async def admit(
    log: Log,
    limits: Limits,
    account: Account,
    request_id: str,
    jobs: int,
    *,
    models: Iterable[str] = (),
    operation: Operation | None = None,
    kudos: int = 0,
    hold: int = 0,
    tax: int = 0,
    kept: Kept = NOTHING,
    settled: Settled = never_settled,
) -> Admission:
    """Let the account submit one request; hold kudos for it, charge its tax, and claim its
    operation key for it.

    kudos  the estimate that its client is told, 10^-4 kudos like the next
    hold   what has to be there, and is held until the request is done; 0: nothing
    tax    what is charged now, whatever becomes of the request
    kept   what will be stored in the object store under its id

    Raise InvalidAPIKey where the account or its shared key went away, SharedKeyExpired;
    TooManyPrompts, KudosUpfront, SharedKeyEmpty and SharedKeyInsufficientKudos, or SettlerBehind
    where those cannot be told.
    """
    scopes, most = scopes_of(account, models), limits.concurrency_of(account)
    event = Admitted(
        user_id=account.id,
        request_id=request_id,
        jobs=jobs,
        scopes=scopes,
        operation_key=operation.key if operation else "",
        fingerprint=operation.fingerprint if operation else "",
        kudos=kudos,
        hold=hold,
        tax=tax,
        shared_key=account.key_id,
        images=kept.images,
        offloaded=kept.offloaded,
    )
    for attempt in range(2):
        try:
            deadline_ms, balance = await _run(log, limits, event, most)
        except Refusal as refusal:
            match refusal.word:
                case "NO_ACCOUNT" | "NO_KEY":
                    raise InvalidAPIKey from refusal
                case "KEY_EXPIRED":
                    raise SharedKeyExpired from refusal
                case "CLAIMED":
                    *claim, balance, objects = refusal.details
                    return _claimed(claim, priority_of(account, int(balance)), objects.decode())
            if attempt:
                raise _refused(account, refusal, jobs, most, hold) from refusal
        else:
            priority = priority_of(account, int(balance))
            return Admission(request_id, int(deadline_ms), priority, kept=kept)
        await until_settled(log, settled)
    raise AssertionError("the second attempt is the last")


def scopes_of(account: Account, models: Iterable[str]) -> tuple[str, ...]:
    """What is counted for a request: digests of its models where it is anonymous.

    None: all jobs of the account. Of more than MOST_SCOPES models the first ones count.
    """
    if not account.anonymous:
        return ()
    named = sorted(set(models))[:MOST_SCOPES]
    return tuple(hashlib.blake2b(each.encode(), digest_size=8).hexdigest() for each in named)


DOWNGRADED_PRIORITY = -50 * KUDOS
"""Of a request with an empty shared key, which runs as the anonymous account."""
_FLAGGED_PRIORITY = -100 * KUDOS
_FLAGGED_RICH = 10 * KUDOS


def priority_of(account: Account, balance: int) -> int:
    """Where a request of the account stands before it ages (text_path_reference.md 3.5).

    Both in 10^-4 kudos. The balance, less of it where the account is flagged.
    """
    if account.shared_key and account.anonymous:
        return DOWNGRADED_PRIORITY
    if not account.flagged:
        return balance
    if balance > _FLAGGED_RICH:
        return round(balance / KUDOS / 1000) * KUDOS
    return _FLAGGED_PRIORITY


async def _run(log: Log, limits: Limits, event: Admitted, most: int) -> list[bytes]:
    keys = log.keys
    partition = keys.of_account(event.user_id)
    named = [keys.claim(event.user_id, event.operation_key)] if event.operation_key else []
    if event.shared_key:
        named.append(keys.shared_key(event.shared_key))
    return await log.run(
        "admit",
        partition,
        {
            "account": keys.account(event.user_id),
            "clearing": keys.clearing(partition),
            "due_admission": keys.due(partition, "admission"),
            "named": named,
        },
        {
            "request_id": event.request_id,
            "user_id": event.user_id,
            "seconds": limits.admission_deadline,
            "jobs": event.jobs,
            "limit": most,
            "scopes": ",".join(event.scopes),
            "hold": event.hold,
            "tax": event.tax,
            "claims": int(bool(event.operation_key)),
            "shared_key": event.shared_key,
            "event": codec.encode(event),
        },
    )


def _claimed(told: Sequence[bytes], priority: int, objects: str) -> Admission:
    request_id, fingerprint, kudos, deadline_ms = told
    claim = Claim(request_id.decode(), fingerprint.decode(), int(kudos), int(deadline_ms))
    kept = None if objects == CLOSED else Kept.parse(objects)
    return Admission(claim.request_id, claim.deadline_ms, priority, claim, kept)


async def _waiting(log: Log, account: Account, scopes: Sequence[str]) -> int:
    """Jobs that wait: of the busiest scope, or of the whole account."""
    fields = [f"scope:{scope}" for scope in scopes] or ["waiting"]
    counts = await log.read("HMGET", log.keys.account(account.id), *fields)
    return max(int(count or 0) for count in counts)


async def until_settled(log: Log, settled: Settled) -> None:
    """Wait, a moment, until all that the logs hold now is settled; raise SettlerBehind."""
    heads = await asyncio.gather(*(log.head(partition) for partition in log.keys.all()))
    if not await settled(heads):
        raise SettlerBehind


def _refused(account: Account, refusal: Refusal, jobs: int, most: int, hold: int) -> Refused:
    left, needed = int(refusal.details[0]), hold / KUDOS
    match refusal.word:
        case "KEY_SHORT" if not hold:
            return SharedKeyEmpty()
        case "KEY_SHORT" if left <= 0:
            return SharedKeyEmpty(
                f"The request needs {needed:g} kudos upfront, and nothing is left to spend with "
                "this shared key."
            )
        case "KEY_SHORT":
            return SharedKeyInsufficientKudos(
                f"The request needs {needed:g} kudos upfront; {left / KUDOS:g} are left to spend "
                "with this shared key."
            )
        case "SHORT":
            return KudosUpfront(
                f"The request needs {needed:g} kudos upfront; this account has "
                f"{max(left, 0) / KUDOS:g} to spend."
            )
        case _:
            return _too_many(account, left, jobs, most)


def _too_many(account: Account, waiting: int, jobs: int, most: int) -> TooManyPrompts:
    asked = f"this request asks for {jobs} more" if jobs > 1 else "this request is one more"
    if account.anonymous:
        return TooManyPrompts(
            f"Too many anonymous jobs wait: {waiting}, and {asked}; at most {most} may. "
            "Register an account for a queue of your own, or try again later."
        )
    return TooManyPrompts(
        f"Too many jobs of this account wait: {waiting}, and {asked}; at most {most} may."
    )
