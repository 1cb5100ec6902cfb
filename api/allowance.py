"""Who pays for a request, and whether it needs its kudos upfront (spec, Free output allowance)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from api.availability import Availability, Queue
from api.patience import PATIENCE
from api.status import impossible
from handlers import metrics
from handlers.accounts import ANONYMOUS_KEY, Account, Accounts
from handlers.admission import DOWNGRADED_PRIORITY, Operation, Settled, find_claim
from handlers.allowance import Terms, allowance, listed, upfront
from handlers.chat.estimate import queue_seconds
from handlers.chat.pricing import Tariff
from handlers.errors import (
    KudosUpfront,
    NoEligibleWorker,
    Refused,
    SharedKeyEmpty,
    SharedKeyInsufficientKudos,
    Unserved,
)
from handlers.limits import Limits
from handlers.log import Log
from handlers.store import Store
from handlers.submit import NewRequest, Receipt, repeated, submit
from projections import database
from projections.rules import Wanted
from projections.servers import Gap, Servers
from projections.standing import QueueSnapshot

logger = structlog.get_logger()

Lower = Callable[[int], NewRequest]
"""The request again, for at most so many tokens and for slow workers too."""


class Measured(NamedTuple):
    """What is free for one request now."""

    allowance: int  # tokens
    wait: float | None  # seconds; None: no worker could take it
    gap: Gap | None = None  # why none could, where that is the workers' declarations


class Admitted(NamedTuple):
    """A request that was taken, and how."""

    receipt: Receipt
    new: NewRequest
    """As it was taken, perhaps lowered."""


class Allowances:
    """Submits requests: free within their allowance, with kudos held above it."""

    def __init__(
        self,
        log: Log,
        limits: Limits,
        accounts: Accounts,
        tariff: Tariff,
        availability: Availability,
        queue: Queue,
        terms: Terms,
        settled: Settled,
        store: Store | None = None,
        *,
        measure_seconds: float = PATIENCE.measure,
    ) -> None:
        self._measure_seconds = measure_seconds
        self._log = log
        self._limits = limits
        self._store = store
        self._accounts = accounts
        self._tariff = tariff
        self._availability = availability
        self._queue = queue
        self._terms = terms
        self._settled = settled

    async def repeated(self, account: Account, operation: Operation) -> Receipt | None:
        """The request that the operation made before; raise as `handlers.submit.repeated`.

        With a shared key it may have been made as the anonymous account, while the key was empty.
        """
        earlier = await repeated(self._log, self._limits, account, operation)
        if earlier is None and account.shared_key is not None:
            return await repeated(self._log, self._limits, await self._anonymous(), operation)
        return earlier

    async def payer(self, account: Account, operation: Operation | None = None) -> Account:
        """Who a request runs as: the anonymous account, where it comes with an empty shared key.

        An operation that its owner is just submitting stays its owner's.
        """
        key = account.shared_key
        if key is None or key.kudos:
            return account
        if operation and await find_claim(self._log, account, operation.key):
            return account
        return (await self._anonymous())._replace(shared_key=key)

    async def measured(
        self, account: Account, new: NewRequest, request_id: str | None = None
    ) -> Measured | None:
        """What is free for it; None where that cannot be found out within a moment.

        `request_id`: its own, where it may be in the queue already: its output does not count.
        """
        wanted = _wanted(account, new)
        try:
            async with asyncio.timeout(self._measure_seconds):
                servers, queue = await asyncio.gather(
                    self._availability.servers(wanted), self._queue.snapshot()
                )
        except (Unserved, database.DatabaseUnavailable, TimeoutError):
            return None
        return self._measure(servers, queue, request_id)

    async def submit(
        self, account: Account, new: NewRequest, lower: Lower | None = None
    ) -> Admitted:
        """Admit and store a request; with `lower`, as little of it as is free where its payer lacks
        the kudos.

        Raise as `handlers.submit.submit`, with what is free in the message of what is refused for
        kudos; NoEligibleWorker in its place where nobody could serve it; DatabaseUnavailable,
        ReadModelBehind where either cannot be said.
        """
        if not upfront(new, self._terms.floor, self._terms):
            receipt = await self._submit(account, new)
            if not receipt.repeated:
                self._log.later(self._tell_free(account, new, receipt.request_id))
            return Admitted(receipt, new)
        measured = await self.measured(account, new)
        try:
            return await self._admit(account, new, measured)
        except (KudosUpfront, SharedKeyEmpty, SharedKeyInsufficientKudos) as refused:
            short = refused
        # That is a no by a read model of a moment ago: it has to be one by what it shows now, too.
        surely = self._measure(
            await self._availability.surely(_wanted(account, new)), await self._queue.now()
        )
        if not upfront(new, surely.allowance, self._terms):
            return await self._admit(account, new, surely)
        if lower is not None and not listed(new, self._terms):
            return await self._downgrade(account, new, lower, surely, short)
        self._record(account, new, surely, "refused")
        raise _refusal(new, short, surely, listed(new, self._terms)) from short

    async def _admit(
        self, account: Account, new: NewRequest, measured: Measured | None
    ) -> Admitted:
        """Submit it with what has to be held; what was not measured is held for."""
        free = self._terms.floor if measured is None else measured.allowance
        hold = 0
        if upfront(new, free, self._terms):
            if account.anonymous and account.shared_key is not None:
                raise SharedKeyEmpty
            hold = self._tariff.upfront(new.demand.models, new.max_length, new.jobs)
        new = new._replace(hold=hold)
        receipt = await self._submit(account, new)
        if not receipt.repeated:
            self._record(account, new, measured, "funded" if hold else "free")
        return Admitted(receipt, new)

    async def _downgrade(
        self, account: Account, new: NewRequest, lower: Lower, measured: Measured, short: Refused
    ) -> Admitted:
        lowered = lower(min(new.max_length, measured.allowance))
        if isinstance(short, SharedKeyInsufficientKudos | SharedKeyEmpty):
            lowered = lowered._replace(priority=DOWNGRADED_PRIORITY)
        receipt = await self._submit(account, lowered)
        self._record(account, new, measured, "downgraded")
        logger.info(
            "downgraded",
            request_id=receipt.request_id,
            max_length=new.max_length,
            slow_workers=new.demand.slow_workers,
            allowance=measured.allowance,
            wait=measured.wait,
        )
        return Admitted(receipt, lowered)

    async def _submit(self, account: Account, new: NewRequest) -> Receipt:
        """What needs nothing upfront runs as the anonymous account, where others emptied the shared
        key since it was looked up."""
        try:
            return await self._submit_as(account, new)
        except SharedKeyEmpty:
            if new.hold:
                raise
        anonymous = (await self._anonymous())._replace(shared_key=account.shared_key)
        return await self._submit_as(anonymous, new)

    async def _submit_as(self, account: Account, new: NewRequest) -> Receipt:
        return await submit(
            self._log, self._limits, self._tariff, account, new, self._settled, self._store
        )

    async def _anonymous(self) -> Account:
        return await self._accounts.find(ANONYMOUS_KEY)

    async def _tell_free(self, account: Account, new: NewRequest, request_id: str) -> None:
        """Record a request that is free under any load: nobody waits for its measure."""
        self._record(account, new, await self.measured(account, new, request_id), "free")

    def _measure(
        self, servers: Servers, queue: QueueSnapshot, request_id: str | None = None
    ) -> Measured:
        if not servers.workers:
            return Measured(self._terms.floor, None, servers.gap)
        ahead = queue.competing(servers.reaches, request_id)
        wait = queue_seconds(ahead.tokens, ahead.jobs, servers.threads, servers.tokens_per_second)
        return Measured(allowance(wait, self._terms), wait)

    def _record(
        self,
        account: Account,
        new: NewRequest,
        measured: Measured | None,
        outcome: metrics.Admittance,
    ) -> None:
        requester = metrics.requester(
            anonymous=account.anonymous, shared_key=account.shared_key is not None
        )
        metrics.free_allowance(
            outcome,
            requester,
            requested=new.max_length,
            allowance=self._terms.floor if measured is None else measured.allowance,
            chat=new.chat,
        )
        if measured is not None and measured.wait is not None:
            metrics.estimated_wait(measured.wait, requester, chat=new.chat)


def _wanted(account: Account, new: NewRequest) -> Wanted:
    return Wanted.of(new.demand, user_id=account.id, chat=new.chat, max_length=new.max_length)


def _refusal(new: NewRequest, short: Refused, measured: Measured, listed_: bool) -> Refused:
    """What is said in place of `short`."""
    if measured.wait is None:
        return _nobody(measured.gap)
    free = f"up to {measured.allowance} tokens of output need"
    if listed_:
        advice = (
            "A request that lists workers needs kudos upfront whatever its length; "
            f"without a list {free} none."
        )
    elif not new.demand.slow_workers:
        advice = (
            "A request that refuses slow workers needs kudos upfront whatever its length; "
            f"with slow workers {free} none."
        )
    else:
        advice = f"Right now {free} no kudos upfront."
    return type(short)(f"{short.message} {advice}")


def _nobody(gap: Gap | None) -> NoEligibleWorker:
    sentence = "No online worker can serve this request"
    if gap is None:
        return NoEligibleWorker(f"{sentence}.")
    causes = []
    if gap.missing:
        causes.append(f"no online worker serving the model declares {_joined(gap.missing)}")
    if gap.exceeded:
        limits = "limit" if len(gap.exceeded) == 1 else "limits"
        causes.append(
            f"the request exceeds the {_joined(gap.exceeded)} {limits} of every online worker "
            "serving the model"
        )
    return NoEligibleWorker(f"{sentence}: {'; '.join(causes)}.", impossible_reason=impossible(gap))


def _joined(words: tuple[str, ...]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
