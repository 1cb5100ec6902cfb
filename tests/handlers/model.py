"""What should be: the rules of requests, jobs, leases and admissions once more, on plain values.

Nothing here reads what the scripts wrote. A method tells what a command is answered with, and does
to the model what the command should do to the service. Times are milliseconds; of those that a
command sets, the model knows only that they lie within it (tests/handlers/watch.py finds the exact
ones).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from handlers import errors
from handlers.limits import Limits
from handlers.objects import NOTHING, Kept
from tests.handlers.bank import BURN, Bank, Charge, Movement, Priced, Release, Reward
from tests.handlers.stores import Deletes

BELIEVABLE = 150_000
"""10^-3 tokens a second, of models as small as those here (text_path_reference.md 6.6)."""

LATE_MS = 30_000
"""How long after its admission's deadline an upload may still land."""

Outcome = type[errors.Refused] | None
"""The refusal that a command is answered with; None: none."""


@dataclass
class Job:
    """Of one request, held by one worker, or by nobody any more. A decoy is none of the request."""

    id: str
    request: str
    worker: str
    streamed: bool
    since: int
    owner: int = 0
    cap: int = 0
    """Seconds from its beginning that renewals of its lease never pass."""
    terms: Priced | None = None
    decoy: bool = False
    state: str = "pending"
    refusal: str = ""
    posts: Lease | None = None
    ttl: int = 150
    logged: int = 0
    """When it is due at the latest, as the log knows."""

    @property
    def ends(self) -> int:
        """When its lease runs out."""
        return self.since + self.ttl * 1000


@dataclass
class Lease:
    """What its worker may post to."""

    room: int
    seq: int = 0
    last: tuple[str, str] = ("", "")
    bytes: int = 0
    characters: int = 0
    cancelled: bool = False


@dataclass
class Request:
    """One that was stored, or the mark that it may not come (again)."""

    id: str
    account: int
    jobs: int
    streamed: bool
    key: str
    deadline: int
    expires: int
    waiting: int
    state: str = "open"
    finished: int = 0
    faults: int = 0
    cancelled: bool = False
    exhausted: bool = False
    rc: tuple[str, str] = ("", "")
    faulted_by: str = ""
    """The last worker that did, which may not have it again until `held_off`."""
    lapsed_by: set[str] = field(default_factory=set)
    """Workers whose leases ran out in one pass of the janitor: which was the last nobody knows."""
    held_off: int = 0
    generations: list[str] = field(default_factory=list)
    replies: dict[str, bytes] = field(default_factory=dict)
    entries: int = 0
    """Of its progress stream."""
    lost: bool = False
    """Its content is."""
    tricked: set[str] = field(default_factory=set)
    """Workers that had a decoy of it."""
    shared_key: str = ""
    prompt: int = 0  # characters
    kept: Kept = NOTHING
    """In the object store; of a mark: what may come to be there."""


class Admission(NamedTuple):
    """A request that may be stored: what its account counts for it."""

    jobs: int
    deadline: int
    key: str
    scopes: tuple[str, ...]
    held: int
    tax: int  # once it is admitted: what of it may be given back
    shared_key: str
    kept: Kept = NOTHING


class Claim(NamedTuple):
    """What an operation key names."""

    request: str
    fingerprint: str
    deadline: int


@dataclass
class Worker:
    """One that checked in."""

    owner: int
    trusted: bool = False
    """Its owner was, as it said last."""
    maintenance: bool = False
    paused: bool = False
    aborts: int = 0
    nonconformant: int = 0
    since: int = 0
    recent: int = 0
    paused_ms: int = 0
    """When it was, or was no more."""
    seen: int = 0
    uptime: int = 0
    rewarded: int = 0
    """Of its uptime."""


class Drop(NamedTuple):
    """A job that counts against its worker, once it is carried there."""

    partition: int
    worker: str
    nonconformant: bool
    at: int


class Swept(NamedTuple):
    """What a pass of the janitors should end."""

    lapsed: int = 0
    expired: int = 0
    abandoned: int = 0
    cancelled: int = 0
    given: int = 0
    """Monthly kudos: nobody here has any."""
    deleted: int = 0
    """Objects."""


@dataclass
class Model:
    """The service of one deployment, as it should be."""

    limits: Limits
    bank: Bank
    anonymous: int
    """The account that shares its counts by model."""
    partition: Callable[[str], int]
    account_partition: Callable[[int], int]
    partitions: int
    now: int = 0
    requests: dict[str, Request] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    admissions: dict[int, dict[str, Admission]] = field(default_factory=dict)
    claims: dict[tuple[int, str], Claim] = field(default_factory=dict)
    maintenance: bool = False
    doomed: dict[int, set[str]] = field(default_factory=dict)
    """Objects that are to be deleted, by partition."""
    _freed: list[tuple[int, str, str]] = field(default_factory=list)
    _drops: list[Drop] = field(default_factory=list)
    _judged: dict[int, set[str]] = field(default_factory=dict)
    _before: tuple[int, int] = (0, 0)

    # the account's side

    def admit(
        self,
        account: int,
        jobs: int,
        scopes: tuple[str, ...],
        key: str,
        *,
        hold: int = 0,
        shared_key: str = "",
    ) -> Claim | Outcome:
        """The claim that was there before, or whether the request may come."""
        claim = self.claims.get((account, key))
        if claim is not None:
            return claim
        if self.counted(account, scopes) + jobs > self._most(account):
            return errors.TooManyPrompts
        held = self.held_of(account)
        return self.bank.admit(account, hold, held[""], shared_key, held[shared_key], self.now)

    def held_of(self, account: int) -> Counter[str]:
        """What the account holds, in all (""), and of each shared key."""
        held: Counter[str] = Counter({"": 0})
        for each in self.admissions[account].values():
            held[""] += each.held
            if each.shared_key:
                held[each.shared_key] += each.held
        return held

    def admitted(self, account: int, request_id: str, admission: Admission, print_: str) -> None:
        """It may come until then, and is taxed."""
        refundable = self.bank.tax(account, admission.tax, admission.shared_key)
        self.admissions[account][request_id] = admission._replace(tax=refundable)
        if admission.key:
            self.claims[account, admission.key] = Claim(request_id, print_, admission.deadline)

    def counted(self, account: int, scopes: tuple[str, ...]) -> int:
        """Jobs that wait as far as is settled, of the busiest of these models or of them all."""
        admissions = self.admissions[account].values()
        if not scopes:
            return sum(each.jobs for each in admissions)
        return max(
            sum(each.jobs for each in admissions if scope in each.scopes) for scope in scopes
        )

    def _most(self, account: int) -> int:
        if account == self.anonymous:
            return self.limits.anonymous_concurrency
        return self.limits.concurrency

    def repeat(
        self, account: int, key: str, fingerprint: str, wanted: Kept, *, fails: bool
    ) -> Outcome:
        """What a submission is told whose operation key names a request already.

        fails  whether the store does, where it is asked
        """
        claim = self.claims[account, key]
        known, late = self.requests.get(claim.request), self.now > claim.deadline
        alive = known is not None and known.state != "abandoned"
        same = claim.fingerprint == fingerprint
        if not same and (alive or (known is None and not late)):
            return errors.OperationKeyConflict
        if alive:
            return None
        kept = self._agreed(account, claim.request, wanted) if same else None
        unstored = fails and kept not in (None, NOTHING) and not late
        if kept is not None and known is None and not late and not unstored:
            return None
        self._give_up(claim.request, account, key, kept or NOTHING, late=late)
        return errors.ChatImageStorageUnavailable if unstored else errors.AdmissionLost

    def _agreed(self, account: int, request_id: str, wanted: Kept) -> Kept | None:
        """What a repeat stores of what it wants to, by the admission that it found; None where it
        cannot carry on with that."""
        admission = self.admissions[account].get(request_id)
        if admission is None or admission.kept.images != wanted.images:
            return None
        messages = wanted.images > 0 or wanted.offloaded
        return None if admission.kept.offloaded and not messages else admission.kept

    def _give_up(self, request_id: str, account: int, key: str, kept: Kept, *, late: bool) -> None:
        """Nobody will store it, unless somebody still may."""
        known, open_ = self.requests.get(request_id), self.admissions[account].get(request_id)
        kept = open_.kept if open_ else kept
        if known is None and late:
            self._bury(request_id, account, key, kept)
        elif known is not None and known.state == "abandoned":
            self._doom(request_id, kept)

    def forgone(self, account: int, request_id: str) -> None:
        """Whoever was admitted gives it up at once."""
        admission = self.admissions[account][request_id]
        self._bury(request_id, account, admission.key, admission.kept)

    def stored(self, request: Request) -> None:
        """It came."""
        self.requests.setdefault(request.id, request)

    def _bury(self, request_id: str, account: int, key: str, kept: Kept) -> None:
        expires = self.now + self.limits.request_ttl * 1000
        self.requests[request_id] = Request(
            request_id, account, 0, False, "", 0, expires, 0, state="abandoned", kept=kept
        )
        self._doom(request_id, kept)
        open_ = self.admissions[account].get(request_id)
        shared_key = open_.shared_key if open_ else ""
        release = Release(account, request_id, refund=True, key=shared_key)
        self.bank.owe(self.partition(request_id), release)
        if key:
            self._freed.append((account, key, request_id))

    # objects

    def _doom(self, request_id: str, kept: Kept) -> None:
        doomed = self.doomed.setdefault(self.partition(request_id), set())
        doomed.update(kept.keys(request_id))

    def named(self) -> set[str]:
        """Objects that something accounts for."""
        names = set().union(*self.doomed.values())
        for request in self.requests.values():
            names.update(request.kept.keys(request.id))
        for admissions in self.admissions.values():
            for request_id, admission in admissions.items():
                names.update(admission.kept.keys(request_id))
        return names

    def needed(self) -> set[str]:
        """Those of requests, which may be asked for."""
        return {
            name
            for request in self.requests.values()
            if request.state != "abandoned"
            for name in request.kept.keys(request.id)
        }

    # jobs

    def open_to(self, request_id: str, worker: str, declared: tuple[str, ...]) -> str | None:
        """How the worker gets a job of the request; None: not at all. Finds out that content is
        lost."""
        request = self.requests.get(request_id)
        if request is None or request.state != "open" or request.waiting < 1:
            return None
        if request.expires <= self.now:
            return None
        if request.faulted_by == worker and request.held_off > self.now:
            return None
        if request.lost:
            self._forget(request)
            return None
        return transport(request.kept, declared)

    def assigned(self, job: Job) -> None:
        """The worker has it."""
        request = self.requests[job.request]
        assert self.held(request) + request.waiting + request.finished <= request.jobs
        assert request.waiting > 0, "it was given away already"
        assert job.id not in self.jobs
        request.waiting -= 1
        request.generations.append(job.id)
        request.expires = job.since + self.limits.request_ttl * 1000
        job.logged = job.ends
        self._hold(job)

    def held(self, request: Request) -> int:
        """Jobs of it that workers have now."""
        return sum(self.jobs[each].state == "pending" for each in request.generations)

    def deceived(self, request_id: str, worker: str, declared: tuple[str, ...]) -> str | None:
        """How a paused worker gets a decoy of the request; None: not at all."""
        request = self.requests.get(request_id)
        if request is None or request.state != "open" or request.waiting < 1:
            return None
        if request.expires <= self.now or worker in request.tricked:
            return None
        how = transport(request.kept, declared)
        if how is not None:
            request.tricked.add(worker)
        return None if request.lost else how

    def _hold(self, job: Job) -> None:
        if job.streamed:
            job.posts = Lease(512 * self.limits.progress_bytes_per_token)
        self.jobs[job.id] = job

    def trick(self, job: Job) -> None:
        """A paused worker has a decoy."""
        self._hold(job)

    def reply(
        self, job_id: str, stored: bytes, characters: int, *, ok: bool, unbelievable: bool
    ) -> Outcome:
        """The worker delivers so much."""
        refused = self._ended(job_id)
        if refused is not None:
            return refused
        job = self.jobs[job_id]
        job.state, job.posts = "finished", None
        if job.decoy:
            return None
        request = self.requests[job.request]
        assert job_id not in request.replies, "a reply came twice"
        request.replies[job_id] = stored
        request.finished += 1
        self._pay(job, characters, ok=ok, most=1 if unbelievable else 0)
        request.expires = self.now + self.limits.request_ttl * 1000
        self._settle_end(request)
        return None

    def _pay(self, job: Job, characters: int, *, ok: bool = True, most: int) -> None:
        """Both sides of what it made.

        most  10^-3 tokens a second that can be believed; 0: any
        """
        assert job.terms is not None
        request, log = self.requests[job.request], self.partition(job.id)
        price, too_fast = job.terms.price(characters), False
        if most:
            too_fast = job.terms.too_fast(characters, self.now - job.since, most)
        amount = BURN + (price if ok else 0)
        self.bank.owe(log, Charge(request.account, request.id, amount, request.shared_key))
        escrow = job.terms.escrow(price)
        self.bank.owe(log, Reward(job.owner, "generation", price, escrow, too_fast))

    def done(self) -> set[str]:
        """The requests of which nothing is left to be done."""
        return {request.id for request in self.requests.values() if request.state == "done"}

    def _ended(self, job_id: str) -> Outcome:
        """Why its worker may not deliver."""
        job = self.jobs.get(job_id)
        if job is None or not job.worker:
            return errors.InvalidJobID
        if job.state == "finished":
            return errors.DuplicateGen
        if job.state != "pending" or (job.decoy and self.now > job.ends):
            return errors.AbortedGen
        return None

    def fault(self, job_id: str, reason: str) -> Outcome:
        """The worker gives up. What ended before stays as it is."""
        refused = self._ended(job_id)
        if refused is None:
            if self.jobs[job_id].decoy:
                self.jobs[job_id].state, self.jobs[job_id].posts = "faulted", None
            else:
                self._fail(self.jobs[job_id], reason)
        return None if refused is errors.AbortedGen else refused

    def _fail(self, job: Job, reason: str = "") -> None:
        request = self.requests[job.request]
        if reason and not job.refusal:
            request.rc = ("ChatWorkerFault", reason)
        job.state = "faulted"
        if job.posts is not None:
            request.entries += 1  # that it ended
            job.posts = None
        request.faults += 1
        request.faulted_by = job.worker
        request.held_off = self.now + self.limits.fault_holdoff * 1000
        if request.state == "open" and not request.cancelled:
            request.waiting += 1
            if request.faults > self.limits.faulted_generations:
                request.waiting, request.exhausted = 0, True
                self._done(request)
        self._settle_end(request)
        nonconformant = job.refusal == "ChatSubmitNonconformant"
        self._drops.append(Drop(self.partition(job.id), job.worker, nonconformant, self.now))

    def _settle_end(self, request: Request) -> None:
        """Done, where nothing is left to be done."""
        if request.state == "open" and request.waiting == 0 and self.held(request) == 0:
            self._done(request)

    def _done(self, request: Request) -> None:
        request.state = "done"
        self._release(request)

    def _release(self, request: Request) -> None:
        self.bank.owe(self.partition(request.id), Release(request.account, request.id))

    def refuse(self, job_id: str, rc: str) -> Outcome:
        """A reply was refused, and its worker told."""
        job = self.jobs.get(job_id)
        if job is None or not job.worker:
            return errors.InvalidJobID
        if not job.decoy and job.state == "pending":
            job.refusal = rc
            self.requests[job.request].rc = (rc, "")
        return None

    def post(  # noqa: PLR0911 - an answer of the spec's table each
        self, job_id: str, seq: int, content: str, reasoning: str
    ) -> Outcome:
        """The worker posts what it generated."""
        job = self.jobs.get(job_id)
        if job is None:
            return errors.ChatJobAborted
        lease = job.posts
        if job.decoy and self.now > job.ends:
            lease = None
        if lease is None:
            if job.state == "finished" or not (job.streamed or job.state != "pending"):
                return errors.ChatProgressNotStreaming
            return errors.ChatJobAborted
        if seq == lease.seq > 0 and (content, reasoning) == lease.last:
            return None
        if seq != lease.seq + 1:
            return errors.ChatProgressOutOfSequence
        size = lease.bytes + len(content.encode()) + len(reasoning.encode())
        if size > lease.room:
            return errors.ChatProgressCapReached
        lease.seq, lease.last, lease.bytes = seq, (content, reasoning), size
        lease.characters += len(content)
        if not job.decoy:
            self.requests[job.request].entries += 1
        if job.state == "pending" and not lease.cancelled and self.now <= job.ends:
            self._before = (job.ttl, job.logged)
            self._renew(job, self.renewal(job, self.now))
        return None

    def renewal(self, job: Job, now: int) -> int:
        """Seconds that a lease lives, from its beginning, where it is renewed now."""
        longer = math.ceil((now - job.since) / 1000 + self.limits.text_job_lease)
        return max(job.ttl, min(job.cap, longer))

    def _renew(self, job: Job, ttl: int) -> None:
        job.ttl = ttl
        if job.ends > job.logged:
            cap = job.since + job.cap * 1000
            job.logged = min(cap, job.ends + self.limits.progress_slack * 1000)

    def renewed_later(self, job: Job, ttl: int) -> None:
        """The command took its time: the last post fell into the next second."""
        job.ttl, job.logged = self._before
        self._renew(job, ttl)

    def give_back(self, request_id: str, job_id: str) -> None:
        """Whoever was to get the job is gone."""
        request, job = self.requests.get(request_id), self.jobs.get(job_id)
        if request is None or request.state == "abandoned":
            return
        if job is None:
            self.jobs[job_id] = Job(job_id, request_id, "", False, 0, state="returned")
            request.generations.append(job_id)
        elif job.decoy:
            raise AssertionError("nobody gives a decoy back")
        elif job.state != "pending":
            return
        else:
            job.state, job.posts = "returned", None
            if request.state == "open" and not request.cancelled:
                request.waiting += 1
        self._settle_end(request)

    def cancel(self, request_id: str, *, maintenance: bool = False) -> Outcome:
        """Nothing of it is handed out any more; a streamed one ends at once."""
        request = self.requests.get(request_id)
        if request is None or request.state == "abandoned":
            return errors.RequestNotFound
        if request.state == "done" or request.cancelled:
            return None
        request.cancelled, request.waiting = True, 0
        if request.streamed and not maintenance:
            for job in self._of(request):
                if job.posts is not None:
                    job.posts.cancelled = True
                if job.state == "pending":
                    job.state = "faulted"
                    if not job.decoy:
                        assert job.posts is not None
                        self._pay(job, job.posts.characters, most=BELIEVABLE)
                    request.entries += not job.decoy
        self._settle_end(request)
        return None

    def _of(self, request: Request) -> list[Job]:
        """Its jobs, and its decoys."""
        return [job for job in self.jobs.values() if job.request == request.id]

    def _forget(self, request: Request) -> None:
        """Nothing of it is left; until its admission is over, a mark."""
        for job in self._of(request):
            del self.jobs[job.id]
        del self.requests[request.id]
        self._doom(request.id, request.kept)
        if request.state == "abandoned":
            return
        self._release(request)
        if request.key:
            self._freed.append((request.account, request.key, request.id))
        if self.now <= request.deadline + self._late(request):
            self.requests[request.id] = Request(
                request.id, request.account, 0, False, "", 0,
                request.deadline + self._late(request) + 1, 0,
                state="abandoned", kept=request.kept,
            )  # fmt: skip

    def _late(self, request: Request) -> int:
        """How much longer than its admission it is remembered, ms."""
        return LATE_MS if request.kept != NOTHING else 0

    # time

    def deadlines(self) -> Iterator[int]:
        """When something will be different by itself."""
        for request in self.requests.values():
            yield from (request.expires, request.held_off, request.deadline)
            yield request.deadline + self._late(request)
        for job in self.jobs.values():
            if job.state == "pending":
                yield from (job.ends, job.logged)
        for admissions in self.admissions.values():
            yield from (admission.deadline for admission in admissions.values())
        yield from self.bank.deadlines()
        for worker in self.workers.values():
            yield worker.seen + self.limits.check_in_window * 1000
            yield worker.seen + self.limits.online_window * 1000
            yield worker.seen + self.limits.uptime_stretch * 1000 - worker.uptime + worker.rewarded

    def sweep(self, deletes: Deletes) -> Swept:
        """A pass of the janitor of each partition, one after the other."""
        total = Swept()
        for partition in range(self.partitions):
            swept = Swept(
                abandoned=self._sweep_admissions(partition),
                lapsed=self._sweep_leases(partition),
                expired=self._sweep_requests(partition),
                cancelled=self.cancel_waiting(partition) if self.maintenance else 0,
                deleted=self._sweep_objects(partition, deletes),
            )
            total = Swept(*map(sum, zip(total, swept, strict=True)))
        return total

    def _sweep_admissions(self, partition: int) -> int:
        judged, seen, abandoned = self._judged.setdefault(partition, set()), set(), 0
        for account, admissions in self.admissions.items():
            if self.account_partition(account) != partition:
                continue
            for request_id, admission in admissions.items():
                if admission.deadline >= self.now:
                    continue
                seen.add(request_id)
                if request_id in judged:
                    continue
                judged.add(request_id)
                known = self.requests.get(request_id)
                kept = admission.kept
                self._give_up(request_id, account, admission.key, kept, late=True)
                abandoned += known is None or known.state == "abandoned"
        judged &= seen
        return abandoned

    def _sweep_objects(self, partition: int, deletes: Deletes) -> int:
        doomed = self.doomed.setdefault(partition, set())
        gone = {name for name in doomed if deletes == "all" or name.endswith(".jpg")}
        if deletes == "none":
            gone = set()
        self.doomed[partition] = doomed - gone
        return len(gone)

    def _sweep_leases(self, partition: int) -> int:
        lapsed = 0
        for job in list(self.jobs.values()):
            if job.decoy or job.state != "pending" or self.partition(job.id) != partition:
                continue
            if job.logged < self.now and job.ends < self.now:
                self._fail(job)
                self.requests[job.request].lapsed_by.add(job.worker)
                lapsed += 1
        return lapsed

    def _sweep_requests(self, partition: int) -> int:
        due = [
            request
            for request in self.requests.values()
            if request.expires < self.now and self.partition(request.id) == partition
        ]
        for request in due:
            self._forget(request)
        return len(due)

    def cancel_waiting(self, partition: int) -> int:
        """Cancel of one partition what waits, for maintenance."""
        waiting = [
            request
            for request in self.requests.values()
            if request.state == "open"
            and request.waiting
            and self.partition(request.id) == partition
        ]
        for request in waiting:
            self.cancel(request.id, maintenance=True)
        return len(waiting)

    def set_modes(self, *, maintenance: bool) -> None:
        """Switch maintenance."""
        self.maintenance = maintenance
        if maintenance:
            for partition in range(self.partitions):
                self.cancel_waiting(partition)

    def settle(self) -> None:
        """Accounts, claims and workers learn what became of their requests and jobs."""
        for movement in self.bank.due():
            self._carry(movement)
        for admissions in self.admissions.values():
            for request_id, admission in admissions.items():
                request = self.requests.get(request_id)
                if request is not None:
                    admissions[request_id] = admission._replace(jobs=request.waiting)
        for account, key, request_id in self._freed:
            claim = self.claims.get((account, key))
            if claim is not None and claim.request == request_id:
                del self.claims[account, key]
        self._freed.clear()
        for drop in sorted(self._drops, key=lambda drop: drop.partition):
            worker = self.workers.get(drop.worker)
            if worker is None:
                continue
            if drop.nonconformant:
                worker.nonconformant += 1
                continue
            worker.aborts += 1
            if drop.at - worker.since > 3_600_000:
                worker.since, worker.recent = drop.at, 0
            worker.recent += worker.since - drop.at <= 3_600_000
            if worker.recent > 20:
                worker.maintenance, worker.recent = True, 0
        self._drops.clear()

    def _carry(self, movement: Movement) -> None:
        admissions = self.admissions.get(movement.account, {})
        match movement:
            case Release(request=request_id, refund=refund):
                admission = admissions.pop(request_id, None)
                if admission is not None and refund:
                    self.bank.refund(movement, admission.tax)
                return
            case Charge(request=request_id, amount=amount) if request_id in admissions:
                left = max(0, admissions[request_id].held - amount)
                admissions[request_id] = admissions[request_id]._replace(held=left)
        self.bank.carry(movement, self.now)

    # workers

    def check_in(self, worker_id: str, owner: int, *, reward: int) -> None:
        """The worker shows itself, one that is known or a new one."""
        account, known = self.bank.accounts[owner], worker_id in self.workers
        worker = self.workers.setdefault(worker_id, Worker(owner, account.trusted))
        assert worker.owner == owner
        if worker.paused and account.trusted and worker.paused_ms < account.trusted_ms:
            worker.paused, worker.paused_ms = False, self.now
        since = self.now - worker.seen
        fresh = since < self.limits.check_in_window * 1000
        if known and fresh and worker.trusted == account.trusted:
            return
        worker.seen, worker.trusted = self.now, account.trusted
        if since > self.limits.online_window * 1000:
            worker.rewarded = worker.uptime
        elif not (worker.maintenance or worker.paused):
            worker.uptime += since
            if worker.uptime - worker.rewarded > self.limits.uptime_stretch * 1000:
                worker.rewarded = worker.uptime
                self.bank.owe(self.partition(worker_id), Reward(owner, "uptime", reward, reward))


def transport(kept: Kept, declared: tuple[str, ...]) -> str | None:
    """How a worker gets what a request keeps; None: not at all."""
    if kept.images and not {"url", "base64"} & set(declared):
        return None
    if kept.offloaded and "messages_url" in declared:
        return "messages_url"
    if not kept.images:
        return ""
    return "url" if "url" in declared else "base64"
