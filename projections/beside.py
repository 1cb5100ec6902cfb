"""A read model built anew beside the live one, and put in its place at one moment.

The tables stand in a schema of their own under the names of the live ones. The session that builds
sees that schema first, so the SQL functions that write live rows write here. The build's places in
the logs are checkpoints like all others, under a name of its own (`name_of`).

It follows the live model and never passes it. To switch, it holds the live checkpoints still, folds
up to exactly these, and changes the tables over, in one transaction. So no position moves: readers
find the same rows under the same checkpoint, and the projectors of the live model go on without
noticing. A build that dies anywhere leaves the live model as it was; the next one clears up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import psycopg
import structlog
from psycopg import sql

from archive.archive import Archive, ArchiveUnavailable
from events.base import START, Position
from events.keys import Keys
from projections import ahead, changes, checkpoint, log, migrate, session, shapes
from projections.checkpoint import Checkpoint, Stop
from projections.log import Log, TailLost, asked_for
from projections.models import PROJECTIONS
from projections.node import Nodes
from projections.projection import Projection
from projections.session import Session

_CLOSE_S = 0.5  # a round that took less has caught up, but for what came meanwhile
_HOLD_S = 0.25  # for what is still to be folded while the live projectors wait
_LOCK = "200ms"  # readers wait behind us while we wait for those before us
_QUIET_LOCK = "5s"  # the same for a lock that only maintenance minds
_AGAIN_S = (0.2, 5.0)  # first and longest pause before the next try to switch
_AWAY_S = 0.5  # before another look for Redis

_HOLDERS = """
SELECT DISTINCT format('process %%s (%%s) uses %%s since %%s', a.pid,
    coalesce(nullif(a.application_name, ''), a.usename), c.relname,
    date_trunc('second', a.xact_start))
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_stat_activity a USING (pid)
    JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE l.granted AND a.pid <> pg_backend_pid() AND n.nspname = %s AND c.relname = ANY (%s)
    AND a.xact_start < now() - interval '200 milliseconds'
ORDER BY 1
"""

logger = structlog.get_logger()


class AnotherBuild(Stop):
    """Another process builds this model beside the live one just now."""


class SetBack(Stop):
    """The live model was set back while another was built beside it: run it again."""


class TablesChanged(Stop):
    """The live tables were changed while others were built beside them: run it again."""


class CannotReplace(Stop):
    """The live tables cannot be replaced by others."""


class Built(NamedTuple):
    """A model that was built and switched to."""

    events: int
    seconds: float


def name_of(projection_name: str) -> str:
    """Under which a build's checkpoints are kept while it runs.

    It holds no trimming back: what it needs and the stream has no more, it reads in the archive.
    """
    return f"{projection_name} beside"


def schema_of(projection_name: str) -> str:
    """Where a build's tables are."""
    return f"beside_{projection_name}"


def rebuild_beside(
    projection_name: str,
    *,
    redis_url: str,
    database_url: str,
    partitions: int,
    archive: Archive | None = None,
    tell_s: float = 5.0,
) -> Built:
    """Fold the whole log into new tables beside the live ones, then switch to them.

    tell_s  seconds between lines of the log that say how far it is

    Redis and the archive away are waited out once the build has begun. Raise psycopg.Error,
    RedisError or a Stop where it cannot go on; the live model is as it was then, and to call it
    again is safe.
    """
    keys, nodes = Keys(partitions), Nodes(redis_url)
    with session.connect(database_url, f"beside_{projection_name}") as connected:
        build = _Build(PROJECTIONS[projection_name], keys, connected, tell_s)
        with nodes.connect() as client:
            client.ping()
        build.begin()
        try:
            while True:
                try:
                    with ExitStack() as stack:
                        logs: list[Log] = [
                            stack.enter_context(ahead.connect(nodes, keys, each, archive))
                            for each in keys.all()
                        ]
                        return build.run(logs)
                except (*log.AWAY, ArchiveUnavailable) as error:
                    build.waits(error)
                    time.sleep(_AWAY_S)
        except BaseException:
            with contextlib.suppress(psycopg.Error):  # the next one will
                build.drop()
            raise


class _NotNow(Exception):
    """Something is in the way of the switch that passes."""


class _Build:
    def __init__(
        self, projection: Projection, keys: Keys, connected: Session, tell_s: float
    ) -> None:
        self._projection = projection
        self._partitions = keys.all()
        self._session = connected
        self._name = name_of(projection.name)
        self._schema = schema_of(projection.name)
        self._live = ""  # schema of the live tables
        self._places: dict[int, Position] = dict.fromkeys(self._partitions, START)
        self._events = 0
        self._began = self._told = time.monotonic()
        self._told_events = 0
        self._tell_s = tell_s
        self._waited = -1  # how many events there were when a server was last found away
        self._logger = logger.bind(projection=projection.name)

    # tables

    def begin(self) -> None:
        """Make the tables, after what an earlier build may have left was dropped."""
        if not session.try_lock(self._session, self._name, 0):
            raise AnotherBuild(self._projection.name)
        self._live = self._schema_of_checkpoints()
        try:
            self._make()
        except psycopg.errors.InsufficientPrivilege as error:
            raise CannotReplace(str(error).strip()) from error
        path = sql.SQL(", ").join(map(sql.Identifier, (self._schema, self._live)))
        self._session.execute(sql.SQL("SET search_path TO {}").format(path))

    def _make(self) -> None:
        name = self._projection.name
        with self._session.transaction():
            self._session.execute("SELECT pg_advisory_xact_lock_shared(%s)", (migrate.LOCK,))
            for table in self._projection.tables:
                if others := shapes.dependants(self._session, self._live, table):
                    raise CannotReplace(f"{', '.join(others)} would be left with the old {table}")
            known = self._session.execute(
                "SELECT partition FROM checkpoints WHERE name = %s", (name,)
            ).fetchall()
            if strange := {partition for (partition,) in known} - {*self._partitions}:
                # Their rows stand in the same tables, and this build would not have them.
                raise CannotReplace(
                    f"{name} has partitions {sorted(strange)}, which HORDE_PARTITIONS does not know"
                )
            self._drop()
            self._session.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._schema)))
            for table in self._projection.tables:
                shapes.copy(self._session, table, of=self._live, to=self._schema)
                if not self._alike(table):
                    raise CannotReplace(f"{table} has what a copy of it does not get")
            for partition in self._partitions:
                checkpoint.ensure(self._session, name, partition)  # a row to hold still at the end
                checkpoint.ensure(self._session, self._name, partition)

    def drop(self) -> None:
        """Leave nothing of it."""
        with self._session.transaction():
            self._drop()

    def _drop(self) -> None:
        self._session.execute(
            sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(self._schema))
        )
        self._session.execute("DELETE FROM checkpoints WHERE name = %s", (self._name,))

    def _schema_of_checkpoints(self) -> str:
        ((schema,),) = self._session.execute(
            "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = 'checkpoints'::regclass"
        ).fetchall()
        return str(schema)

    def _check_shapes(self) -> None:
        for table in self._projection.tables:
            if not self._alike(table):
                raise TablesChanged(table)

    def _alike(self, table: str) -> bool:
        live, built = (
            shapes.shape(self._session, schema, table) for schema in (self._live, self._schema)
        )
        return live == built

    # events

    def waits(self, error: Exception) -> None:
        """Say that a server is away, once until it has gone on."""
        if self._waited != self._events:
            self._waited = self._events
            server = "object store" if isinstance(error, ArchiveUnavailable) else "redis"
            reason = str(error) or type(error).__name__
            self._logger.warning("server is away", server=server, reason=reason)

    def run(self, logs: list[Log]) -> Built:
        """Fold and switch; call it again with new clients of Redis where that was away."""
        self._catch_up(logs)
        for table in self._projection.tables:
            # Plans and index-only reads of the new tables are as good as of the old from the first.
            self._session.execute(
                sql.SQL("VACUUM (ANALYZE) {}").format(sql.Identifier(self._schema, table))
            )
        pause, said = _AGAIN_S[0], ""
        while True:
            self._catch_up(logs)
            try:
                self._switch(logs)
            except _NotNow as error:
                if str(error) != said:
                    said = str(error)
                    self._logger.info("switch waits", reason=said)
                time.sleep(pause)
                pause = min(2 * pause, _AGAIN_S[1])
            else:
                break
        built = Built(self._events, time.monotonic() - self._began)
        self._logger.info("switched", events=built.events, seconds=round(built.seconds, 1))
        return built

    def _catch_up(self, logs: list[Log]) -> None:
        """Fold until the live model is close."""
        while True:
            began = time.monotonic()
            for each in logs:
                live = checkpoint.read(self._session, self._projection.name, each.partition)
                for _ in self._fold(each, live.position):
                    self._tell(logs)
            if time.monotonic() - began < _CLOSE_S:
                return
            self._check_shapes()  # said now, not after hours

    def _fold(self, partition_log: Log, until: Position) -> Iterator[None]:
        """Up to and with the event at `until`, a page each time."""
        partition = partition_log.partition
        if until < self._places[partition]:
            raise SetBack(f"{self._projection.name} of partition {partition}")
        while (place := self._places[partition]) < until:
            try:
                page = partition_log.read(place, count=ahead.PAGE, wanted=self._projection.folds)
            except TailLost as error:
                raise SetBack(str(error)) from error
            page = [recorded for recorded in page if recorded.position <= until]
            if not page:  # the log lost what the live model was made of, and that will notice too
                raise SetBack(f"the log of partition {partition} does not reach {until}")
            document = self._projection.fold(asked_for(page))
            after = page[-1].position
            with self._as_told():
                checkpoint.move(
                    self._session,
                    self._name,
                    partition,
                    place,
                    Checkpoint(after, after),
                    self._projection.write if document else "",
                    changes.encode(document) if document else "",
                )
            self._places[partition] = after
            self._events += len(page)
            yield

    @contextmanager
    def _as_told(self) -> Iterator[None]:
        """A write that does not fit is blamed on a change of the tables, where there was one."""
        try:
            yield
        except (psycopg.ProgrammingError, psycopg.IntegrityError) as error:
            if self._session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                try:
                    self._check_shapes()
                except TablesChanged as changed:
                    raise changed from error
            raise

    def _tell(self, logs: list[Log]) -> None:
        """Say each few seconds how fast it goes, and how much there is still to fold."""
        now = time.monotonic()
        if now - self._told < self._tell_s:
            return
        self._logger.info(
            "builds beside",
            events=self._events,
            per_second=round((self._events - self._told_events) / (now - self._told)),
            left=max(0, sum(each.written() for each in logs) - self._events),
        )
        self._told, self._told_events = now, self._events

    # the switch

    def _switch(self, logs: list[Log]) -> None:
        """Put the new tables in place of the old; raise _NotNow where that would make anyone wait.

        Live projectors wait at their checkpoint from the first lock of it, readers from that of the
        tables; both are taken in the order in which a projector takes them.
        """
        before = (dict(self._places), self._events)
        try:
            with self._session.transaction():
                self._prepare()
                self._close_up(logs)
                self._lock(self._live, "ACCESS EXCLUSIVE", _LOCK)
                self._change_over()
        except BaseException as error:
            self._places, self._events = before
            if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                raise _NotNow(self._in_the_way()) from error
            raise

    def _in_the_way(self) -> str:
        """Who has held the live tables for longer than a query of ours takes."""
        tables = list(self._projection.tables)
        others = self._session.execute(_HOLDERS, (self._live, tables)).fetchall()
        return "; ".join(told for (told,) in others) or "the live tables are in use"

    def _prepare(self) -> None:
        """All that can be done while nobody waits."""
        # A running vacuum gives way to one who waits for this lock a second long, not to one who
        # gives up before. It lets everyone read and write.
        for schema in (self._live, self._schema):
            self._lock(schema, "SHARE UPDATE EXCLUSIVE", _QUIET_LOCK)
        row = self._session.execute(
            "SELECT pg_try_advisory_xact_lock_shared(%s)", (migrate.LOCK,)
        ).fetchone()
        if not row or not row[0]:
            raise _NotNow("migrations run")
        self._check_shapes()
        for table in self._projection.tables:
            if others := shapes.dependants(self._session, self._live, table):
                raise _NotNow(f"somebody put {', '.join(others)} on {table}")
            shapes.share(self._session, table, of=self._live, to=self._schema)

    def _close_up(self, logs: list[Log]) -> None:
        """Hold the live model still, and fold up to where it stands."""
        deadline = time.monotonic() + _HOLD_S
        for each in logs:
            for _ in self._fold(each, self._hold(each.partition)):
                if time.monotonic() > deadline:
                    raise _NotNow("the live model moves on too fast")

    def _hold(self, partition: int) -> Position:
        """Where the live model stands, and will until this transaction ends."""
        self._session.execute(f"SET LOCAL lock_timeout = '{_LOCK}'")
        row = self._session.execute(
            "SELECT position_ms, position_seq FROM checkpoints"
            " WHERE name = %s AND partition = %s FOR UPDATE",
            (self._projection.name, partition),
        ).fetchone()
        if row is None:
            raise SetBack(f"{self._projection.name} of partition {partition} has no checkpoint")
        return Position(*row)

    def _lock(self, schema: str, mode: str, timeout: str) -> None:
        tables = [sql.Identifier(schema, table) for table in self._projection.tables]
        self._session.execute(f"SET LOCAL lock_timeout = '{timeout}'")
        self._session.execute(
            sql.SQL("LOCK TABLE {} IN {} MODE").format(
                sql.SQL(", ").join(tables),
                sql.SQL(mode),
            )
        )

    def _change_over(self) -> None:
        for table in self._projection.tables:
            old, new = (sql.Identifier(schema, table) for schema in (self._live, self._schema))
            # Without CASCADE: what somebody put on it since we began must not go with it.
            self._session.execute(sql.SQL("DROP TABLE {}").format(old))
            self._session.execute(
                sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(new, sql.Identifier(self._live))
            )
        self._drop()
