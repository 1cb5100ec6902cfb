"""The settler: carries what an event means for other aggregates over to them, in order, in effect
once.

It follows one source log from the lowest fence of any target. All effects of a run on one target
partition are one `settle` call that names the fence it expects; a mismatch makes it read the fence
again. It reads no hot state but the fences. A fence that nothing moves for long is moved by a
`settled` event, so that a restart reads a bounded stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import msgspec
import structlog

from events import codec, types
from events.base import START, Position, Recorded
from events.keys import Keys
from handlers.effects import (
    Carried,
    Charge,
    Count,
    Effect,
    Meaning,
    Movement,
    Reward,
    Sample,
    Source,
    account_keys,
    effects_of,
)
from handlers.errors import RedisUnavailable
from handlers.limits import Limits
from handlers.log import Log, Refusal
from handlers.stream import stretch

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
    return Effect(last.partition, account_keys(keys, last.user_id), changed, last.position)


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
    source = Source(source=last.source, source_position=str(last.position))
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
        touched = account_keys(keys, last.user_id, last.shared_key)
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
    return Effect(last.partition, account_keys(keys, last.user_id), rewarded, last.position)


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
        self._stored: dict[int, str] = {}
        """The same as Redis has them."""
        self._passed: dict[int, int] = {}

    async def start(self) -> Position:
        """Read the fences; return the position from which the source log is to be read."""
        for target in self._log.keys.all():
            await self._read_fence(target)
        return min(self._fences.values())

    async def rejoin(self) -> int:
        """Where a fence names an event that the source log lost, move it back to the last one in
        front of it; count those. All behind it is yet to be carried, and nothing before."""
        await self.start()
        moved = 0
        for target, fence in self._fences.items():
            before = await self._last_until(fence)
            if before is not None and before != fence:
                moved += await self._call(target, [], before)
        return moved

    async def _last_until(self, position: Position) -> Position | None:
        """The last event of the source log up to a position; START where it has none, None where
        that is one of the archive's."""
        stream = self._log.keys.events(self._source)
        last = await self._log.read("XREVRANGE", stream, str(position), "-", "COUNT", 1)
        if last:
            return Position.parse(last[0][0])
        return START if (await stretch(self._log, self._source)).whole else None

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
        keys, limits = self._log.keys, self._limits
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
                    "expected": self._stored[target],
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
            expected = self._fences[target]
            await self._read_fence(target)
            if self._fences[target] < expected:
                # A failover lost what was carried, and its fence: all behind that is to be read
                # again, not only what is at hand.
                raise RedisUnavailable from None
            return False
        self._fences[target], self._stored[target] = reached, str(reached)
        return True

    async def _read_fence(self, target: int) -> None:
        fence = await self._log.read("HGET", self._log.keys.fences(target), self._source)
        self._stored[target] = text = fence.decode() if fence else ""
        self._fences[target] = Position.parse(text) if text else START


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
