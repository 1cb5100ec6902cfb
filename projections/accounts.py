"""Accounts and their ledger as reports and people's own pages have them.

Decisions where the specification is open:

* A request counts once for each of its generations that is settled, and so do the tokens that it
  asked for (text_path_reference.md 7.7); its tax counts as none.
* A cancelled generation that was paid for counts like a reply.
* The `usage_multiplier` that an account has now scales all that it ever used.
* What a floor lifts, and what waited for trust, are told as accumulated, so that the parts of
  `kudos_details` make up the balance. An opening balance is the operator's, as `admin`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import psycopg

from events.base import START, Event, Position, Recorded
from events.ledger import BURN, CLEARING, MOVING, Balance, Movement, Stored, Sums, movements
from events.roles import ROLES
from events.settlements import settlements
from events.types import (
    AccountChanged,
    AccountDeleted,
    AccountOpened,
    Cancelled,
    Promoted,
    Rewarded,
    SubmittedReply,
)
from projections.changes import Document, Row
from projections.database import Database
from projections.projection import Projected, Projection

NAME = "accounts"

_PARTS = ("accumulated", "gifted", "admin", "received", "recurring")
_COUNTED = ("kudos", "escrow", *_PARTS, "suspicious")
"""Columns of an account that events add to."""

_NOBODY: Row = {
    "name": "",
    **dict.fromkeys(ROLES, False),
    "concurrency": 0,
    "worker_invited": 0,
    "public_workers": False,
}
_UNSCALED = 1000
"""The `usage_multiplier` of an account that was never given one, 10^-3."""


# rows


class _Accounts:
    """What a batch does to accounts: rows of new ones, new values and additions of others."""

    def __init__(self) -> None:
        self.opened: dict[int, Row] = {}
        self.changed: dict[int, Row] = {}
        self.moved: dict[int, Row] = {}

    def open(self, event: AccountOpened, recorded: Recorded) -> None:
        roles = {*event.roles, *(role for role in ROLES[:3] if getattr(event, role))}
        self.opened[event.user_id] = {
            "user_id": event.user_id,
            "partition": recorded.partition,
            "kind": event.kind,
            "floor": event.floor,
            **_NOBODY,
            "name": event.name,
            **dict.fromkeys(roles, True),
            "trusted_ms": 0,
            "concurrency": event.concurrency,
            "monthly_kudos": 0,
            "usage_multiplier": _UNSCALED,
            **dict.fromkeys(_COUNTED, 0),
            "created_ms": recorded.position.ms,
            "deleted_ms": None,
            **_at(recorded.position),
        }

    def set(self, user_id: int, columns: Row, position: Position) -> None:
        """New values of some columns."""
        row = self.opened.get(user_id)
        if row is None:
            row = self.changed.setdefault(user_id, {"user_id": user_id})
            if "suspicious" in columns and user_id in self.moved:
                self.moved[user_id]["suspicious"] = 0  # counted anew from here
        row.update(columns, **_at(position))
        if user_id in self.moved:
            self.moved[user_id].update(_at(position))

    def add(self, user_id: int, added: dict[str, int], position: Position) -> None:
        """So much more (or less) in some counted columns."""
        row = self.opened.get(user_id)
        if row is None:
            row = self.moved.setdefault(user_id, {"user_id": user_id, **dict.fromkeys(_COUNTED, 0)})
        for column, number in added.items():
            row[column] += number
        row.update(_at(position))


FOLDS: frozenset[type[Event]] = MOVING | {
    AccountChanged,
    AccountDeleted,
    Promoted,
    SubmittedReply,
    Cancelled,
}


def fold(batch: Sequence[Recorded]) -> Document:
    """Events to changes of `accounts`, to lines of `ledger`, and to what is to be added to
    `account_records` and `worker_kudos`."""
    accounts = _Accounts()
    ledger: list[Row] = []
    records: defaultdict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    workers: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for recorded in batch:
        event, partition, position = recorded.event, recorded.partition, recorded.position
        match event:
            case AccountOpened():
                accounts.open(event, recorded)
            case AccountChanged():
                accounts.set(event.user_id, _changed(event, position.ms), position)
            case AccountDeleted():
                accounts.set(event.user_id, _NOBODY | {"deleted_ms": position.ms}, position)
            case Promoted():
                trusted = {"trusted": True, "trusted_ms": position.ms}
                accounts.set(event.user_id, trusted, position)
            case Rewarded(suspicious=int(fast)) if fast:
                accounts.add(event.user_id, {"suspicious": fast}, position)
            case SubmittedReply() | Cancelled():
                _count_work(_work(event), partition, records, workers)
            case _:
                pass
        for line, movement in enumerate(movements(event)):
            accounts.add(movement.user_id, _added(movement), position)
            ledger.append(_line(movement, partition, position, line))
            if isinstance(event, Rewarded):
                earned = "uptime" if movement.cause == "uptime" else "generated"
                worker = workers[movement.worker_id, partition]
                worker[earned] += movement.amount + movement.escrow
    tables: dict[str, list[Row]] = {
        "opened": list(accounts.opened.values()),
        "changed": list(accounts.changed.values()),
        "moved": list(accounts.moved.values()),
        "ledger": ledger,
        "records": [
            {"user_id": user_id, "partition": partition}
            | _all(done, "usage_tokens", "requests", "contribution_tokens", "fulfillments")
            for (user_id, partition), done in records.items()
        ],
        "workers": [
            {"worker_id": worker_id, "partition": partition}
            | _all(earned, "generated", "uptime", "contributions")
            for (worker_id, partition), earned in workers.items()
        ],
    }
    return {table: changes for table, changes in tables.items() if changes}


def _at(position: Position) -> Row:
    return {"position_ms": position.ms, "position_seq": position.seq}


def _all(counted: Counter[str], *columns: str) -> Row:
    return {column: counted[column] for column in columns}


def _changed(event: AccountChanged, ms: int) -> Row:
    columns: Row = {
        what: what in event.roles if what in ROLES else getattr(event, what)
        for what in event.changed
    }
    if columns.get("trusted"):
        columns["trusted_ms"] = ms
    return columns


def _added(movement: Movement) -> dict[str, int]:
    match movement.cause:
        case "opened" | "admin":
            part = "admin"
        case "recurring":
            part = "recurring"
        case "transfer":
            part = "received" if movement.amount > 0 else "gifted"
        case _:
            part = "accumulated"
    return {"kudos": movement.amount, "escrow": movement.escrow, part: movement.amount}


def _line(movement: Movement, partition: int, position: Position, line: int) -> Row:
    return {
        "partition": partition,
        **_at(position),
        "line": line,
        "user_id": movement.user_id,
        "cause": movement.cause,
        "amount": movement.amount,
        "escrow": movement.escrow,
        "burn": movement.burn,
        "request_id": movement.request_id or None,
        "generation_id": movement.generation_id or None,
        "worker_id": movement.worker_id or None,
        "counterparty": movement.counterparty,
        "shared_key": movement.shared_key or None,
        "reference": movement.reference or None,
    }


class _Work(NamedTuple):
    """A settled generation, as it counts for those who had to do with it."""

    payer: int
    owner: int
    worker_id: str
    tokens: int  # that its request asked for


def _work(event: SubmittedReply | Cancelled) -> Iterable[_Work]:
    if isinstance(event, SubmittedReply):
        yield _Work(event.user_id, event.owner_id, event.worker_id, event.max_length)
        return
    for job in settlements(event):
        yield _Work(event.user_id, job.owner_id, job.worker_id, event.max_length)


def _count_work(
    work: Iterable[_Work],
    partition: int,
    records: defaultdict[tuple[int, int], Counter[str]],
    workers: defaultdict[tuple[str, int], Counter[str]],
) -> None:
    for each in work:
        used = records[each.payer, partition]
        used["requests"] += 1
        used["usage_tokens"] += each.tokens
        did = records[each.owner, partition]
        did["fulfillments"] += 1
        did["contribution_tokens"] += each.tokens
        workers[each.worker_id, partition]["contributions"] += each.tokens


def _hints(position: str, _document: Document, _came_back: Sequence[str]) -> Projected:
    return Projected(position=position)


ACCOUNTS = Projection(
    name=NAME,
    tables=("accounts", "ledger", "account_records", "worker_kudos"),
    write="accounts_write",
    fold=fold,
    folds=FOLDS,
    hints=_hints,
    pause_s=0.2,
)


# queries

PAGE = 25
"""Accounts on one page of the list."""


class AccountRow(NamedTuple):
    """An account as it was last projected, and what it did in all partitions. Amounts are 10^-4
    kudos, times milliseconds of the Redis clock."""

    roles: frozenset[str]
    """Those that it has of events/roles.py."""
    usage_tokens: int
    """Scaled by its multiplier."""
    user_id: int
    name: str
    """Empty once it is deleted."""
    kind: str  # registered, pseudonymous, anonymous
    trusted_ms: int
    concurrency: int
    """0: as the settings say; -1: none."""
    worker_invited: int
    public_workers: bool
    monthly_kudos: int
    usage_multiplier: int  # 10^-3
    suspicious: int
    kudos: int
    escrow: int
    """What waits until it is trusted."""
    accumulated: int
    gifted: int
    """Less than 0."""
    admin: int
    received: int
    recurring: int
    created_ms: int
    deleted_ms: int | None
    requests: int
    contribution_tokens: int
    fulfillments: int
    workers: int
    """How many it has, online or not."""


_ACCOUNTS = b"""
SELECT a.trusted, a.moderator, a.flagged, a.service, a.education, a.patron, a.special, a.vpn,
    a.customizer, r.usage_tokens,
    a.user_id, a.name, a.kind, a.trusted_ms, a.concurrency, a.worker_invited, a.public_workers,
    a.monthly_kudos, a.usage_multiplier, a.suspicious, a.kudos, a.escrow, a.accumulated, a.gifted,
    a.admin, a.received, a.recurring, a.created_ms, a.deleted_ms, r.requests,
    r.contribution_tokens, r.fulfillments,
    (SELECT count(*) FROM workers w WHERE w.user_id = a.user_id)
FROM listed a CROSS JOIN LATERAL (
    SELECT coalesce(sum(usage_tokens), 0)::bigint AS usage_tokens,
        coalesce(sum(requests), 0)::bigint AS requests,
        coalesce(sum(contribution_tokens), 0)::bigint AS contribution_tokens,
        coalesce(sum(fulfillments), 0)::bigint AS fulfillments
    FROM account_records WHERE user_id = a.user_id
) r
"""
_ONE = b"WITH listed AS (SELECT * FROM accounts WHERE user_id = %s)" + _ACCOUNTS

Order = Literal["kudos", "age"]

_RICHEST = b"ORDER BY a.kudos DESC, a.user_id"
_OLDEST = b"ORDER BY a.created_ms, a.user_id"
_LISTED = b"SELECT * FROM accounts a WHERE deleted_ms IS NULL "
_PAGE = b"WITH listed AS (%b%b LIMIT %%s OFFSET %%s) %b%b"
_PAGES: dict[Order, bytes] = {
    "kudos": _PAGE % (_LISTED, _RICHEST, _ACCOUNTS, _RICHEST),
    "age": _PAGE % (_LISTED, _OLDEST, _ACCOUNTS, _OLDEST),
}
_WORKERS = b"SELECT id::text FROM workers WHERE user_id = %s ORDER BY created_ms, id"
_REQUESTS = b"""
SELECT id::text FROM waiting_prompts WHERE user_id = %s AND user_id <> 0 ORDER BY created_ms, id
"""


async def account(database: Database, user_id: int) -> AccountRow | None:
    """One account, deleted or not. Raise DatabaseUnavailable."""
    return next(iter(_rows(await database.fetch(_ONE, (user_id,)))), None)


async def page(database: Database, number: int, order: Order) -> list[AccountRow]:
    """The accounts on one page, from 1, those with most kudos or the oldest first; none that is
    deleted. Raise DatabaseUnavailable."""
    return _rows(await database.fetch(_PAGES[order], (PAGE, PAGE * (number - 1))))


def _rows(found: list[tuple[Any, ...]]) -> list[AccountRow]:
    return [_row(row[: len(ROLES)], *row[len(ROLES) :]) for row in found]


def _row(held: Sequence[bool], usage_tokens: int, *columns: Any) -> AccountRow:
    row = AccountRow(
        frozenset(role for role, has in zip(ROLES, held, strict=True) if has),
        usage_tokens,
        *columns,
    )
    return row._replace(usage_tokens=usage_tokens * row.usage_multiplier // _UNSCALED)


async def worker_ids(database: Database, user_id: int) -> list[str]:
    """An account's workers, the oldest first. Raise DatabaseUnavailable."""
    return [id_ for (id_,) in await database.fetch(_WORKERS, (user_id,))]


async def request_ids(database: Database, user_id: int) -> list[str]:
    """The requests of an account that did not expire yet, the oldest first; never those of the
    anonymous one. Raise DatabaseUnavailable."""
    return [id_ for (id_,) in await database.fetch(_REQUESTS, (user_id,))]


class Entry(NamedTuple):
    """A line of an account's ledger. Amounts are 10^-4 kudos."""

    position: Position
    cause: str  # events.ledger
    amount: int
    escrow: int
    burn: int
    balance: int
    """What the account had to spend behind it."""
    request_id: str | None
    generation_id: str | None
    worker_id: str | None
    counterparty: int | None
    shared_key: str | None
    reference: str | None


_HISTORY = b"""
SELECT l.position_ms, l.position_seq, l.cause, l.amount, l.escrow, l.burn,
    (a.kudos - coalesce(sum(l.amount) OVER (
        ORDER BY l.position_ms DESC, l.position_seq DESC, l.line DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0))::bigint,
    l.request_id::text, l.generation_id::text, l.worker_id::text, l.counterparty,
    l.shared_key::text, l.reference
FROM accounts a JOIN (
    SELECT * FROM ledger WHERE user_id = %(user_id)s
    ORDER BY position_ms DESC, position_seq DESC, line DESC LIMIT %(limit)s
) l USING (user_id)
ORDER BY l.position_ms DESC, l.position_seq DESC, l.line DESC
"""


async def history(database: Database, user_id: int, limit: int) -> list[Entry]:
    """The newest lines of an account's ledger, the newest first. Raise DatabaseUnavailable."""
    rows = await database.fetch(_HISTORY, {"user_id": user_id, "limit": limit})
    return [Entry(Position(ms, seq), *others) for ms, seq, *others in rows]


_CHECKPOINT = """
SELECT position_ms, position_seq FROM checkpoints WHERE name = 'accounts' AND partition = %s
"""
_BALANCES = "SELECT user_id, kudos, escrow FROM accounts WHERE partition = %s"
_SUMS = """
SELECT user_id, count(*), sum(amount)::bigint, sum(escrow)::bigint
FROM ledger WHERE partition = %s GROUP BY user_id
"""
_CAUSES = """
SELECT cause, -sum(amount + escrow + burn)::bigint, sum(burn)::bigint
FROM ledger WHERE partition = %s GROUP BY cause
"""


async def stored(database_url: str, partition: int) -> Stored:
    """All that is kept of a partition, of one moment. Raise psycopg.OperationalError.

    For operators: it reads every line of the partition's ledger.
    """
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        # Before the moment is chosen: tables that were switched to behind it would seem empty.
        await connection.execute("LOCK TABLE checkpoints, accounts, ledger IN ACCESS SHARE MODE")
        rows = [
            await (await connection.execute(query, (partition,))).fetchall()
            for query in (_CHECKPOINT, _BALANCES, _SUMS, _CAUSES)
        ]
    checkpoints, balances, sums, causes = rows
    clearing: Counter[str] = Counter()
    for cause, amount, burn in causes:
        if field := CLEARING.get(cause, cause):
            clearing[field] += amount
        clearing[BURN] += burn
    return Stored(
        Position(*checkpoints[0]) if checkpoints else START,
        {user_id: Balance(*balance) for user_id, *balance in balances},
        {user_id: Sums(*each) for user_id, *each in sums},
        clearing,
    )
