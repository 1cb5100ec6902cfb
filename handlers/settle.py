"""The settler: carries what an event means for other aggregates over to them, in order, in effect
once.

It follows one source log from the lowest fence of any target. All effects of a run on one target
partition are one `settle` call that names the fence it expects; a mismatch makes it read the fence
again. It reads no hot state but the fences. A fence that nothing moves for long is moved by a
`settled` event, so that a restart reads a bounded stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import structlog

from events import codec, types
from events.base import START, Position, Recorded
from events.keys import Keys
from handlers.log import Log, Refusal

logger = structlog.get_logger()

RUN = 100
"""Effects in one call, about: what one script may do before others get their turn."""

STRETCH = 1000
"""Source events that a fence may stay behind without an effect."""

_pack = msgspec.msgpack.Encoder().encode


class Effect(msgspec.Struct, frozen=True):
    """One event's meaning for one aggregate elsewhere."""

    partition: int
    target: str
    event: types.Released | types.WorkerAborted
    position: Position


def effects_of(keys: Keys, recorded: Recorded) -> list[Effect]:
    """What a source event changes elsewhere: a done or abandoned request frees its admission, a
    fault counts."""
    event, position, effects = recorded.event, recorded.position, []
    match event:
        case types.Abandoned():
            payer: int | None = event.user_id
        case (
            types.SubmittedReply()
            | types.Faulted()
            | types.Returned()
            | types.Cancelled()
            | types.Expired()
        ):
            payer = event.user_id if event.done else None
        case _:
            payer = None
    if isinstance(event, types.Faulted):
        aborted = types.WorkerAborted(
            worker_id=event.worker_id,
            generation_id=event.generation_id,
            source=recorded.partition,
            source_position=str(position),
        )
        effects.append(
            Effect(keys.of(event.worker_id), keys.worker(event.worker_id), aborted, position)
        )
    if payer is not None:
        released = types.Released(
            user_id=payer,
            request_id=event.request_id,  # type: ignore[attr-defined]
            source=recorded.partition,
            source_position=str(position),
        )
        effects.append(Effect(keys.of_account(payer), keys.account(payer), released, position))
    return effects


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
        waiting: dict[int, list[Effect]] = {target: [] for target in self._log.keys.all()}
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

    async def _carry(self, target: int, effects: list[Effect]) -> None:
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

    async def _call(self, target: int, effects: list[Effect], reached: Position) -> bool:
        keys, fence = self._log.keys, self._fences[target]
        try:
            await self._log.run(
                "settle",
                target,
                {
                    "fences": keys.fences(target),
                    "due_admission": keys.due(target, "admission"),
                    "targets": [effect.target for effect in effects],
                },
                {
                    "source": self._source,
                    "expected": "" if fence == START else str(fence),
                    "reached": str(reached),
                    "effects": [_pack(_texts(effect.event)) for effect in effects],
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


def _parts(effects: Sequence[Effect]) -> Iterator[list[Effect]]:
    """Cut a run into calls, never between effects of one event: a fence knows positions only."""
    part: list[Effect] = []
    for effect in effects:
        if len(part) >= RUN and effect.position != part[-1].position:
            yield part
            part = []
        part.append(effect)
    if part:
        yield part


def _texts(event: types.Released | types.WorkerAborted) -> list[str]:
    """Flat fields as text only: Lua's unpacker knows strings."""
    return [each if isinstance(each, str) else each.decode() for each in codec.encode(event)]
