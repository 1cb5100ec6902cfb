"""The settler: carries what an event means for other aggregates over to them, in order, in effect
once.

It follows one source log from the lowest fence of any target. All effects of a run on one target
partition are one `settle` call that names the fence it expects; a mismatch makes it read the fence
again. It reads no hot state but the fences. A fence that nothing moves for long is moved by a
`settled` event, so that a restart reads a bounded stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict

import msgspec
import structlog

from events import codec, faults, speed, types
from events.base import START, Position, Recorded
from events.keys import Keys, name_hash
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
    | types.WorkerAborted
    | types.WorkerNonconformant
    | types.WorkerMeasured
    | types.WorkerRenamed
    | types.NameFreed
)


class Effect(msgspec.Struct, frozen=True):
    """One event's meaning for one aggregate elsewhere."""

    partition: int
    target: str
    event: Carried
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


Meaning = Effect | Count | Sample


class _Source(TypedDict):
    source: int
    source_position: str


def effects_of(keys: Keys, recorded: Recorded) -> list[Meaning]:  # noqa: PLR0911 - an arm an event
    """What a source event changes elsewhere.

    The payer's waiting jobs are counted, a done or abandoned request frees its admission, one that
    is gone its operation key, a fault counts against its worker, and a reply tells how fast it is.
    A name that was claimed becomes its worker's, and what that was called before is free.
    """
    event = recorded.event
    match event:
        case types.Assigned():
            return [_count(keys, recorded, event, event.waiting)]
        case types.SubmittedReply():
            released = [_released(keys, recorded, event)] if event.done else []
            return [*_sampled(keys, recorded, event), *released]
        case types.Returned():
            return [_left(keys, recorded, event, event.waiting)]
        case types.Cancelled():  # what it has in flight does not wait again
            return [_left(keys, recorded, event, 0)]
        case types.Faulted():
            left = _left(keys, recorded, event, event.waiting)
            return [left, _aborted(keys, recorded, event)]
        case types.Expired():
            released = [_released(keys, recorded, event)] if event.done else []
            return [*released, *_unclaimed(keys, recorded, event)]
        case types.Abandoned():
            released = [_released(keys, recorded, event)]
            return [*released, *_unclaimed(keys, recorded, event)]
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
    released = types.Released(user_id=payer, request_id=event.request_id, **_source(recorded))
    return Effect(keys.of_account(payer), keys.account(payer), released, recorded.position)


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
    claim = keys.claim(payer, operation_key)
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
    return Effect(keys.of(worker_id), keys.worker(worker_id), counted, recorded.position)


def _sampled(keys: Keys, recorded: Recorded, event: types.SubmittedReply) -> list[Sample]:
    if not event.elapsed_ms:  # written before times were recorded
        return []
    found = speed.sample(event.characters, event.max_length, event.elapsed_ms)
    worker_id, source = event.worker_id, recorded.partition
    return [Sample(keys.of(worker_id), worker_id, found, source, recorded.position)]


def _renamed(keys: Keys, recorded: Recorded, event: types.NameClaimed) -> Effect:
    worker_id = event.worker_id
    renamed = types.WorkerRenamed(worker_id=worker_id, name=event.name, **_source(recorded))
    return Effect(keys.of(worker_id), keys.worker(worker_id), renamed, recorded.position)


def _freed(keys: Keys, recorded: Recorded, worker_id: str, name: str) -> Effect:
    freed = types.NameFreed(name=name, worker_id=worker_id, **_source(recorded))
    key, partition = keys.worker_name(name), keys.of(name_hash(name))
    return Effect(partition, key, freed, recorded.position)


def _source(recorded: Recorded) -> _Source:
    return {"source": recorded.partition, "source_position": str(recorded.position)}


def merged(keys: Keys, effects: Sequence[Meaning]) -> list[Effect]:
    """What is to be carried of a stretch, in its order.

    Of several counts of one request's waiting jobs the last one is, and none where the request is
    released behind it; the counts of one account go together, as do the samples of one worker.
    """
    left: list[Effect] = []
    accounts: dict[int, dict[str, Count]] = {}
    workers: dict[str, list[Sample]] = {}
    for effect in effects:
        if isinstance(effect, Sample):
            workers.setdefault(effect.worker_id, []).append(effect)
            continue
        if isinstance(effect, Count):
            accounts.setdefault(effect.user_id, {})[effect.request_id] = effect
            continue
        left.append(effect)
        event = effect.event
        if isinstance(event, types.Released) and event.user_id in accounts:
            accounts[event.user_id].pop(event.request_id, None)
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
    return Effect(last.partition, keys.account(last.user_id), changed, last.position)


def _measured(keys: Keys, samples: Sequence[Sample]) -> Effect:
    last = samples[-1]
    measured = types.WorkerMeasured(
        worker_id=last.worker_id,
        samples=tuple(sample.speed for sample in samples[-SAMPLES:]),
        source=last.source,
        source_position=str(last.position),
    )
    return Effect(last.partition, keys.worker(last.worker_id), measured, last.position)


def _position(effect: Meaning) -> Position:
    return effect.position


class Settler:
    """Settles one source partition.

    Another settler of the same partition does no harm, it only wastes work.
    """

    def __init__(self, log: Log, source: int) -> None:
        self._log = log
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
        keys, fence = self._log.keys, self._fences[target]
        left = merged(keys, effects)
        try:
            await self._log.run(
                "settle",
                target,
                {
                    "fences": keys.fences(target),
                    "due_admission": keys.due(target, "admission"),
                    "targets": [effect.target for effect in left],
                },
                {
                    "source": self._source,
                    "expected": "" if fence == START else str(fence),
                    "reached": str(reached),
                    "window": ABORT_WINDOW_SECONDS,
                    "borne": ABORTS_BORNE,
                    "dropped": DROPPED,
                    "effects": [_pack(_texts(effect.event)) for effect in left],
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
