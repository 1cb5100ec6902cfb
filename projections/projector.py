"""One projection of one partition, given its connections: fold, write, announce, in steps."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from events.base import Position, Recorded
from events.keys import CHANNEL_PROJECTED
from projections import changes, checkpoint
from projections.changes import Document
from projections.checkpoint import Checkpoint, CheckpointMoved
from projections.log import Log, TailLost, asked_for
from projections.projection import Projected, Projection, Signal
from projections.session import Session

logger = structlog.get_logger()

_encode = msgspec.json.Encoder().encode
_MOST_PASSED = 500
"""Events without a row until the checkpoint is written all the same: a restart reads them anew."""


class Projector:
    """Applies a partition's log to the tables of a projection.

    Every method may raise psycopg.Error (let go of the session: what it did is whole or not there),
    RedisError (go on with a new client after `resume`), ArchiveUnavailable (likewise) and the
    stops: UnknownType, HistoryLost, Damaged, CheckpointMoved.
    """

    def __init__(self, projection: Projection, log: Log, session: Session) -> None:
        self.projection = projection
        self.partition = log.partition
        self._log = log
        self._session = session
        self._channel = channel(projection.name, log.partition)
        self._stored = Checkpoint(Position(0, 0), Position(0, 0))
        self._announced = Position(0, 0)
        self._read = Position(0, 0)
        self._passed = 0  # events read that changed no row, since the last write

    @property
    def position(self) -> Position:
        """The last event whose rows are written."""
        return self._stored.position

    @property
    def unwritten(self) -> bool:
        """Whether events were passed over that the checkpoint does not show yet."""
        return self._passed > 0

    def resume(self) -> None:
        """Take up work at the checkpoint; call it first, and again with each new Redis client.

        Where the log lost its tail, the rows of this partition are dropped, to be folded anew. What
        was written but perhaps not announced before a crash is announced again.
        """
        name = self.projection.name
        checkpoint.ensure(self._session, name, self.partition)
        self._stored = checkpoint.read(self._session, name, self.partition)
        self._announced = max(self._announced, self._stored.signalled)
        if not self._log.holds(self.position):
            logger.warning(
                "log lost its tail: rebuilding",
                projection=name,
                partition=self.partition,
                position=str(self.position),
            )
            checkpoint.reset(
                self._session, name, self.partition, self.projection.tables, self.position
            )
            self._stored = checkpoint.read(self._session, name, self.partition)
            self._log.publish([(self._channel, _encode(Projected(position=str(self.position))))])
        self._read, self._passed = self.position, 0
        while self._announced < self.position:
            missed = self._log.between(
                self._announced, self.position, count=500, wanted=self.projection.folds
            )
            if not missed:
                break
            batch = asked_for(missed)
            document = self.projection.fold(batch)
            hints = self.projection.hints(str(self.position), document, [])
            self._announce(batch, hints, missed[-1].position)

    def step(self, *, count: int = 500, block_ms: int | None = None) -> int:
        """Apply the next events, at most `count`, in one transaction; return how many there were.

        With `block_ms`, wait so long for the first. Events that change no row cost no transaction:
        the next one, or `rest`, carries the checkpoint past them. Announcing is best effort: where
        Redis fails, the rows stand and RedisError leaves it to `resume`.
        """
        try:
            page = self._log.read(
                self._read, count=count, block_ms=block_ms, wanted=self.projection.folds
            )
        except TailLost:
            self.resume()
            return 0
        if not page:
            return 0
        self._read = page[-1].position
        self._passed += len(page)
        batch = asked_for(page)
        document = self.projection.fold(batch)
        if document or self._passed >= _MOST_PASSED:
            self._write(document, batch)
        return len(page)

    def _write(self, document: Document, batch: Sequence[Recorded]) -> None:
        stored = Checkpoint(self._read, self._announced)
        came_back = checkpoint.move(
            self._session,
            self.projection.name,
            self.partition,
            self.position,
            stored,
            self.projection.write if document else "",
            changes.encode(document) if document else "",
        )
        self._stored, events, self._passed = stored, self._passed, 0
        logger.info(
            "projected",
            projection=self.projection.name,
            partition=self.partition,
            position=str(self._read),
            events=events,
        )
        hints = self.projection.hints(str(self._read), document, came_back)
        self._announce(batch, hints, self._read)

    def rest(self) -> None:
        """Nothing to do just now: note what was passed over and announced, and see that nobody else
        works here.
        """
        if self._passed:
            self._write({}, ())
        elif self._stored.signalled < self._announced:
            stored = Checkpoint(self.position, self._announced)
            checkpoint.move(
                self._session, self.projection.name, self.partition, self.position, stored
            )
            self._stored = stored
        else:
            now = checkpoint.read(self._session, self.projection.name, self.partition)
            if now.position != self.position:
                raise CheckpointMoved(f"{self.projection.name} of partition {self.partition}")

    def _announce(self, batch: Sequence[Recorded], projected: Projected, until: Position) -> None:
        """Say what can be read now. Behind a rebuild, old events are not announced again."""
        signals: list[Signal] = []
        if self.projection.signals is not None:
            fresh = [recorded for recorded in batch if recorded.position > self._announced]
            signals = self.projection.signals(fresh, self._log)
        self._log.publish([(self._channel, _encode(projected)), *signals])
        self._announced = max(self._announced, until)


def channel(name: str, partition: int) -> str:
    """Where the commits of a projection's partition are announced."""
    return f"{CHANNEL_PROJECTED}{name}:{partition}"


def step(projection: Projection, log: Log, session: Session, *, count: int = 500) -> int:
    """Apply the next batch of one partition from its checkpoint; return how many events it had.

    For those who drive a projection by hand. Raises as `Projector` does.
    """
    projector = Projector(projection, log, session)
    projector.resume()
    events = projector.step(count=count)
    projector.rest()  # or the next call would announce this batch again
    return events
