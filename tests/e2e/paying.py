"""Accounts that pay in every way there is, and the judgement on what became of it: each generation
charged once and rewarded once, by the price that its event holds.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import psycopg

from events import types
from events.base import Event
from events.prices import Rate
from handlers.log import Log
from tests.e2e.harness import (
    MODEL,
    PATIENCE,
    SUBMIT,
    Book,
    Client,
    Taken,
    Up,
    Worker,
    eventually,
    pause,
)
from tests.e2e.wire import Http, NoAnswer

ABOVE = 1680
"""Tokens of a request that needs kudos upfront: for a model that nobody knows, 80."""
MOST_FAULTS = 10
"""Of one worker: with twice as many it would be put into maintenance."""
GIVEN = 1.5
"""Kudos of each transfer."""
_FAULTS, _CANCELS = 20, 4
"""One of so many jobs is given up, one of so many streams left."""


class Faulting(Worker):
    """A worker that gives some of its jobs up, and takes its time between posts and reply."""

    jobs = faults = 0

    async def post(self, job: Taken) -> None:
        """Post the reply word by word, and rest."""
        await super().post(job)
        await pause(0.05)

    async def submit(self, job: Taken) -> str:
        """Hand in the reply, or give the job up."""
        self.jobs += 1
        if self.jobs % _FAULTS != 3 or self.faults >= MOST_FAULTS:
            return await super().submit(job)
        self.faults += 1
        body = {"id": job.generation_id, "model_id": MODEL, "state": "faulted"}
        answer = await self._insist("fault", SUBMIT, body)
        if answer.status != 200 and answer.rc not in ("AbortedGen", "InvalidJobID", "DuplicateGen"):
            self._book.note("fault", answer)
        job.outcome = "given up"
        return job.outcome


class Cancelling(Client):
    """A client of streams that leaves some of them before their end."""

    async def run(self, enough: Callable[[], bool], *, stream: bool = True) -> None:
        """One request after the other."""
        count = 0
        while not enough():
            request_id = await self.submit(stream=stream)
            count += 1
            if count % _CANCELS == 1:
                await self._taken(self._book.accepted[request_id])
                await self.cancel(request_id)
            else:
                await self.follow(request_id)

    async def _taken(self, text: str) -> None:
        """Wait until a worker has it; not for long: the worker may not have heard of it."""
        for _ in range(100):
            if any(job.text == text for job in self._book.taken[-50:]):
                return
            await asyncio.sleep(0.01)


class Giver:
    """Gives kudos to another account again and again; each time until it is acknowledged."""

    def __init__(self, up: Up, key: str, recipient: str, book: Book) -> None:
        self._http = Http(up.url, key)
        self._recipient = recipient
        self._book = book
        self.given = 0

    async def run(self, enough: Callable[[], bool]) -> None:
        """One transfer after the other."""
        while not enough():
            await self._give({"idempotency-key": str(uuid.uuid4())})
            self.given += 1
            await asyncio.sleep(0.05)

    async def _give(self, headers: dict[str, str]) -> None:
        body = {"username": self._recipient, "amount": GIVEN}
        while True:
            try:
                answer = await self._http.call("POST", "/v2/kudos/transfer", body, headers=headers)
            except NoAnswer:
                self._book.unanswered["transfer"] += 1
            else:
                if answer.status == 200:
                    return
                if answer.status == 503 and answer.rc:
                    self._book.unanswered[f"transfer 503 {answer.rc}"] += 1
                else:
                    self._book.note("transfer", answer)
            await pause(0.2)


class Crowd:
    """Payers of each kind, the workers that serve them, and one who gives."""

    def __init__(self, clients: list[Client], workers: list[Worker], giver: Giver) -> None:
        self.clients = clients
        self.workers = workers
        self.giver = giver

    @classmethod
    async def of(
        cls, up: Up, owner: str, book: Book, name: str, *, workers: int, above: int = ABOVE
    ) -> Crowd:
        """Open the accounts: one that is rich, one at its floor, and a shared key of the former.

        above  tokens of a request that needs kudos upfront
        """
        (_, rich), (friend, _) = await up.accounts(f"rich {name}", f"friend {name}", kudos=10**6)
        (poor,) = await up.users(f"poor {name}")
        async with Http(up.url, rich) as http:
            made = await http.call("PUT", "/v2/sharedkeys", {"name": "for all", "kudos": 5000})
        assert made.status == 200, made
        shared = made.body["id"]
        paying: list[tuple[type[Client], str, dict[str, Any]]] = [
            (Client, rich, {}),
            (Client, rich, {"max_tokens": above}),
            (Cancelling, rich, {}),
            (Cancelling, shared, {}),
            (Cancelling, shared, {"max_tokens": above}),
            (Client, poor, {}),
            (Cancelling, poor, {}),
            (Cancelling, rich, {"max_tokens": above}),
        ]
        clients = [
            kind(up.url, key, book, f"{name} {n}", **asked)
            for n, (kind, key, asked) in enumerate(paying)
        ]
        serving = [Faulting(up.url, owner, book, f"{name} {n}", wait=2) for n in range(workers)]
        return cls(clients, [*serving], Giver(up, rich, f"friend {name}#{friend}", book))

    async def run(self, enough: Callable[[], bool]) -> None:
        """All of them, until it is enough and every request has ended."""
        serving = [asyncio.ensure_future(worker.run()) for worker in self.workers]
        streams = [isinstance(client, Cancelling) for client in self.clients]
        asking = [
            client.run(enough, stream=stream)
            for client, stream in zip(self.clients, streams, strict=True)
        ]
        try:
            await asyncio.gather(*asking, self.giver.run(enough))
        finally:
            for task in serving:
                task.cancel()
            ended = await asyncio.gather(*serving, return_exceptions=True)
        assert [each for each in ended if not isinstance(each, asyncio.CancelledError)] == []


# judgement


class Line(NamedTuple):
    """One line of the ledger, and what it is for."""

    what: str
    user_id: int
    for_: str
    amount: int  # of both, kudos and escrow; 10^-4 kudos
    burn: int = 0


def owed(events: Iterable[Event]) -> Iterator[Line]:
    """What the events of requests and transfers come to, line by line."""
    for event in events:
        match event:
            case types.SubmittedReply():
                yield Line("charge", event.user_id, event.generation_id, -event.charge, event.burn)
                yield Line("reward", event.owner_id, event.generation_id, event.price)
            case types.Cancelled():
                for generation_id, characters in zip(event.settled, event.characters, strict=True):
                    i = event.generations.index(generation_id)
                    price = Rate.parse(event.rates[i]).price(characters, event.max_length)
                    paid = -(price + event.burn)
                    yield Line("charge", event.user_id, generation_id, paid, event.burn)
                    yield Line("reward", event.owners[i], generation_id, price)
            case types.Admitted():
                yield Line("tax", event.user_id, event.request_id, -event.tax)
            case types.Abandoned():
                pass  # what comes back is counted where it is released
            case types.Released() if event.refunded:  # nothing of what a floor had lifted
                yield Line("refund", event.user_id, event.request_id, event.refunded)
            case types.Transferred():
                yield Line("transfer", event.user_id, event.transfer_id, -event.amount)
                yield Line("transfer", event.recipient, event.transfer_id, event.amount)
            case _:
                pass


_LINES = """
SELECT
    CASE WHEN generation_id IS NULL THEN cause WHEN worker_id IS NULL THEN 'charge'
        ELSE 'reward' END,
    user_id, coalesce(generation_id::text, reference, request_id::text), amount + escrow, burn
FROM ledger WHERE cause IN ('generation', 'cancelled', 'tax', 'refund', 'transfer')
"""


async def booked(database_url: str) -> list[Line]:
    """The same lines as Postgres has them."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        return [Line(*row) for row in await (await connection.execute(_LINES)).fetchall()]


async def await_paid(
    database_url: str, read: Callable[[], Any], seconds: float = PATIENCE
) -> list[Event]:
    """Wait until as many lines are booked as are owed; then each is there once, and no other one.

    read  reads every event of the log

    Return the events.
    """
    seen: list[tuple[list[Event], list[Line], list[Line]]] = []

    async def settled() -> bool:
        events = await read()
        seen[:] = [(events, list(owed(events)), await booked(database_url))]
        return len(seen[0][1]) == len(seen[0][2])

    try:
        await eventually(settled, seconds, "what is owed, in the ledger")
    finally:
        for _, due, found in seen:
            missing, odd = Counter(due) - Counter(found), Counter(found) - Counter(due)
            assert not missing, f"not booked: {list(missing.items())[:4]}"
            assert not odd, f"not owed: {list(odd.items())[:4]}"
    events, due, _ = seen[0]
    twice = [each for each, n in Counter((e.what, e.user_id, e.for_) for e in due).items() if n > 1]
    assert twice == []
    assert [each for each in due if not each.amount] == []
    return events


async def nothing_held(log: Log) -> bool:
    """Whether no account has a hold, or an admission, any more."""
    for partition in log.keys.all():
        prefix = log.keys.account(partition).removesuffix(str(partition))
        async for key in log.redis.scan(f"{prefix}*"):
            fields = await log.read("HGETALL", key)
            found = dict(zip(fields[::2], fields[1::2], strict=True))
            if int(found.get(b"held", 0)) or any(f.startswith(b"admission:") for f in found):
                return False
    return True
