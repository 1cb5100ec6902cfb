"""What each event moves, in plain Python: the ledger as the log tells it (text_path_reference.md
7.5 to 7.7).

The applies in `lua/` do the same to the balances. The two are written apart, so that
`hordechat ledger check` can hold one against the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from events import types
from events.base import Event, Position

CLEARING = {
    "opened": "opened",
    "admin": "granted",
    "recurring": "granted",
    "tax": "tax",
    "refund": "tax",
    "generation": "generation",
    "cancelled": "generation",
    "uptime": "uptime",
    "transfer": "transfer",
    "promoted": "",
    "floor": "floor",
}
"""Cause of a movement → under which its other side stands in the partition's clearing hash; none
where both sides are the account's own. What is burnt stands under BURN, beside its charge."""

BURN = "burn"


class Movement(NamedTuple):
    """One line of the ledger: what an account got, or gave (less than 0). Amounts are 10^-4
    kudos."""

    user_id: int
    cause: str
    """A key of CLEARING."""
    amount: int
    """Of what it may spend."""
    escrow: int = 0
    """Of what waits until it is trusted."""
    burn: int = 0
    """What of a charge nobody gets; `amount` has it in it."""
    request_id: str = ""
    generation_id: str = ""
    worker_id: str = ""
    """Whose work an owner is paid for."""
    counterparty: int | None = None
    """The other account of a transfer, or the moderator of a grant; None: nobody, or the
    operator."""
    shared_key: str = ""
    reference: str = ""
    """Id of the transfer or grant."""


MOVING: frozenset[type[Event]] = frozenset(
    {
        *(types.AccountOpened, types.Granted, types.Admitted, types.Released, types.Charged),
        *(types.Rewarded, types.Promoted, types.Floored, types.Transferred, types.Received),
    }
)
"""Types of events that have movements."""


def movements(event: Event) -> list[Movement]:
    """The lines of an event, in its order; none where nothing moves."""
    match event:
        case types.AccountOpened():
            lines = [Movement(event.user_id, "opened", event.kudos)]
        case types.Granted():
            by = event.by if event.by >= 0 else None
            lines = [
                Movement(
                    event.user_id,
                    event.cause,
                    event.amount,
                    counterparty=by,
                    reference=event.grant_id,
                )
            ]
        case types.Admitted():
            lines = [
                Movement(
                    event.user_id,
                    "tax",
                    -event.tax,
                    request_id=event.request_id,
                    shared_key=event.shared_key,
                )
            ]
        case types.Released():
            lines = [
                Movement(
                    event.user_id,
                    "refund",
                    event.refunded,
                    request_id=event.request_id,
                    shared_key=event.shared_key,
                )
            ]
        case types.Charged():
            lines = _charged(event)
        case types.Rewarded():
            lines = _rewarded(event)
        case types.Promoted():
            lines = [Movement(event.user_id, "promoted", event.amount, -event.amount)]
        case types.Floored():
            lines = [Movement(event.user_id, "floor", event.amount)]
        case types.Transferred():
            lines = [
                Movement(
                    event.user_id,
                    "transfer",
                    -event.amount,
                    counterparty=event.recipient,
                    reference=event.transfer_id,
                )
            ]
        case types.Received():
            lines = [
                Movement(
                    event.user_id,
                    "transfer",
                    event.amount,
                    counterparty=event.sender,
                    shared_key=event.shared_key,
                    reference=event.transfer_id,
                )
            ]
        case _:
            return []
    return [line for line in lines if line.amount or line.escrow]


def _charged(event: types.Charged) -> list[Movement]:
    return [
        Movement(
            event.user_id,
            event.cause,
            -amount,
            burn=event.burn,
            request_id=request_id,
            generation_id=generation_id,
            shared_key=event.shared_key,
        )
        for request_id, generation_id, amount in zip(
            event.requests, event.generations, event.amounts, strict=True
        )
    ]


def _rewarded(event: types.Rewarded) -> list[Movement]:
    generations = event.generations or ("",) * len(event.workers)
    lines = []
    for worker_id, amount, escrow, generation_id in zip(
        event.workers, event.amounts, event.escrows, generations, strict=True
    ):
        waits = escrow if event.escrowed else 0  # all of it, or the owner was trusted
        lines.append(
            Movement(
                event.user_id,
                event.cause,
                amount - waits,
                waits,
                generation_id=generation_id,
                worker_id=worker_id,
            )
        )
    return lines


def other_side(line: Movement) -> Counter[str]:
    """What the line adds to its partition's clearing, by cause."""
    clearing: Counter[str] = Counter()
    if field := CLEARING[line.cause]:
        clearing[field] -= line.amount + line.escrow + line.burn
    if line.burn:
        clearing[BURN] += line.burn
    return clearing


class Balance(NamedTuple):
    """What an account has, 10^-4 kudos."""

    kudos: int
    escrow: int


class Sums(NamedTuple):
    """What the lines of an account's ledger come to."""

    lines: int
    amount: int
    escrow: int


class Stored(NamedTuple):
    """What reports have of one partition, as of one position of its log."""

    position: Position
    accounts: Mapping[int, Balance]
    lines: Mapping[int, Sums]
    clearing: Mapping[str, int]
    """The other sides of all lines, by cause."""
