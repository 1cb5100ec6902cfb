"""The settler: carries what an event means for other aggregates over to them, in order, in effect
once.

It follows one source log from the lowest fence of any target. All effects of a run on one target
partition are one `settle` call that names the fence it expects; a mismatch makes it read the fence
again. It reads no hot state but the fences. A fence that nothing moves for long is moved by a
`settled` event, so that a restart reads a bounded stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict, TypeGuard

import msgspec
import structlog

from events import codec, faults, speed, types
from events.base import START, Position, Recorded
from events.keys import Keys, name_hash
from events.prices import Rate, escrow_of
from handlers.limits import Limits
from handlers.log import Log, Refusal

logger = structlog.get_logger()

RUN = 200
"""Effects in one call, about: what one script may do before others get their turn. The counts of
waiting jobs among them, half of all, become one for each account."""

STRETCH = 1000
"""Source events that a fence may stay behind without an effect."""

_pack = msgspec.msgpack.Encoder().encode

ABORT_WINDOW_SECONDS = 3600
ABORTS_BORNE = 20
"""Dropped jobs within the window that leave a worker as it is (text_path_reference.md 6.5)."""
DROPPED = (
    "This worker was put into maintenance because it dropped too many jobs within an hour. "
    "Check that it can do what it declares, then take it out of maintenance."
)

SAMPLES = 20
"""Newest samples of a worker that its speed is the average of: older ones need not be carried."""

Carried = (
    types.WaitingChanged
    | types.Released
    | types.Unclaimed
    | types.Charged
    | types.Rewarded
    | types.Received
    | types.WorkerAborted
    | types.WorkerNonconformant
    | types.WorkerMeasured
    | types.WorkerRenamed
    | types.NameFreed
)


class Effect(msgspec.Struct, frozen=True):
    """One event's meaning for one aggregate elsewhere."""

    partition: int
    keys: Mapping[str, str]
    """What it touches beside the keys that all effects share, by role."""
    event: Carried
    position: Position


class Charge(msgspec.Struct, frozen=True):
    """What a payer owes for a generation; those of one payer are carried together."""

    partition: int
    user_id: int
    cause: str
    shared_key: str
    request_id: str
    generation_id: str
    amount: int
    burn: int
    source: int
    position: Position


class Reward(msgspec.Struct, frozen=True):
    """What an owner is paid for a generation, or for a worker's uptime; those of one owner are
    carried together."""

    partition: int
    user_id: int
    cause: str
    worker_id: str
    generation_id: str  # empty for uptime
    amount: int
    escrow: int
    suspicious: bool
    source: int
    position: Position


class Count(msgspec.Struct, frozen=True):
    """So many jobs of a request wait now; counts of one account are carried together."""

    partition: int
    user_id: int
    request_id: str
    waiting: int
    source: int
    position: Position


class Sample(msgspec.Struct, frozen=True):
    """How fast a worker was with a reply; samples of one worker are carried together."""

    partition: int
    worker_id: str
    speed: int  # 10^-3 tokens a second
    source: int
    position: Position


Movement = Charge | Reward
Meaning = Effect | Count | Sample | Movement


class _Source(TypedDict):
    source: int
    source_position: str


def effects_of(keys: Keys, recorded: Recorded) -> list[Meaning]:  # noqa: PLR0911, PLR0912 - an arm an event
    """What a source event changes elsewhere.

    The payer's waiting jobs are counted, a done or abandoned request frees its admission, one that
    is gone its operation key, a fault counts against its worker, and a reply tells how fast it is.
    A reply is paid for, as is what the jobs of a streamed request had posted when it was cancelled.
    A name that was claimed becomes its worker's, and what that was called before is free.
    """
    event = recorded.event
    match event:
        case types.Assigned():
            return [_count(keys, recorded, event, event.waiting)]
        case types.SubmittedReply():
            released = [_released(keys, recorded, event)] if event.done else []
            return [
                *_sampled(keys, recorded, event),
                *_paid(keys, recorded, event),
                *released,
            ]
        case types.Returned():
            return [_left(keys, recorded, event, event.waiting)]
        case types.Cancelled():  # what it has in flight does not wait again
            return [*_settled(keys, recorded, event), _left(keys, recorded, event, 0)]
        case types.Faulted():
            left = _left(keys, recorded, event, event.waiting)
            return [left, _aborted(keys, recorded, event)]
        case types.Expired():
            released = [_released(keys, recorded, event)] if event.done else []
            return [*released, *_unclaimed(keys, recorded, event)]
        case types.Abandoned():
            released = [_released(keys, recorded, event)]
            return [*released, *_unclaimed(keys, recorded, event)]
        case types.CheckedIn():
            return _rewarded(keys, recorded, event)
        case types.Transferred():
            return [_received(keys, recorded, event)]
        case types.NameClaimed():
            return [_renamed(keys, recorded, event)]
        case types.WorkerRenamed():
            return [_freed(keys, recorded, event.worker_id, event.former)]
        case types.WorkerDeleted():
            return [_freed(keys, recorded, event.worker_id, event.name)]
        case _:
            return []


def _count(
    keys: Keys,
    recorded: Recorded,
    event: types.Assigned | types.Returned | types.Cancelled | types.Faulted,
    waiting: int,
) -> Count:
    return Count(
        keys.of_account(event.user_id),
        event.user_id,
        event.request_id,
        waiting,
        recorded.partition,
        recorded.position,
    )


def _left(
    keys: Keys,
    recorded: Recorded,
    event: types.Returned | types.Cancelled | types.Faulted,
    waiting: int,
) -> Effect | Count:
    if event.done:
        return _released(keys, recorded, event)
    return _count(keys, recorded, event, waiting)


def _released(
    keys: Keys,
    recorded: Recorded,
    event: types.SubmittedReply
    | types.Returned
    | types.Cancelled
    | types.Faulted
    | types.Expired
    | types.Abandoned,
) -> Effect:
    payer = event.user_id
    # What was charged for a request that never came is given back.
    refund = isinstance(event, types.Abandoned)
    shared_key = event.shared_key if isinstance(event, types.Abandoned) else ""
    released = types.Released(
        user_id=payer,
        request_id=event.request_id,
        refund=refund,
        shared_key=shared_key,
        **_source(recorded),
    )
    touched = _account(keys, payer, shared_key)
    return Effect(keys.of_account(payer), touched, released, recorded.position)


def _unclaimed(
    keys: Keys, recorded: Recorded, event: types.Expired | types.Abandoned
) -> list[Effect]:
    payer, operation_key = event.user_id, event.operation_key
    if not operation_key:
        return []
    unclaimed = types.Unclaimed(
        user_id=payer,
        operation_key=operation_key,
        request_id=event.request_id,
        **_source(recorded),
    )
    claim = {"claim": keys.claim(payer, operation_key)}
    return [Effect(keys.of_account(payer), claim, unclaimed, recorded.position)]


def _aborted(keys: Keys, recorded: Recorded, event: types.Faulted) -> Effect:
    """Against the worker; what it claims of its own fault does not matter."""
    worker_id = event.worker_id
    kind = (
        types.WorkerNonconformant
        if event.refusal_rc == faults.NONCONFORMANT
        else types.WorkerAborted
    )
    counted = kind(worker_id=worker_id, generation_id=event.generation_id, **_source(recorded))
    return Effect(
        keys.of(worker_id), {"worker": keys.worker(worker_id)}, counted, recorded.position
    )


def _sampled(keys: Keys, recorded: Recorded, event: types.SubmittedReply) -> list[Sample]:
    if not event.elapsed_ms:  # written before times were recorded
        return []
    found = speed.sample(event.characters, event.max_length, event.elapsed_ms)
    worker_id, source = event.worker_id, recorded.partition
    return [Sample(keys.of(worker_id), worker_id, found, source, recorded.position)]


def _renamed(keys: Keys, recorded: Recorded, event: types.NameClaimed) -> Effect:
    worker_id = event.worker_id
    renamed = types.WorkerRenamed(worker_id=worker_id, name=event.name, **_source(recorded))
    return Effect(
        keys.of(worker_id), {"worker": keys.worker(worker_id)}, renamed, recorded.position
    )


def _freed(keys: Keys, recorded: Recorded, worker_id: str, name: str) -> Effect:
    freed = types.NameFreed(name=name, worker_id=worker_id, **_source(recorded))
    key, partition = {"worker_name": keys.worker_name(name)}, keys.of(name_hash(name))
    return Effect(partition, key, freed, recorded.position)


def _account(keys: Keys, user_id: int, shared_key: str = "") -> dict[str, str]:
    """What an effect on an account touches, and on the shared key that was used."""
    touched = {"account": keys.account(user_id)}
    if shared_key:
        touched["shared_key"] = keys.shared_key(shared_key)
    return touched


def _paid(keys: Keys, recorded: Recorded, event: types.SubmittedReply) -> list[Meaning]:
    """Both sides of a reply."""
    if not event.charge:  # written before replies were paid for
        return []
    payer, owner, position = event.user_id, event.owner_id, recorded.position
    return [
        Charge(
            keys.of_account(payer),
            payer,
            "generation",
            event.shared_key,
            event.request_id,
            event.generation_id,
            event.charge,
            event.burn,
            recorded.partition,
            position,
        ),
        Reward(
            keys.of_account(owner),
            owner,
            "generation",
            event.worker_id,
            event.generation_id,
            event.price,
            event.escrow,
            event.elapsed_ms > 0
            and event.believable > 0
            and speed.implausible(
                event.characters, event.max_length, event.elapsed_ms, event.believable
            ),
            recorded.partition,
            position,
        ),
    ]


def _settled(keys: Keys, recorded: Recorded, event: types.Cancelled) -> list[Meaning]:
    """Both sides of what the jobs that ended with a cancel had posted."""
    if not event.rates:  # written before it was paid for, or nothing ended
        return []
    payer, position = event.user_id, recorded.position
    of = {generation_id: i for i, generation_id in enumerate(event.generations)}
    movements: list[Meaning] = []
    for generation_id, characters in zip(event.settled, event.characters, strict=True):
        i = of[generation_id]
        price = Rate.parse(event.rates[i]).price(characters, event.max_length)
        owner = event.owners[i]
        movements += (
            Charge(
                keys.of_account(payer),
                payer,
                "cancelled",
                event.shared_key,
                event.request_id,
                generation_id,
                price + event.burn,
                event.burn,
                recorded.partition,
                position,
            ),
            Reward(
                keys.of_account(owner),
                owner,
                "cancelled",
                event.workers[i],
                generation_id,
                price,
                0 if event.trusted[i] else escrow_of(price),
                False,
                recorded.partition,
                position,
            ),
        )
    return movements


def _rewarded(keys: Keys, recorded: Recorded, event: types.CheckedIn) -> list[Meaning]:
    """For uptime: all of it waits for an owner who is not trusted (text_path_reference.md 7.7)."""
    if not event.reward:
        return []
    return [
        Reward(
            keys.of_account(event.user_id),
            event.user_id,
            "uptime",
            event.worker_id,
            "",
            event.reward,
            event.reward,
            False,
            recorded.partition,
            recorded.position,
        )
    ]


def _received(keys: Keys, recorded: Recorded, event: types.Transferred) -> Effect:
    recipient = event.recipient
    received = types.Received(
        user_id=recipient,
        sender=event.user_id,
        amount=event.amount,
        transfer_id=event.transfer_id,
        shared_key=event.shared_key,
        **_source(recorded),
    )
    touched = _account(keys, recipient, event.shared_key)
    touched["transfers"] = keys.transfers(recipient)
    return Effect(keys.of_account(recipient), touched, received, recorded.position)


def _source(recorded: Recorded) -> _Source:
    return {"source": recorded.partition, "source_position": str(recorded.position)}


def merged(keys: Keys, effects: Sequence[Meaning]) -> list[Effect]:
    """What is to be carried of a stretch, in its order.

    Of several counts of one request's waiting jobs the last one is, and none where the request is
    released behind it; the counts of one account go together, as do the samples of one worker.
    So do charges of one account that are alike, and rewards, but never past a movement of another
    kind: what a floor lifts depends on their order.
    """
    left: list[Effect] = []
    moving: dict[int, list[Movement]] = {}
    accounts: dict[int, dict[str, Count]] = {}
    workers: dict[str, list[Sample]] = {}
    for effect in effects:
        if isinstance(effect, Sample):
            workers.setdefault(effect.worker_id, []).append(effect)
            continue
        if isinstance(effect, Count):
            accounts.setdefault(effect.user_id, {})[effect.request_id] = effect
            continue
        if isinstance(effect, Charge | Reward):
            run = moving.setdefault(effect.user_id, [])
            if run and not _alike(run[-1], effect):
                left.append(_moved(keys, run))
                run.clear()
            run.append(effect)
            continue
        event = effect.event
        if _moves(event) and moving.get(event.user_id):
            left.append(_moved(keys, moving.pop(event.user_id)))
        left.append(effect)
        if isinstance(event, types.Released) and event.user_id in accounts:
            accounts[event.user_id].pop(event.request_id, None)
    left += (_moved(keys, run) for run in moving.values() if run)
    left += (_together(keys, counts) for counts in accounts.values() if counts)
    left += (_measured(keys, samples) for samples in workers.values())
    return sorted(left, key=_position)


def _together(keys: Keys, counts: dict[str, Count]) -> Effect:
    last = max(counts.values(), key=_position)
    changed = types.WaitingChanged(
        user_id=last.user_id,
        requests=tuple(counts),
        waiting=tuple(count.waiting for count in counts.values()),
        source=last.source,
        source_position=str(last.position),
    )
    return Effect(last.partition, _account(keys, last.user_id), changed, last.position)


def _moves(event: Carried) -> TypeGuard[types.Received | types.Released]:
    return isinstance(event, types.Received) or (isinstance(event, types.Released) and event.refund)


def _alike(one: Movement, other: Movement) -> bool:
    if isinstance(one, Charge) and isinstance(other, Charge):
        return (one.cause, one.shared_key, one.burn) == (other.cause, other.shared_key, other.burn)
    # One that came too fast to be believed may keep its owner from trust, which those before it
    # did not.
    rewards = isinstance(one, Reward) and isinstance(other, Reward) and not other.suspicious
    return rewards and one.cause == other.cause


def _moved(keys: Keys, run: Sequence[Movement]) -> Effect:
    """Movements of one account that are alike, as one fact."""
    last = run[-1]
    source = _Source(source=last.source, source_position=str(last.position))
    if isinstance(last, Charge):
        charges = [each for each in run if isinstance(each, Charge)]
        charged = types.Charged(
            user_id=last.user_id,
            requests=tuple(each.request_id for each in charges),
            generations=tuple(each.generation_id for each in charges),
            amounts=tuple(each.amount for each in charges),
            burn=last.burn,
            cause=last.cause,
            shared_key=last.shared_key,
            **source,
        )
        touched = _account(keys, last.user_id, last.shared_key)
        return Effect(last.partition, touched, charged, last.position)
    rewards = [each for each in run if isinstance(each, Reward)]
    rewarded = types.Rewarded(
        user_id=last.user_id,
        workers=tuple(each.worker_id for each in rewards),
        amounts=tuple(each.amount for each in rewards),
        escrows=tuple(each.escrow for each in rewards),
        generations=tuple(each.generation_id for each in rewards if each.generation_id),
        suspicious=sum(each.suspicious for each in rewards),
        cause=last.cause,
        **source,
    )
    return Effect(last.partition, _account(keys, last.user_id), rewarded, last.position)


def _measured(keys: Keys, samples: Sequence[Sample]) -> Effect:
    last = samples[-1]
    measured = types.WorkerMeasured(
        worker_id=last.worker_id,
        samples=tuple(sample.speed for sample in samples[-SAMPLES:]),
        source=last.source,
        source_position=str(last.position),
    )
    touched = {"worker": keys.worker(last.worker_id)}
    return Effect(last.partition, touched, measured, last.position)


def _position(effect: Meaning) -> Position:
    return effect.position


class Settler:
    """Settles one source partition.

    Another settler of the same partition does no harm, it only wastes work.
    """

    def __init__(self, log: Log, limits: Limits, source: int) -> None:
        self._log = log
        self._limits = limits
        self._source = source
        self._fences: dict[int, Position] = {}
        self._passed: dict[int, int] = {}

    async def start(self) -> Position:
        """Read the fences; return the position from which the source log is to be read."""
        for target in self._log.keys.all():
            await self._read_fence(target)
        return min(self._fences.values())

    async def settle(self, run: Sequence[Recorded]) -> None:
        """Carry over the effects of a stretch of the source log, which continues the one before."""
        if not run:
            return
        waiting: dict[int, list[Meaning]] = {target: [] for target in self._log.keys.all()}
        for recorded in run:
            for effect in effects_of(self._log.keys, recorded):
                waiting[effect.partition].append(effect)
        for target, effects in waiting.items():
            for part in _parts(effects):
                await self._carry(target, part)
            passed = self._passed.get(target, 0) + len(run)
            self._passed[target] = 0 if effects else passed
            if not effects and passed >= STRETCH:
                await self._move(target, run[-1].position)
                self._passed[target] = 0

    async def _carry(self, target: int, effects: list[Meaning]) -> None:
        while effects := [effect for effect in effects if effect.position > self._fences[target]]:
            if await self._call(target, effects, effects[-1].position):
                logger.info(
                    "settled",
                    source=self._source,
                    target=target,
                    position=str(effects[-1].position),
                    effects=len(effects),
                )

    async def _move(self, target: int, position: Position) -> None:
        while position > self._fences[target]:
            await self._call(target, [], position)

    async def _call(self, target: int, effects: list[Meaning], reached: Position) -> bool:
        keys, limits, fence = self._log.keys, self._limits, self._fences[target]
        trust = limits.trust_threshold
        left = merged(keys, effects)
        try:
            await self._log.run(
                "settle",
                target,
                {
                    "fences": keys.fences(target),
                    "due_admission": keys.due(target, "admission"),
                    "clearing": keys.clearing(target),
                    "touched": [key for effect in left for key in effect.keys.values()],
                },
                {
                    "source": self._source,
                    "expected": "" if fence == START else str(fence),
                    "reached": str(reached),
                    "window": ABORT_WINDOW_SECONDS,
                    "borne": ABORTS_BORNE,
                    "dropped": DROPPED,
                    "trust": "" if trust is None else trust,
                    "probation": limits.trust_probation,
                    "suspect": limits.suspect,
                    "effects": [
                        _pack([",".join(effect.keys), *_texts(effect.event)]) for effect in left
                    ],
                },
            )
        except Refusal:
            await self._read_fence(target)
            return False
        self._fences[target] = reached
        return True

    async def _read_fence(self, target: int) -> None:
        fence = await self._log.read("HGET", self._log.keys.fences(target), self._source)
        self._fences[target] = Position.parse(fence) if fence else START


def _parts(effects: Sequence[Meaning]) -> Iterator[list[Meaning]]:
    """Cut a run into calls, never between effects of one event: a fence knows positions only."""
    part: list[Meaning] = []
    for effect in effects:
        if len(part) >= RUN and effect.position != part[-1].position:
            yield part
            part = []
        part.append(effect)
    if part:
        yield part


def _texts(event: Carried) -> list[str]:
    """Flat fields as text only: Lua's unpacker knows strings."""
    return [each if isinstance(each, str) else each.decode() for each in codec.encode(event)]
