"""Random commands against the real scripts, each foretold by the model and looked at afterwards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import msgspec

from events.base import KUDOS, Position
from handlers import errors, pop, reply, workers
from handlers.accounts import ANONYMOUS_KEY, FLOORS, Account, Accounts, open_account
from handlers.admission import Settled, admit, never_settled, scopes_of
from handlers.decoy import Decoys
from handlers.limits import Limits
from handlers.modes import set_modes
from handlers.newcomers import Newcomers
from handlers.objects import NOTHING, Kept
from handlers.replay import read_log
from handlers.settle import Settler
from tests.handlers import bank
from tests.handlers.bank import TAX, Bank, Priced
from tests.handlers.driver import CLOCK_STEPS, MODELS, NOBODY, REFUSALS, WORKERS, idle
from tests.handlers.model import Admission, Claim, Job, Model, Outcome, Request
from tests.handlers.pool import (
    DECLARATION,
    MODEL,
    REPLY,
    SECRET,
    TARIFF,
    Pool,
    attached_of,
    operation_of,
    receiving,
    request_of,
)
from tests.handlers.spender import Spender
from tests.handlers.stores import Deletes, Troubled
from tests.handlers.watch import Watch

LIMITS = Limits(
    concurrency=10, anonymous_concurrency=5, trusted_workers=6, trust_threshold=15 * KUDOS
)
"""Low enough to be met."""
NEWCOMERS = ("b", "f")
"""What workers of the owner are called who is not trusted yet."""
LENGTH = 512
UNSETTLED = (
    errors.TooManyPrompts,
    errors.KudosUpfront,
    errors.SharedKeyEmpty,
    errors.SharedKeyInsufficientKudos,
)
"""What is said only where all is settled."""
NAMES = (*WORKERS, "e", "f", "g", "h", "another", "a third")
CLEAR_MS = 5000
"""Nothing is due within so long of a command: which side of a deadline it falls on is no question
of how quick the machine is."""
NO_CHECK_IN = (errors.SettlerBehind, errors.WrongCredentials, errors.RedisUnavailable)

MOST_LATE_MS = 5000
"""How long an upload is under way, when nobody believes in it any more."""
TROUBLES = ("before", "midway", "after", "late")
TRANSPORTS = ((), ("url",), ("base64",), ("messages_url", "url"), ("base64", "messages_url"))

Answer = TypeVar("Answer")


def shared_key_of(account: Account) -> str:
    """With which it is called; empty for its own key."""
    return account.shared_key.id if account.shared_key else ""


class Player:
    """Issues one command at a time."""

    def __init__(
        self,
        pool: Pool,
        store: Troubled,
        seed: int,
        accounts: tuple[Account, ...],
        newcomer: str,
        url: str,
    ) -> None:
        """`accounts`: the client, the owner who is not trusted yet and its API key, `newcomer`, and
        the anonymous one."""
        keys = pool.log.keys
        self.pool = pool
        self.store = pool.store = store
        self.random = random.Random(seed)
        self.accounts = accounts
        self.trusted = pool.owner
        self._newcomer = newcomer
        made = Bank(pool.limits, partitions=keys.partitions)
        made.open(accounts[0].id, bank.Account(1_000_000, FLOORS["registered"]))
        made.open(accounts[1].id, bank.Account(0, FLOORS["registered"]))
        made.open(accounts[2].id, bank.Account(0, FLOORS["anonymous"]))
        made.open(pool.owner.id, bank.Account(0, FLOORS["registered"], trusted=True))
        self.model = Model(
            pool.limits, made, accounts[-1].id, keys.of, keys.of_account, keys.partitions
        )
        self.model.admissions = {account: {} for account in made.accounts}
        self.spender = Spender(self)
        self.watch = Watch(url, self.model)
        self.decoys = Decoys(pool.log, pool.limits)
        self.names: dict[str, str] = {}
        """Of workers, by id; some are not called so any more."""
        pool.workers = pop.Workers(pool.log, pool.limits, Newcomers(pool.limits, self._names_of))
        self._objects: set[str] = set()
        """In the store."""
        self.requests: list[str] = []
        self.jobs: list[tuple[str, str]] = []  # of which request
        self._replies = 0
        self._settlers: dict[int, tuple[Settler, Position]] = {}
        self.met: Counter[str] = Counter()
        """What happened, and how often: refusals by their names, and ends of requests and jobs."""
        self.moves = (
            (self.submit, 11),
            (self.admit, 1),
            (self.set_modes, 0.4),
            (self.assign, 28),
            (self.reply, 8),
            (self.post, 22),
            (self.fault, 9),
            (self.refuse, 4),
            (self.cancel, 4),
            (self.give_back, 5),
            (self.lose_content, 0.3),
            (self.check_in, 4),
            (self.stay, 0.1),
            (self.change_worker, 2),
            (self.rename_worker, 0.7),
            (self.delete_worker, 0.5),
            (self.land, 1),
            (self.pass_time, 3),
            (self.sweep, 3),
            (self.settle, 2),
            (self.pass_week, 0.1),
            *self.spender.moves,
        )

    @classmethod
    async def at(cls, pool: Pool, store: Troubled, seed: int, url: str) -> Player:
        """In an empty deployment."""
        pool.limits = LIMITS
        _, key = await open_account(pool.log, SECRET, "newcomer")
        anonymous = await pool.accounts.find(ANONYMOUS_KEY)
        accounts = (pool.client, await pool.accounts.find(key), anonymous)
        made = cls(pool, store, seed, accounts, key, url)
        await made.watch.check()
        await made._pause(WORKERS[-1])
        return made

    async def play(self, commands: int) -> None:
        """Issue that many commands."""
        moves, weights = zip(*self.moves, strict=True)
        for _ in range(commands):
            await self._step_clear()
            await self.random.choices(moves, weights)[0]()
            await self._check()

    async def end(self) -> None:
        """Let time pass until nothing is left."""
        for move in (self.settle, self.pass_long, self.sweep) * 3:
            await self._step_clear()
            await move()
            await self._check()
        await self._sweep("all")  # those before may have met a store that deletes less
        await self.settle()
        await self._check()

    async def _check(self) -> None:
        """Whether all that is stored is as the model says, and each object is accounted for."""
        await self.watch.check()
        if self.store.changed:
            self._objects, self.store.changed = set(await self.store.keys()), False
        assert self.model.needed() <= self._objects, "a request misses an object"
        assert self._objects <= self.model.named(), "nothing names an object"

    async def _step_clear(self) -> None:
        """Move past what would be due while the next command runs."""
        while near := [
            due - self.model.now
            for due in self.model.deadlines()
            if -50 <= due - self.model.now <= CLEAR_MS
        ]:
            await self._pass(max(near) + 100)

    async def _pass(self, ms: int) -> None:
        if ms > MOST_LATE_MS:
            await self.land()
        await self.pool.pass_time(ms / 1000)
        self.watch.shift += ms
        self.model.now += ms

    async def foretold(
        self, outcome: Outcome, command: Awaitable[Answer]
    ) -> Answer | errors.Refused:
        """Run the command; it is refused as foretold, or answered."""
        (told,) = await asyncio.gather(command, return_exceptions=True)
        refused = isinstance(told, errors.Refused)
        if isinstance(told, BaseException) and not refused:
            raise told
        assert (type(told) if refused else None) is outcome, (outcome, told)
        if outcome is not None:
            self.met[outcome.__name__] += 1
        return told

    # choosing

    def _some(self, of: list[Any]) -> Any:
        # Recent ones mostly, so that lives go on; old and dead ones now and then.
        return of[-1 - min(int(self.random.expovariate(0.4)), len(of) - 1)]

    def _waiting(self) -> str:
        """A request, most often one of which something waits."""
        open_ = [each.id for each in self.model.requests.values() if each.waiting]
        if open_ and self.random.random() < 0.7:
            return self.random.choice(open_[-6:])
        return str(self._some(self.requests))

    def _job(self) -> tuple[str, str]:
        """A request and a job of it, most often one that a worker has now."""
        held = [each for each in self.model.jobs.values() if each.state == "pending"]
        if held and self.random.random() < 0.7:
            job = self.random.choice(held[-6:])
            return job.request, job.id
        found: tuple[str, str] = self._some(self.jobs)
        return found

    def _operation(self) -> tuple[str, str]:
        """Often none; else one of a few keys, nearly always for the same request."""
        if self.random.random() < 0.6:
            return "", ""
        key = f"{self.random.randrange(12):08x}-0000-4000-8000-000000000000"
        return key, "b" * 64 if self.random.random() < 0.1 else "a" * 64

    # the client

    async def submit(self) -> None:
        account, (key, print_) = await self._payer(), self._operation()
        wanted = self._kept(key)
        new = request_of(  # of one key and fingerprint there are no requests of other sizes
            jobs=1 if key else self.random.choice((1, 1, 1, 2, 3)),
            stream=self.random.random() < 0.5,
            models=self.random.choice(MODELS),
            hold=0 if key else self._hold(),
            prompt_characters=80 if key else self.random.choice((80, 1500, 9000)),
            images=wanted.images,
            offload=wanted.offloaded,
        )._replace(chat=self.random.random() < 0.7)
        quick = self.random.random() < 0.5
        operation = operation_of(key, print_) if key else None
        fingerprint = operation.fingerprint if operation else ""
        self.store.trouble = self.random.choice(TROUBLES) if self.random.random() < 0.2 else ""
        outcome, claim = self._admission(
            account, new.jobs, new.demand.models, key, fingerprint, new.hold, wanted, quick=quick
        )
        receipt = await self.foretold(
            outcome,
            self.pool.submitted(
                new,
                account=account,
                operation=operation,
                settled=self.settled(quick=quick),
            ),
        )
        self.store.trouble = ""
        if isinstance(receipt, errors.ChatImageStorageUnavailable) and claim is None:
            request_id = await self._newly_admitted(account)
            await self._admitted(
                account, request_id, new.jobs, new.demand.models, key, fingerprint, new.hold, wanted
            )
            self.model.forgone(account.id, request_id)
        if isinstance(receipt, errors.Refused):
            return
        assert receipt.repeated == (claim is not None)
        assert claim is None or receipt.request_id == claim.request
        if receipt.request_id in self.model.requests:
            return
        if claim is not None:
            deadline = claim.deadline
        else:
            deadline = await self._admitted(
                account, receipt.request_id, new.jobs, new.demand.models, key, fingerprint,
                new.hold, wanted,
            )  # fmt: skip
        expires = receipt.position.ms + LIMITS.request_ttl * 1000
        self.model.stored(
            Request(
                receipt.request_id,
                account.id,
                new.jobs,
                new.stream,
                key,
                deadline,
                expires,
                waiting=new.jobs,
                shared_key=shared_key_of(account),
                prompt=new.demand.prompt_characters,
                kept=self.model.admissions[account.id][receipt.request_id].kept,
            )
        )
        self.requests.append(receipt.request_id)

    async def _payer(self) -> Account:
        """Whose kudos a request costs: an account, or a shared key of one."""
        account = self.random.choice((*self.accounts, self.pool.client))
        if account is self.pool.client and self.random.random() < 0.5:
            return await self.spender.with_key() or account
        return account

    def _kept(self, key: str) -> Kept:
        """What a request wants to keep in the store: of one key nearly always as many images."""
        images = self.random.choice((0, 0, 0, 1, 2, 3))
        if key and self.random.random() < 0.9:
            images = int(key[:8], 16) % 3
        return Kept(images, self.random.random() < 0.3)

    async def _newly_admitted(self, account: Account) -> str:
        """The request that the account was admitted to and nobody was told of."""
        fields = (await self.watch.look()).fields("account", str(account.id))
        open_ = {name.removeprefix("admission:") for name in fields if "admission:" in name}
        (request_id,) = open_ - self.model.admissions[account.id].keys()
        return request_id

    def _hold(self) -> int:
        return self.random.choice((0, 0, 0, 2, 7, 30)) * KUDOS

    def _admission(
        self,
        account: Account,
        jobs: int,
        models: Sequence[str],
        key: str,
        fingerprint: str,
        hold: int,
        wanted: Kept,
        *,
        quick: bool,
    ) -> tuple[Outcome, Claim | None]:
        """What a submission will be told, and the claim that it meets."""

        def told() -> Claim | Outcome:
            return self.model.admit(
                account.id,
                jobs,
                scopes_of(account, models),
                key,
                hold=hold,
                shared_key=shared_key_of(account),
            )

        answer = told()
        if answer in UNSETTLED:
            if not quick:
                return errors.SettlerBehind, None
            self.model.settle()
            answer = told()
        fails = self.store.trouble != ""
        if isinstance(answer, Claim):
            repeated = self.model.repeat(account.id, key, fingerprint, wanted, fails=fails)
            return repeated, answer
        if answer is None and fails and wanted != NOTHING:
            return errors.ChatImageStorageUnavailable, None
        return answer, None

    async def _admitted(
        self,
        account: Account,
        request_id: str,
        jobs: int,
        models: Sequence[str],
        key: str,
        fingerprint: str,
        hold: int,
        kept: Kept,
    ) -> int:
        """Until when it may come."""
        deadline = await self._deadline(account, request_id)
        scopes = scopes_of(account, models)
        admission = Admission(jobs, deadline, key, scopes, hold, TAX, shared_key_of(account), kept)
        self.model.admitted(account.id, request_id, admission, fingerprint)
        return deadline

    async def _deadline(self, account: Account, request_id: str) -> int:
        """Of an admission, which is told to nobody."""
        seen = await self.watch.look()
        admission = seen.fields("account", str(account.id))[f"admission:{request_id}"]
        deadline = int(admission.split(":")[1])
        admitted = deadline - LIMITS.admission_deadline * 1000
        assert self.model.now <= admitted <= seen.now + self.watch.shift
        return deadline

    async def admit(self) -> None:
        """A submission that goes no further, with its objects stored or not."""
        account, (key, print_) = await self._payer(), self._operation()
        kept = self._kept(key)
        request_id, models = self.pool.log.keys.new_request_id(), self.random.choice(MODELS)
        operation = operation_of(key, print_) if key else None
        fingerprint = operation.fingerprint if operation else ""
        hold, shared_key = self._hold(), shared_key_of(account)
        scopes = scopes_of(account, models)
        told = self.model.admit(account.id, 1, scopes, key, hold=hold, shared_key=shared_key)
        outcome = None if isinstance(told, Claim) else told
        admission = await self.foretold(
            errors.SettlerBehind if outcome in UNSETTLED else outcome,
            admit(
                self.pool.log, LIMITS, account, request_id, 1, models=models, operation=operation,
                hold=hold, tax=TAX, kept=kept,
            ),
        )  # fmt: skip
        if isinstance(admission, errors.Refused):
            return
        if isinstance(told, Claim):
            assert admission.claim is not None
            assert admission.request_id == told.request
            return
        await self._admitted(account, request_id, 1, models, key, fingerprint, hold, kept)
        if self.random.random() < 0.5:
            attached = attached_of(kept.images, offload=kept.offloaded)
            await self.store.put(attached.objects(request_id, kept))

    async def cancel(self) -> None:
        if not self.requests:
            return
        id_ = self._some(self.requests)
        before = msgspec.msgpack.encode(self.model.requests.get(id_))
        outcome = self.model.cancel(id_)
        ended = await self.foretold(outcome, self.pool.cancel(id_))
        if not isinstance(ended, errors.Refused):
            assert ended.done == (self.model.requests[id_].state == "done")
            after = msgspec.msgpack.encode(self.model.requests[id_])
            assert ended.changed == (before != after)

    # the worker

    async def assign(self) -> None:
        """A worker asks for a job: as it was a moment ago, or as it is."""
        if not self.requests:
            return
        # One of them gets so many jobs that it will have dropped too many some day.
        (name,) = self.random.choices(WORKERS, (12, 3, 1, 2))
        id_ = self._waiting()
        worker = self.pool.names.get(name)
        if worker is None or self.random.random() < 0.3:
            worker = await self._checked_in(name)
        if worker is None or worker.maintenance:
            return
        if worker.paused:
            await self._deceive(worker, id_)
            return
        declared = self.random.choice(TRANSPORTS)
        how = self.model.open_to(id_, worker.id, declared)
        request = self.model.requests.get(id_)
        if request is not None and request.faulted_by == worker.id and request.waiting:
            self.met["held off" if how is None else "given again"] += 1
        model, validated = self.random.choice((MODEL, MODEL, "b")), self.random.random() < 0.6
        job = await pop.assign(
            self.pool.log, LIMITS, worker, receiving(*declared), id_, model, validated=validated
        )
        assert (None if job is None else job.transport) == how
        if job is None:
            return
        self.met[f"sent by {how}"] += 1
        owner, prompt = worker.owner, self.model.requests[id_].prompt
        terms = Priced(model == MODEL, prompt, LENGTH, validated, owner.trusted)
        taken = self._taken(worker, job, job.position.ms)
        taken.terms = terms
        self.model.assigned(taken)
        assert job.stream == self.model.requests[id_].streamed
        self.jobs.append((id_, job.generation_id))

    async def _deceive(self, worker: pop.Worker, id_: str) -> None:
        declared = self.random.choice(TRANSPORTS)
        how = self.model.deceived(id_, worker.id, declared)
        job = await self.decoys.give(worker, receiving(*declared), id_, MODEL)
        assert (None if job is None else job.transport) == how
        if job is not None:
            self.met["decoys"] += 1
            decoy = self._taken(worker, job, self.model.now)
            decoy.decoy = True
            self.model.trick(decoy)
            self.jobs.append((id_, job.generation_id))

    def _taken(self, worker: pop.Worker, job: pop.Assignment, since: int) -> Job:
        cap = LIMITS.lease_cap_of(worker.owner)
        return Job(
            job.generation_id, job.request_id, worker.id, job.stream, since, worker.owner.id, cap
        )

    async def reply(self) -> None:
        if not self.jobs:
            return
        _, id_ = self._job()
        self._replies += 1
        stored = b'{"reply":%d}' % self._replies
        over = set(self.model.done())
        characters = self.random.choice((3, 250, 801, 5000))
        ok, unbelievable = self.random.random() < 0.9, self.random.random() < 0.35
        outcome = self.model.reply(id_, stored, characters, ok=ok, unbelievable=unbelievable)

        async def deliver() -> reply.Stored:
            job = await self._held(id_)
            given = REPLY._replace(
                stored=stored, characters=characters, state="ok" if ok else "censored"
            )
            believable = 1 if unbelievable else 0
            return await reply.submit_reply(
                self.pool.log, LIMITS, TARIFF, job, given, believable=believable
            )

        told = await self.foretold(outcome, deliver())
        if not isinstance(told, errors.Refused):
            assert told.done == (self.model.done() != over)
            terms = self.model.jobs[id_].terms
            assert terms is None or told.reward == terms.price(characters)

    async def _held(self, id_: str) -> reply.Held:
        """A job as its own worker finds it."""
        self._act_for(id_)
        return await self.pool.held(id_)

    def _act_for(self, id_: str) -> None:
        """The owner of the job's worker comes."""
        job = self.model.jobs.get(id_)
        newcomer = job is not None and job.owner == self.accounts[1].id
        self.pool.owner = self.accounts[1] if newcomer else self.trusted

    async def post(self) -> None:
        """The next delta, or the last one again, or another."""
        if not self.jobs:
            return
        _, id_ = self._job()
        streaming = [each.id for each in self.model.jobs.values() if each.posts is not None]
        if streaming and self.random.random() < 0.7:
            id_ = self.random.choice(streaming[-4:])
        job = self.model.jobs.get(id_)
        lease = job.posts if job is not None else None
        seq = (lease.seq if lease else 0) + self.random.choice((1, 1, 1, 0, 0, 2, -1))
        content = self.random.choice((f"wörd {seq} ", f"word {seq} ", "x" * 3000))
        reasoning = self.random.choice(("", "", f"thought {seq}"))
        if lease and self.random.random() < 0.5 and seq == lease.seq:
            content, reasoning = lease.last
        if seq < 1:
            return
        outcome = self.model.post(id_, seq, content, reasoning)
        self._act_for(id_)
        accepted = await self.foretold(outcome, self.pool.post(id_, seq, content, reasoning))
        if isinstance(accepted, errors.Refused):
            if lease and isinstance(accepted, errors.ChatProgressOutOfSequence):
                assert accepted.extra == {"expected_seq": lease.seq + 1}
        else:
            assert lease is not None
            assert accepted == (lease.seq, lease.cancelled)

    async def fault(self) -> None:
        if self.jobs:
            _, id_ = self._job()
            reason = self.random.choice(("", "generation_error", "reply_refused"))
            self._act_for(id_)
            await self.foretold(self.model.fault(id_, reason), self.pool.fault(id_, reason))

    async def refuse(self) -> None:
        if self.jobs:
            _, id_ = self._job()
            kind = self.random.choice(REFUSALS)
            self._act_for(id_)
            await self.foretold(self.model.refuse(id_, kind.__name__), self.pool.refuse(id_, kind))

    async def give_back(self) -> None:
        """Of what a worker did not get; or of an id whose fate is not known."""
        if not self.jobs:
            return
        request_id, id_ = self._job()
        job = self.model.jobs.get(id_)
        if self.random.random() < 0.2 or (job is not None and job.decoy):
            id_ = self.pool.log.keys.new_id_beside(request_id)
        self.model.give_back(request_id, id_)
        await pop.give_back(self.pool.log, request_id, id_)

    # workers

    async def check_in(self) -> None:
        await self._checked_in(self.random.choice(NAMES))

    async def stay(self) -> None:
        """A worker is online for a while."""
        name = self.random.choice(NAMES)
        for _ in range(6):
            await self._pass(120_000)
            await self._step_clear()
            await self._checked_in(name)
            await self.watch.check()

    async def _checked_in(self, name: str) -> pop.Worker | None:
        """What it says of itself is what the model says of it."""
        owner = self.trusted
        if name in NEWCOMERS:  # whom the process knows anew: trust may be fresh
            owner = await Accounts(self.pool.log, SECRET).find(self._newcomer)
        shown = await self._names_of(owner.id)
        full = len(shown - {name}) >= LIMITS.workers_of(owner)
        reward = self.random.choice((10, 50)) * KUDOS
        try:
            worker = await self.pool.workers.check_in(owner, name, DECLARATION, reward=reward)
        except NO_CHECK_IN:
            return None
        except (errors.TooManyWorkersTrusted, errors.TooManyWorkers):
            assert name not in shown
            self.met["too many workers"] += 1
            return None
        self.pool.names[name] = worker
        if worker.id not in self.model.workers:
            assert name not in shown
            assert not full
        self.model.check_in(worker.id, owner.id, reward=reward)
        known = self.model.workers[worker.id]
        assert (worker.maintenance, worker.paused) == (known.maintenance, known.paused)
        self.names[worker.id] = worker.name
        return worker

    async def _names_of(self, user_id: int) -> frozenset[str]:
        seen = await self.watch.look()
        return frozenset(name for name, user, *_ in seen["worker"].values() if user == str(user_id))

    def _owner_of(self, worker_id: str) -> Account:
        newcomer = self.model.workers[worker_id].owner == self.accounts[1].id
        return self.accounts[1] if newcomer else self.trusted

    async def _pause(self, name: str) -> None:
        worker = await self._checked_in(name)
        assert worker is not None
        known = await workers.find(self.pool.log, worker.id)
        account = self.trusted._replace(moderator=True)
        change = workers.Change(paused=True)
        await workers.change_worker(self.pool.log, account, known, change)
        self.model.workers[worker.id].paused = True
        self.model.workers[worker.id].paused_ms = self.model.now

    async def change_worker(self) -> None:
        worker = await self._worker()
        if worker is None:
            return
        maintenance = self.random.choice((None, None, True, False, False, False))
        paused = self.random.choice((None, True, False, False))
        change = workers.Change(
            maintenance=maintenance, paused=paused, info=self.random.choice((None, "", "Attic"))
        )
        account = self._owner_of(worker.id)._replace(moderator=self.random.random() < 0.8)
        refused = paused is not None and not account.moderator
        await self.foretold(
            errors.NotModerator if refused else None,
            workers.change_worker(self.pool.log, account, worker, change),
        )
        if not refused:
            known = self.model.workers[worker.id]
            known.maintenance = known.maintenance if maintenance is None else maintenance
            if paused is not None:
                known.paused, known.paused_ms = paused, self.model.now

    async def rename_worker(self) -> None:
        """Carried out by the settler."""
        worker = await self._worker()
        if worker is not None:
            try:
                name = self.random.choice(NAMES)
                owner = self._owner_of(worker.id)
                await workers.claim_name(self.pool.log, owner, worker, name)
            except (errors.WorkerNameAlreadyExists, errors.SettlerBehind):
                return

    async def delete_worker(self) -> None:
        worker = await self._worker()
        if worker is not None:
            owner = self._owner_of(worker.id)
            await workers.delete_worker(self.pool.log, owner, worker, idle)
            del self.model.workers[worker.id]

    async def _worker(self) -> workers.Known | None:
        """One that was seen; None where it is gone by now."""
        id_ = self.random.choice([*self.names, NOBODY])
        outcome = None if id_ in self.model.workers else errors.WorkerNotFound
        found = await self.foretold(outcome, workers.find(self.pool.log, id_))
        return None if isinstance(found, errors.Refused) else found

    # the service

    async def set_modes(self) -> None:
        on = self.random.random() < 0.4
        changed = on != self.model.maintenance
        self.model.set_modes(maintenance=on)
        assert changed == await set_modes(self.pool.log, LIMITS, maintenance=on)

    async def lose_content(self) -> None:
        """Of a request that nobody works on."""
        if self.requests:
            request = self.model.requests.get(self._some(self.requests))
            if request is None or request.state != "open" or self.model.held(request):
                return
            request.lost = True
            request.replies.clear()
            await self.pool.log.read("DEL", self.pool.log.keys.content(request.id))

    async def pass_time(self) -> None:
        (seconds,) = self.random.choices(CLOCK_STEPS, (4, 4, 3, 2, 1, 1))
        await self._pass(int(seconds * 1000))

    async def pass_long(self) -> None:
        await self._pass(1_300_000)

    async def pass_week(self) -> None:
        await self._pass(7 * 86_400_000)

    async def land(self) -> None:
        """An upload whose failure was told long ago is stored after all."""
        await self.store.land()

    async def sweep(self) -> None:
        await self._sweep(self.random.choice(("all", "all", "all", "images", "none")))

    async def _sweep(self, deletes: Deletes) -> None:
        self.store.deletes = deletes
        foretold = self.model.sweep(self.store.deletes)
        swept = await self.pool.sweep()
        assert tuple(swept) == tuple(foretold._asdict()[name] for name in swept._fields)
        self.met.update(swept._asdict())

    async def settle(self) -> None:
        before = sum(worker.maintenance for worker in self.model.workers.values())
        self.model.settle()
        after = sum(worker.maintenance for worker in self.model.workers.values())
        self.met["dropped too many"] += after - before
        exhausted = sum(request.exhausted for request in self.model.requests.values())
        self.met["exhausted"] = max(exhausted, self.met["exhausted"])
        for what in ("lifted", "promoted", "uptime"):
            self.met[what] = getattr(self.model.bank, what)
        await self._settled(())

    def settled(self, *, quick: bool) -> Settled:
        """A settler that is waited for in vain, unless it is quick."""
        return self._settled if quick else never_settled

    async def _settled(self, _heads: Sequence[Position]) -> bool:
        """By settlers that go on from where they were, or by new ones."""
        log = self.pool.log
        for partition in log.keys.all():
            if partition not in self._settlers or self.random.random() < 0.1:
                settler = Settler(log, self.pool.limits, partition)
                self._settlers[partition] = settler, await settler.start()
            settler, after = self._settlers[partition]
            async for page in read_log(log, partition, after):
                await settler.settle([entry.recorded for entry in page])
                self._settlers[partition] = settler, page[-1].recorded.position
        return True
