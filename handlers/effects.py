"""What an event means for other aggregates than its own: what the settler carries over to them.

Pure: of the event alone, so that whoever reads it again finds the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import msgspec

from events import faults, speed, types
from events.base import Position, Recorded
from events.keys import Keys, name_hash
from events.prices import escrow_of
from events.settlements import settlements

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


class Source(TypedDict):
    """Where an effect comes from, as its event tells it."""

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
    touched = account_keys(keys, payer, shared_key)
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


def account_keys(keys: Keys, user_id: int, shared_key: str = "") -> dict[str, str]:
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
            speed.implausible(
                event.characters, event.max_length, event.elapsed_ms, event.believable
            ),
            recorded.partition,
            position,
        ),
    ]


def _settled(keys: Keys, recorded: Recorded, event: types.Cancelled) -> list[Meaning]:
    """Both sides of what the jobs that ended with a cancel had posted."""
    payer, position = event.user_id, recorded.position
    movements: list[Meaning] = []
    for job in settlements(event):
        movements += (
            Charge(
                keys.of_account(payer),
                payer,
                "cancelled",
                event.shared_key,
                event.request_id,
                job.generation_id,
                job.price + event.burn,
                event.burn,
                recorded.partition,
                position,
            ),
            Reward(
                keys.of_account(job.owner_id),
                job.owner_id,
                "cancelled",
                job.worker_id,
                job.generation_id,
                job.price,
                0 if job.trusted else escrow_of(job.price),
                speed.implausible(job.characters, event.max_length, job.elapsed_ms, job.believable),
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
    touched = account_keys(keys, recipient, event.shared_key)
    touched["transfers"] = keys.transfers(recipient)
    return Effect(keys.of_account(recipient), touched, received, recorded.position)


def _source(recorded: Recorded) -> Source:
    return {"source": recorded.partition, "source_position": str(recorded.position)}
