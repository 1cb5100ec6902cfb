"""The process of a projection: a thread for each partition stands by, takes it and projects.

A thread has a Postgres session of its own, which holds the partition's advisory lock and writes its
rows, and a Redis client of its own. Losing either is waited out, and so is an archive that is away
when it is needed; a stop (an unknown event, lost history, a moved checkpoint) or a bug ends the
whole process, so that its supervisor sees it.
"""

from __future__ import annotations

import threading
import time

import psycopg
import structlog

from archive.archive import Archive, ArchiveUnavailable
from events.keys import Keys
from projections import log, session
from projections.log import Log
from projections.models import PROJECTIONS
from projections.node import Nodes
from projections.projection import Projection
from projections.projector import Projector, step
from projections.rebuild import rebuild

_BLOCK_S = 0.5  # one blocking read: how late a stop, a lost lock or a rebuild is noticed at worst
_UNWRITTEN_S = 0.03  # the same while the checkpoint is behind: readers may wait for it
_GATHER_S = 0.004  # of pause for each event of the last transaction, up to the setting
_POLL_S = 0.25  # how often a stand-by looks at its lock
_PATIENCE_S = 1.5  # how long a lock stays free before someone takes it beyond its share
_BACKOFF_S = (0.1, 2.0)  # first and longest pause before connecting again

logger = structlog.get_logger()

__all__ = ["rebuild", "run", "step"]


def run(
    projection_name: str,
    *,
    redis_url: str,
    database_url: str,
    partitions: int,
    archive: Archive | None = None,
    take: int | None = None,
    batch: int = 500,
    pause_ms: float = 24,
    stop: threading.Event | None = None,
) -> None:
    """Project until `stop` is set; raise what ended a thread, which is never a lost connection.

    partitions  of the deployment
    archive     of its log
    take        how many of them this process takes while others may want some; one that stays free
                for 1.5 s is taken beyond that, and given back when another process has room
    batch       most events in one transaction
    pause_ms    longest pause between two transactions of a busy partition
    """
    process = _Process(
        PROJECTIONS[projection_name],
        redis_url=redis_url,
        database_url=database_url,
        keys=Keys(partitions),
        archive=archive,
        share=_Share(partitions if take is None else take),
        batch=batch,
        pause_s=pause_ms / 1000,
        stop=stop or threading.Event(),
    )
    process.run()


class _Share:
    """How many partitions this process has, and how many it may have while others want some."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, *, beyond: bool) -> bool:
        with self._lock:
            if self._taken >= self._most and not beyond:
                return False
            self._taken += 1
            return True

    def drop(self) -> None:
        with self._lock:
            self._taken -= 1

    def has_room(self) -> bool:
        with self._lock:
            return self._taken < self._most

    def is_over(self) -> bool:
        with self._lock:
            return self._taken > self._most

    def drop_surplus(self) -> bool:
        """Drop one if there are too many: True for as many callers as there are too many."""
        with self._lock:
            over = self._taken > self._most
            self._taken -= over
            return over


class _Process:
    """What the threads of one process share."""

    def __init__(
        self,
        projection: Projection,
        *,
        redis_url: str,
        database_url: str,
        keys: Keys,
        archive: Archive | None,
        share: _Share,
        batch: int,
        pause_s: float,
        stop: threading.Event,
    ) -> None:
        self.projection = projection
        self.nodes = Nodes(redis_url)
        self.database_url = database_url
        self.keys = keys
        self.archive = archive
        self.share = share
        self.batch = batch
        self.pause_s = pause_s
        self._asked_to_stop = stop
        self._ended = threading.Event()  # ours, so that one failing thread stops the others
        self._failure: BaseException | None = None

    def run(self) -> None:
        threads = [
            threading.Thread(
                target=self._watch, args=(partition,), name=f"partition {partition}", daemon=True
            )
            for partition in self.keys.all()
        ]
        for thread in threads:
            thread.start()
        while not self._ended.is_set() and not self._asked_to_stop.wait(0.1):
            pass
        self._ended.set()
        deadline = time.monotonic() + 2 * _BLOCK_S + 1
        for thread in threads:
            # A thread in a call to a server that hangs is left behind; its work is whole or not
            # there.
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._failure is not None:
            raise self._failure

    def stopping(self) -> bool:
        return self._ended.is_set() or self._asked_to_stop.is_set()

    def pause(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def _watch(self, partition: int) -> None:
        try:
            _Partition(self, partition).run()
        except BaseException as error:  # noqa: BLE001 - carried to the main thread, which raises it
            if self._failure is None:
                self._failure = error
            self._ended.set()


class _Connection:
    """Whether a server answers; logs each change once and says how long to wait."""

    def __init__(self, server: str, projection: str, partition: int) -> None:
        self._logger = logger.bind(server=server, projection=projection, partition=partition)
        self._pause = 0.0

    def lost(self, error: Exception) -> float:
        if not self._pause:
            self._logger.warning("server is away", reason=str(error) or type(error).__name__)
        self._pause = min(max(2 * self._pause, _BACKOFF_S[0]), _BACKOFF_S[1])
        return self._pause

    def found(self) -> None:
        if self._pause:
            self._logger.info("server is back")
        self._pause = 0.0


class _Partition:
    """One partition's thread: stand by, take the lock, project while it is ours."""

    def __init__(self, process: _Process, partition: int) -> None:
        self._process = process
        self._name = process.projection.name
        self._partition = partition
        self._postgres = _Connection("postgres", self._name, partition)
        self._redis = _Connection("redis", self._name, partition)
        self._archive = _Connection("archive", self._name, partition)

    def run(self) -> None:
        while not self._process.stopping():
            try:
                with session.connect(
                    self._process.database_url, f"projector_{self._name}"
                ) as connected:
                    self._postgres.found()
                    self._serve(connected)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                # The lock went with the session. Everything is read again from the checkpoint.
                self._process.pause(self._postgres.lost(error))

    def _serve(self, connected: session.Session) -> None:
        """Take the lock and project, again and again: shares may move between processes."""
        while not self._process.stopping():
            if not self._stand_by(connected):
                return
            log_line = logger.bind(projection=self._name, partition=self._partition)
            log_line.info("partition taken")
            given_back = False
            try:
                given_back = self._project(connected)
            finally:
                if not given_back:
                    self._process.share.drop()
            if given_back:
                session.unlock(connected, self._name, self._partition)
                log_line.info("partition given back")
                self._process.pause(_PATIENCE_S)

    def _stand_by(self, connected: session.Session) -> bool:
        """Wait until the lock is ours; False when the process stops first.

        With room for it the lock is tried each time, and others are told that there is room.
        Without, it is tried once it has been free for a while: better beyond our share than
        nobody's.
        """
        asking = False
        free_since: float | None = None
        share = self._process.share
        while not self._process.stopping():
            room = share.has_room()
            if not room:
                free = session.is_free(connected, self._name, self._partition)
                free_since = (free_since or time.monotonic()) if free else None
            patient = free_since is not None and time.monotonic() - free_since > _PATIENCE_S
            if (room or patient) and share.take(beyond=patient):
                if session.try_lock(connected, self._name, self._partition):
                    if asking:
                        session.ask_no_more(connected, self._name)
                    return True
                share.drop()
            if room != asking:
                if room:
                    session.ask(connected, self._name)
                else:
                    session.ask_no_more(connected, self._name)
                asking = room
            self._process.pause(_POLL_S)
        return False

    def _project(self, connected: session.Session) -> bool:
        """Project until the process stops or (True) our surplus is to be given back."""
        while not self._process.stopping():
            try:
                events = self._process.keys.events(self._partition)
                with self._process.nodes.connect(events, block_s=_BLOCK_S) as client:
                    reader = Log(client, self._process.keys, self._partition, self._process.archive)
                    projector = Projector(self._process.projection, reader, connected)
                    projector.resume()
                    self._redis.found()
                    return self._follow(projector, connected)
            except log.AWAY as error:
                self._process.pause(self._redis.lost(error))
            except ArchiveUnavailable as error:
                self._process.pause(self._archive.lost(error))
            # Meanwhile the session may have died, and the lock with it.
            connected.execute("SELECT 1")
        return False

    def _follow(self, projector: Projector, connected: session.Session) -> bool:
        """Step by step; True once this partition was dropped from our share."""
        process = self._process
        earliest = looked = time.monotonic()
        while not process.stopping():
            process.pause(max(0.0, earliest - time.monotonic()))
            block_s = _UNWRITTEN_S if projector.unwritten else _BLOCK_S
            events = projector.step(count=process.batch, block_ms=int(block_s * 1000))
            self._archive.found()  # it was, if it was needed
            now = time.monotonic()
            if not events:
                projector.rest()
            elif events < process.batch and process.projection.pause_s:
                earliest = now + process.projection.pause_s
            elif events < process.batch and not projector.unwritten:
                # Waking for each event costs more than it brings, here and wherever its commit is
                # heard: let the next few gather, the more the more came. After a rest this moment
                # has long passed, so the first event goes at once.
                earliest = now + min(events * _GATHER_S, process.pause_s)
            if process.share.is_over() and now - looked > _PATIENCE_S:
                looked = now
                if session.is_asked(connected, self._name) and process.share.drop_surplus():
                    return True
        projector.rest()
        return False
