"""Random legal and illegal commands against the real scripts, drawn from one seeded source."""

from __future__ import annotations

import random

from events.base import KUDOS
from handlers import errors, shared_keys, workers
from handlers.accounts import ANONYMOUS_KEY, Account
from handlers.admission import Operation, admit, never_settled
from handlers.grants import grant
from handlers.modes import set_modes
from handlers.pop import Assignment, give_back
from handlers.transfers import Target, transfer
from tests.handlers.pool import MODEL, Pool, operation_of, request_of

WORKERS = ("a", "b", "c", "d")
MODELS = ((MODEL,), (MODEL, "b"), ("b",), ())
NOBODY = "00000000-0000-4000-8000-000000000000"
REFUSALS = (errors.ChatSubmitInvalid, errors.ChatSubmitNonconformant, errors.ChatModelMismatch)
CLOCK_STEPS = (0.2, 5, 40, 155, 700, 1250)


async def idle() -> bool:
    """A worker that holds no job, as far as the read model knows."""
    return False


class Driver:
    """Issues one command at a time; remembers ids, dead ones included."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool = pool
        self.random = random.Random(seed)
        self.requests: list[str] = []
        self.jobs: list[Assignment] = []
        self.posted: dict[str, int] = {}
        self.replied: dict[str, int] = {}
        self.keys: list[str] = []
        """Shared keys."""
        self._moves = (
            (self.submit, 20),
            (self.admit, 1),
            (self.set_modes, 0.4),
            (self.assign, 26),
            (self.reply, 16),
            (self.post, 14),
            (self.fault, 6),
            (self.refuse, 3),
            (self.cancel, 4),
            (self.give_back, 5),
            (self.check_in, 4),
            (self.change_worker, 1),
            (self.rename_worker, 0.7),
            (self.delete_worker, 0.3),
            (self.share, 0.5),
            (self.transfer, 1),
            (self.grant, 0.5),
            (self.pass_time, 3),
            (self.sweep, 3),
            (self.settle, 2),
        )

    async def run(self, commands: int) -> None:
        """Issue that many commands; refusals are part of the game."""
        moves, weights = zip(*self._moves, strict=True)
        for _ in range(commands):
            move = self.random.choices(moves, weights)[0]
            try:
                await move()
            except errors.Refused:
                continue

    def _some(self, of: list[str]) -> str:
        # Recent ones mostly, so that lives go on; old and dead ones now and then.
        return of[-1 - min(int(self.random.expovariate(0.25)), len(of) - 1)]

    def _job(self) -> Assignment:
        return self.jobs[-1 - min(int(self.random.expovariate(0.25)), len(self.jobs) - 1)]

    async def _account(self) -> Account:
        anonymous = await self.pool.accounts.find(ANONYMOUS_KEY)
        account = self.random.choice((self.pool.client, self.pool.client, anonymous))
        if self.keys and account is self.pool.client and self.random.random() < 0.3:
            return await self.pool.accounts.payer(self.random.choice(self.keys))
        return account

    def _operation(self) -> Operation | None:
        """Often none; else one of a few keys, nearly always for the same request."""
        if self.random.random() < 0.6:
            return None
        key = f"{self.random.randrange(12):08x}-0000-4000-8000-000000000000"
        return operation_of(key, "b" * 64 if self.random.random() < 0.1 else "a" * 64)

    async def submit(self) -> None:
        operation = self._operation()
        new = request_of(  # of one key and fingerprint there are no requests of other sizes
            jobs=1 if operation else self.random.choice((1, 1, 1, 2, 3)),
            stream=self.random.random() < 0.5,
            models=self.random.choice(MODELS),
            hold=0 if operation else self.random.choice((0, 0, 2 * KUDOS, 15 * KUDOS)),
            images=self.random.choice((0, 0, 1, 2)) if self.pool.store else 0,
        )
        receipt = await self.pool.submitted(
            new,
            account=await self._account(),
            operation=operation,
            settled=never_settled,
        )
        self.requests.append(receipt.request_id)

    async def admit(self) -> None:
        """A submission that goes no further."""
        log, request_id = self.pool.log, self.pool.log.keys.new_request_id()
        account, operation = await self._account(), self._operation()
        models = self.random.choice(MODELS)
        await admit(
            log, self.pool.limits, account, request_id, 1, models=models, operation=operation,
            hold=2 * KUDOS, tax=KUDOS,
        )  # fmt: skip

    async def set_modes(self) -> None:
        on = self.random.random() < 0.4
        await set_modes(self.pool.log, self.pool.limits, maintenance=on)

    async def assign(self) -> None:
        if not self.requests:
            return
        name = self.random.choice(WORKERS)
        job = await self.pool.assign(self._some(self.requests), name, ("url",))
        if job is not None:
            self.jobs.append(job)

    async def reply(self) -> None:
        if self.jobs:
            generation_id = self._job().generation_id
            await self.pool.reply(generation_id)
            self.replied[generation_id] = self.replied.get(generation_id, 0) + 1

    async def post(self) -> None:
        if self.jobs:
            generation_id = self._job().generation_id
            seq = self.posted.get(generation_id, 0) + self.random.choice((1, 1, 1, 0, 2))
            accepted = await self.pool.post(generation_id, seq, f"word {seq} ")
            self.posted[generation_id] = accepted.seq

    async def fault(self) -> None:
        if self.jobs:
            reason = self.random.choice(("", "generation_error", "reply_refused"))
            await self.pool.fault(self._job().generation_id, reason)

    async def refuse(self) -> None:
        if self.jobs:
            await self.pool.refuse(self._job().generation_id, self.random.choice(REFUSALS))

    async def cancel(self) -> None:
        if self.requests:
            await self.pool.cancel(self._some(self.requests))

    async def give_back(self) -> None:
        if self.jobs:
            job = self._job()
            spent = self.pool.log.keys.new_id_beside(job.request_id)
            await give_back(
                self.pool.log,
                job.request_id,
                spent if self.random.random() < 0.2 else job.generation_id,
            )

    async def check_in(self) -> None:
        await self.pool.worker(self.random.choice(WORKERS))

    async def change_worker(self) -> None:
        worker = await self._worker()
        change = workers.Change(
            maintenance=self.random.choice((None, True, False)),
            maintenance_msg=self.random.choice(("", "Back soon")),
            paused=self.random.choice((None, True, False)),
            info=self.random.choice((None, "", "In the attic")),
        )
        account = self.pool.owner._replace(moderator=self.random.random() < 0.8)
        await workers.change_worker(self.pool.log, account, worker, change)

    async def rename_worker(self) -> None:
        name = self.random.choice((*WORKERS, "another", "a third"))
        await workers.claim_name(self.pool.log, self.pool.owner, await self._worker(), name)

    async def delete_worker(self) -> None:
        await workers.delete_worker(self.pool.log, self.pool.owner, await self._worker(), idle)

    async def _worker(self) -> workers.Known:
        """One that was seen, and may be gone by now."""
        seen = list(self.pool.names.values())
        return await workers.find(self.pool.log, self.random.choice(seen).id if seen else NOBODY)

    async def share(self) -> None:
        """The client shares a key, changes one or takes it back."""
        log, client = self.pool.log, self.pool.client
        terms = shared_keys.Terms(kudos=self.random.choice((-1, 0, 3, 20)))
        if len(self.keys) < 3:
            self.keys.append(await shared_keys.open_shared_key(log, client, terms))
            return
        known = await shared_keys.find(log, self.random.choice(self.keys))
        if self.random.random() < 0.5:
            await shared_keys.change_shared_key(log, client, known, terms)
        else:
            await shared_keys.delete_shared_key(log, client, known)
            self.keys.remove(known.id)

    async def transfer(self) -> None:
        """The client gives to the owner, or the owner to it or to a key of its."""
        pool, giver = self.pool, self.random.choice((self.pool.client, self.pool.owner))
        target = Target(pool.client.id if giver is pool.owner else pool.owner.id)
        if self.keys and giver is pool.owner and self.random.random() < 0.5:
            target = Target(None, self.random.choice(self.keys))
        amount = self.random.choice((1, 3 * KUDOS, 50 * KUDOS))
        await transfer(pool.log, pool.limits, giver, target, amount)

    async def grant(self) -> None:
        account = self.random.choice((self.pool.client, self.pool.owner))
        amount = self.random.choice((10 * KUDOS, -40 * KUDOS))
        grant_id = f"{self.random.randrange(1000)}"
        await grant(self.pool.log, account.id, amount, grant_id=grant_id)

    async def pass_time(self) -> None:
        await self.pool.pass_time(self.random.choice(CLOCK_STEPS))

    async def sweep(self) -> None:
        await self.pool.sweep()

    async def settle(self) -> None:
        await self.pool.settle()
