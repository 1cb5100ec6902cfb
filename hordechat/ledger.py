"""The ledger as operators read it: lines of an account, and what a check of the books found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from events.base import KUDOS
from handlers.ledger import Report
from projections.accounts import Entry


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of an account's ledger. Amounts are kudos; fields that say nothing are left out."""

    time: str
    position: str
    cause: str
    amount: float
    balance: float
    """Behind it."""
    escrow: float = 0.0
    """What of it waits until the account is trusted; it is not in `amount`."""
    burn: float = 0.0
    request_id: str | None = None
    generation_id: str | None = None
    worker_id: str | None = None
    counterparty: int | None = None
    shared_key: str | None = None
    reference: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> Line:
        """Shape a stored one."""
        at = datetime.fromtimestamp(entry.position.ms / 1000, UTC)
        return cls(
            time=at.isoformat(timespec="milliseconds"),
            position=str(entry.position),
            cause=entry.cause,
            amount=entry.amount / KUDOS,
            balance=entry.balance / KUDOS,
            escrow=entry.escrow / KUDOS,
            burn=entry.burn / KUDOS,
            request_id=entry.request_id,
            generation_id=entry.generation_id,
            worker_id=entry.worker_id,
            counterparty=entry.counterparty,
            shared_key=entry.shared_key,
            reference=entry.reference,
        )

    @property
    def what_for(self) -> str:
        """What it was for, in words."""
        named = (
            (_with(self), self.counterparty),
            ("request", self.request_id),
            ("generation", self.generation_id),
            ("worker", self.worker_id),
            ("shared key", self.shared_key),
            ("as", self.reference),
        )
        return ", ".join(f"{word} {what}" for word, what in named if what is not None)


def _with(line: Line) -> str:
    if line.cause != "transfer":
        return "by account"
    return "from account" if line.amount > 0 else "to account"


def kudos(amount: float) -> str:
    """Kudos, to the last digit that amounts have."""
    return f"{amount:.4f}"


def table(lines: Sequence[Line]) -> Iterator[str]:
    """The lines, readable, under a heading."""
    rows = [("time", "cause", "amount", "escrow", "balance", "for")]
    rows += [
        (
            line.time,
            line.cause,
            kudos(line.amount),
            kudos(line.escrow) if line.escrow else "",
            kudos(line.balance),
            line.what_for,
        )
        for line in lines
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for at, cause, amount, escrow, balance, what_for in rows:
        cells = (
            at.ljust(widths[0]),
            cause.ljust(widths[1]),
            amount.rjust(widths[2]),
            escrow.rjust(widths[3]),
            balance.rjust(widths[4]),
            what_for,
        )
        yield "  ".join(cells).rstrip()


def told(report: Report) -> Iterator[str]:
    """What the books come to, and every difference. Amounts of differences are 10^-4 kudos, as
    they are stored."""
    for totals in report.totals:
        total = totals.balances + sum(totals.clearing.values())
        yield (
            f"partition {totals.partition}: {totals.accounts} accounts have "
            f"{kudos(totals.balances / KUDOS)}, with clearing {kudos(total / KUDOS)}"
        )
        for cause, amount in totals.clearing.items():
            yield f"  {cause:<12}{kudos(amount / KUDOS):>20}"
    yield from map(str, report.differences)
    found = len(report.differences)
    yield f"{found or 'no'} difference{'' if found == 1 else 's'}"
