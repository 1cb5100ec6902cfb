"""What each subcommand does: connect, build the parts, call a handler or a loop."""

import asyncio
import os
import signal
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog

from api.health import MayEvict, redis_check
from archive.archive import ArchiveUnavailable, Damaged, HistoryLost
from archive.bucket import ArchiveMissing
from events.base import KUDOS
from events.ledger import Stored
from handlers import users
from handlers.account_changes import (
    NONE_MAY_WAIT,
    Change,
    change_account,
    check_name,
    rekey_account,
)
from handlers.accounts import Kind, open_account, open_anonymous, people
from handlers.addresses import spelled
from handlers.errors import (
    ChatImageStorageUnavailable,
    CorruptPrompt,
    OutOfMemory,
    Rebuilding,
    RedisUnavailable,
)
from handlers.grants import grant
from handlers.history import history
from handlers.janitor import Janitor
from handlers.limits import Limits
from handlers.log import Log
from handlers.modes import read_modes, set_modes
from handlers.profiles import Profile, read_profile, set_profile
from handlers.rebuild import Rebuilt
from handlers.timeouts import Timeout, Timeouts
from handlers.verify import verify as compare
from hordechat import garbage
from hordechat.duty import Duty
from hordechat.export import FORMS, Form, chosen, heading
from hordechat.moments import Moment, span
from hordechat.opening import (
    CannotOpen,
    Forgotten,
    archive_of,
    limits_of,
    open_log,
    out_of_reach,
    store_of,
)
from hordechat.replicas import warn_unless_awaited
from hordechat.settings import Settings
from lua.link import Tail, Unavailable

logger = structlog.get_logger()

T = TypeVar("T")

RETRY_SECONDS = 0.5
OPERATOR_SECONDS = 30.0
WORKED_SECONDS = 15.0
"""What lasted so long did not wait for an answer: a store that hangs is given up before."""


def _with_log(
    settings: Settings, work: Callable[[Log], Awaitable[T]], *, forgotten: bool = False
) -> T:
    async def run() -> T:
        # An operator waits longer than a request does, and a fold is much quicker in order.
        log = await open_log(settings, timeout=OPERATOR_SECONDS, ordered=True, forgotten=forgotten)
        try:
            return await work(log)
        finally:
            await log.close()

    return asyncio.run(run())


def web(settings: Settings, *, host: str, port: int, workers: int) -> None:
    """Serve HTTP until SIGTERM."""
    from handlers import moderation, reference
    from hordechat.server import serve

    # Its processes read them themselves: what is bad in them is said here, once and in a sentence.
    with _told_by_name():
        reference.opened(settings.text_model_reference)
        moderation.opened(settings.replacement_filters)
    if url := out_of_reach(settings):
        logger.warning("store_out_of_reach", url=url, host=host, setting="S3_PUBLIC_ENDPOINT_URL")
    serve(settings, host=host, port=port, workers=workers)


def migrate(settings: Settings) -> None:
    """Bring Postgres to this version's tables, and make sure that the anonymous account exists.

    Where Redis lost what it held that account is left to the rebuild: processes wait for it.
    """
    from projections.migrate import migrate as migrate_database

    migrate_database(settings.database_url)
    if settings.redis_url:
        try:
            _with_log(settings, _first)
        except Forgotten as error:
            logger.error("redis_forgot", reason=str(error))  # noqa: TRY400 - its sentence is all


async def _first(log: Log) -> None:
    """What a log needs before anything runs on it."""
    try:
        await redis_check(log)()
    except MayEvict as error:
        raise CannotOpen(
            f"Redis may throw away what was acknowledged: its {error}. Set it, and start again."
        ) from error
    await warn_unless_awaited(log)
    await open_anonymous(log)


def projector(settings: Settings, *, name: str, take: int | None) -> None:
    """Keep one read model up to date until SIGTERM."""
    from projections.runner import run

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    garbage.settle()
    run(
        name,
        redis_url=settings.redis_url,
        database_url=settings.database_url,
        partitions=settings.partitions,
        archive=archive_of(settings),
        take=take,
        batch=settings.projector_batch,
        pause_ms=round(settings.projector_pause_ms),
        stop=stop,
    )


def settler(settings: Settings, *, take: int | None) -> None:
    """Settle until SIGTERM."""
    from hordechat.settling import settle

    async def work(log: Log, partition: int) -> None:
        tail = Tail(settings.redis_url, log.redis)
        try:
            await _again(
                lambda: settle(log, limits_of(settings), tail, partition), "settler", partition
            )
        finally:
            await tail.close()

    _on_duty(settings, "settler", take, work)


def janitor(settings: Settings, *, take: int | None) -> None:
    """Clean up until SIGTERM."""

    store = store_of(settings)

    async def work(log: Log, partition: int) -> None:
        cleaner = Janitor(log, limits_of(settings), partition, store)

        async def sweep() -> None:
            while True:
                await cleaner.sweep()
                await asyncio.sleep(settings.janitor_seconds)

        try:
            await _again(sweep, "janitor", partition)
        finally:
            await cleaner.close()

    _on_duty(settings, "janitor", take, work)


async def _archives_nothing(stop: asyncio.Event) -> None:
    logger.warning("archives_nothing", reason="S3_ENDPOINT_URL is not set")
    await stop.wait()


def archiver(settings: Settings, *, take: int | None) -> None:
    """Archive and trim until SIGTERM."""
    from handlers.archiver import Archiver, Bounds
    from handlers.threads import Threads
    from hordechat.archiving import AT_ONCE, DATABASE_SECONDS, Checkpoints, LogMemory, archive
    from hordechat.snapshotting import Snapshots
    from projections.database import Database

    if not settings.s3_endpoint_url:
        asyncio.run(_until_told(_archives_nothing))
        return
    bounds = Bounds(
        settings.segment_bytes, settings.segment_seconds, settings.log_retention_seconds
    )
    database = Database(settings.database_url, timeout=DATABASE_SECONDS, connections=AT_ONCE)
    threads = Threads(2 * AT_ONCE, waiting=settings.partitions, name="archive")
    turns, folding = asyncio.Semaphore(AT_ONCE), asyncio.Lock()
    memories: list[LogMemory] = []

    async def work(log: Log, partition: int) -> None:
        if not memories:
            every = settings.archiver_seconds
            memories.append(LogMemory(log, settings.log_memory_bytes, every=every))
        assert log.archive is not None  # noqa: S101 - there is a store
        await archive(
            Archiver(log, log.archive, Checkpoints(database), threads, bounds, partition),
            Snapshots(log, log.archive, partition, settings.snapshot_events, folding),
            memories[0],
            turns,
            pause=settings.archiver_seconds,
            partition=partition,
        )

    try:
        _on_duty(settings, "archiver", take, work)
    finally:
        threads.close()


def archive_status(settings: Settings, *, as_json: bool) -> None:
    """Print how far everyone is with each partition's log."""
    import msgspec

    from handlers.stream import memory
    from hordechat.archive_status import Status, status, told
    from hordechat.archiving import Checkpoints
    from projections.database import Database, DatabaseUnavailable

    async def work(opened: Log) -> list[Status]:
        database = Database(settings.database_url, timeout=OPERATOR_SECONDS)
        checkpoints, retention = Checkpoints(database), settings.log_retention_seconds
        try:
            if await memory(opened) > settings.log_memory_bytes:
                retention = 0  # the archiver gives it up then
            return [
                await status(opened, opened.archive, checkpoints, each, retention)
                for each in opened.keys.all()
            ]
        except DatabaseUnavailable as error:
            raise CannotOpen(f"Postgres does not answer: {error}") from error
        finally:
            await database.close()

    found = _with_log(settings, work, forgotten=True)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    for each in found:
        for line in told(each):
            print(line)


def archive_check(settings: Settings, *, as_json: bool) -> bool:
    """Read all that is archived, print what is not as it should be; whether all is well."""
    import msgspec

    from archive.archive import WrongArchive
    from handlers.archive_check import Report, check

    async def work(opened: Log) -> list[Report]:
        if opened.archive is None:
            raise CannotOpen("There is no archive: S3_ENDPOINT_URL is not set.")
        try:
            await asyncio.to_thread(opened.archive.check)
        except WrongArchive as error:
            raise CannotOpen(str(error)) from error
        return [await check(opened, opened.archive, each) for each in opened.keys.all()]

    found = _with_log(settings, work, forgotten=True)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        for each in found:
            print(
                f"partition {each.partition}: {each.archived} events in {each.segments} segments, "
                f"{each.in_stream} in Redis, {each.in_both} of them in both, {each.ever} ever"
            )
            for difference in each.differences:
                print(f"  {difference}")
    return not any(each.differences for each in found)


_PASSES = (RedisUnavailable, Rebuilding, OutOfMemory, Unavailable, ArchiveUnavailable)


async def _again(work: Callable[[], Awaitable[None]], task: str, partition: int) -> None:
    """Run work that never ends; begin anew where Redis was away, or the archive when it was needed.

    Says so once for each absence.
    """
    loop, away = asyncio.get_running_loop(), False
    while True:
        began = loop.time()
        try:
            await work()
        except _PASSES as error:
            away = away and loop.time() - began < WORKED_SECONDS
            if not away:
                line = logger.bind(task=task, partition=partition, reason=str(error))
                if isinstance(error, ArchiveUnavailable):
                    line.warning("archive_away")
                else:
                    line.warning("waits_for_redis")
            away = True
            await asyncio.sleep(RETRY_SECONDS)


def _on_duty(
    settings: Settings, task: str, take: int | None, work: Callable[[Log, int], Awaitable[None]]
) -> None:
    async def run(stop: asyncio.Event) -> None:
        log = await _wait_for_log(settings, stop)
        if log is None:
            return
        try:
            duty = Duty(
                settings.database_url,
                task,
                log.keys.all(),
                take,
                lambda partition: work(log, partition),
            )
            await duty.run(stop)
        finally:
            await log.close()

    garbage.settle()
    asyncio.run(_until_told(run))


async def _until_told(run: Callable[[asyncio.Event], Awaitable[object]]) -> None:
    """Run what ends when the event is set: by SIGTERM or Ctrl-C."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(stop)


async def _wait_for_log(settings: Settings, stop: asyncio.Event) -> Log | None:
    """The log, once Redis answers and has what it held; None where we are told to stop before."""
    forgotten = False
    while not stop.is_set():
        try:
            return await open_log(settings)
        except (RedisUnavailable, Unavailable) as error:
            logger.warning("waits_for_redis", reason=str(error))
        except Forgotten as error:
            if not forgotten:
                logger.error("redis_forgot", reason=str(error))  # noqa: TRY400 - its sentence is all
            forgotten = True
        await asyncio.sleep(RETRY_SECONDS)
    return None


def rebuild(settings: Settings, *, what: str) -> None:
    """Fold a read model from the log again."""
    from projections.rebuild import rebuild as rebuild_model

    rebuild_model(
        what,
        redis_url=settings.redis_url,
        database_url=settings.database_url,
        partitions=settings.partitions,
        archive=archive_of(settings),
    )


def rebuild_state(settings: Settings, *, as_json: bool) -> None:
    """Fold hot state from snapshot, archive and stream again; print what came of it."""
    import msgspec

    from handlers.rebuild import LostMeanwhile, TakenUp, take_up
    from handlers.rebuild import rebuild_state as rebuild_hot_state
    from hordechat import rebuilt
    from projections.known import Known

    async def work(log: Log) -> tuple[list[Rebuilt], TakenUp]:
        if log.archive is not None:
            await asyncio.to_thread(log.archive.check)
        found = await rebuild_hot_state(log, Known(settings.database_url))
        await open_anonymous(log)  # it may be of the lost ones
        return found, await take_up(log, limits_of(settings))

    with _alone(settings, "rebuild state"), _archive_told():
        try:
            found, taken_up = _with_log(settings, work, forgotten=True)
        except LostMeanwhile as error:
            raise CannotOpen(f"{error}.") from error
    if as_json:
        print(msgspec.json.encode(rebuilt.record(found, taken_up)).decode())
    else:
        for line in rebuilt.told(found, taken_up):
            print(line)


@contextmanager
def _alone(settings: Settings, what: str) -> Iterator[None]:
    """Let nobody else do the same at the same time. Raise CannotOpen where somebody does."""
    from projections import session

    with session.connect(settings.database_url, what) as ours:
        if not session.try_lock(ours, what, 0):
            raise CannotOpen(f"Another `hordechat {what}` is at work.")
        yield


def archive_snapshot(settings: Settings) -> None:
    """Take a snapshot of each partition's state; print which."""
    from handlers.snapshots import take
    from hordechat import scratch

    async def work(log: Log) -> None:
        if log.archive is None:
            raise CannotOpen("No archive: S3_ENDPOINT_URL is not set.")
        async with scratch.beside(log, "snapshot") as folded:
            for partition in log.keys.all():
                taken = await take(log.archive, folded, partition)
                what = "nothing was archived since the last"
                if taken is not None:
                    what = f"snapshot of {taken.events} events, at {taken.position}"
                print(f"partition {partition}: {what}")

    with _archive_told():
        _with_log(settings, work)


@contextmanager
def _archive_told() -> Iterator[None]:
    """Say in a sentence what is wrong with the archive."""
    from archive.archive import WrongArchive

    try:
        yield
    except WrongArchive as error:
        raise CannotOpen(str(error)) from error
    except ArchiveUnavailable as error:
        raise CannotOpen(f"The archive does not answer: {error}") from error
    except (Damaged, ArchiveMissing, HistoryLost) as error:
        raise CannotOpen(f"The archive cannot be read: {error}") from error


def rebuild_beside(settings: Settings, *, name: str) -> None:
    """Build a read model beside the live one, and switch to it."""
    from projections.beside import rebuild_beside as build

    # SIGTERM unwinds us as Ctrl-C does, so that the tables do not stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    built = build(
        name,
        redis_url=settings.redis_url,
        database_url=settings.database_url,
        partitions=settings.partitions,
        archive=archive_of(settings),
    )
    print(f"{name}: {built.events} events folded in {built.seconds:.1f} s, and switched")


def verify(settings: Settings, *, whole: bool) -> bool:
    """Compare hot state with the fold of its log; print every difference.

    whole  fold from the first event, not from the newest snapshot
    """
    from hordechat import scratch

    # SIGTERM unwinds us as Ctrl-C does, or the scratch server would be left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with scratch.server("verify") as url:

        async def work(log: Log) -> list[Any]:
            folded = scratch.on(url, log)
            try:
                return await compare(log, folded, whole=whole)
            finally:
                await folded.close()

        with _archive_told():
            differences = _with_log(settings, work)
    for difference in differences:
        print(difference)
    print("no difference" if not differences else f"{len(differences)} differences")
    return not differences


class _Enough(Exception):
    """Nobody reads on."""


def log(
    settings: Settings,
    *,
    since: Moment | None,
    until: Moment | None,
    request_id: str | None,
    types: Sequence[str],
    partition: int | None,
    form: Form,
) -> None:
    """Print events, oldest first. Raise Backwards where `since` is later than `until`."""
    words, named = frozenset(word.encode() for word in types), (request_id or "").encode()
    write, out = FORMS[form], sys.stdout.buffer

    def put(lines: bytes) -> None:
        try:
            out.write(lines)
            out.flush()
        except OSError as error:
            # What could not be written must not be tried again at our end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):  # whoever reads it has enough
                raise _Enough from error
            raise CannotOpen(f"The events cannot be written: {error.strerror}.") from error

    async def work(opened: Log) -> None:
        partitions = list(opened.keys.all()) if partition is None else [partition]
        begins, ends = span(since, until, await opened.now_ms(partitions[0]))
        put(heading(form))
        async with aclosing(history(opened, partitions, begins, ends)) as pages:
            async for page in pages:
                put(write(chosen(page, types=words, request_id=named)))

    with suppress(_Enough):
        _with_log(settings, work, forgotten=True)  # what is archived can be read all the same


def user_create(
    settings: Settings,
    *,
    name: str,
    kudos: int,
    trusted: bool,
    moderator: bool,
    flagged: bool = False,
    roles: Sequence[str] = (),
    kind: Kind = "registered",
    concurrency: int | None = None,
) -> dict[str, object]:
    """Open an account with so much, 10^-4 kudos; the answer is the only place where its key ever
    stands."""

    async def work(opened: Log) -> tuple[int, str]:
        return await open_account(
            opened,
            settings.secret,
            name,
            kudos=kudos,
            trusted=trusted,
            moderator=moderator,
            flagged=flagged,
            kind=kind,
            roles=roles,
            concurrency=0 if concurrency is None else concurrency or NONE_MAY_WAIT,
        )

    user_id, api_key = _with_log(settings, work)
    return {"id": user_id, "username": f"{name}#{user_id}", "api_key": api_key}


def user_list(settings: Settings) -> list[dict[str, object]]:
    """Every account that is not deleted."""
    limits = limits_of(settings)
    return [_shown_user(user, limits) for user in _with_log(settings, users.every_user)]


def user_show(settings: Settings, *, user_id: int) -> dict[str, object]:
    """All that is known of an account."""
    return _with_log(settings, lambda opened: _told(opened, user_id, limits_of(settings)))


def user_set(
    settings: Settings,
    *,
    user_id: int,
    name: str | None,
    granted: Sequence[str],
    revoked: Sequence[str],
    contact: str | None,
    admin_comment: str | None,
    **values: Any,
) -> dict[str, object]:
    """Change an account; return all that is known of it then."""
    monthly, multiplier = values.pop("monthly_kudos"), values.pop("usage_multiplier")
    change = Change(
        name=None if name is None else check_name(name),
        roles=dict.fromkeys(revoked, False) | dict.fromkeys(granted, True),
        monthly_kudos=None if monthly is None else monthly * KUDOS,
        usage_multiplier=None if multiplier is None else round(multiplier * 1000),
        **values,
    )
    profile = Profile(contact, admin_comment)

    async def work(opened: Log) -> dict[str, object]:
        await users.find(opened, user_id)
        if profile != Profile():
            await set_profile(opened, user_id, profile)
        if change != Change():
            await change_account(opened, user_id, change)
        return await _told(opened, user_id, limits_of(settings))

    return _with_log(settings, work)


def user_reset_key(settings: Settings, *, user_id: int) -> dict[str, object]:
    """Give an account another API key; the answer is the only place where it ever stands."""

    async def work(opened: Log) -> dict[str, object]:
        username = (await users.find(opened, user_id)).username
        api_key = await rekey_account(opened, settings.secret, user_id)
        return {"id": user_id, "username": username, "api_key": api_key}

    return _with_log(settings, work)


def user_delete(settings: Settings, *, user_id: int) -> dict[str, object]:
    """Delete an account and its workers; return which it was."""
    from handlers.leaving import leave
    from handlers.worker_messages import Messages
    from projections import accounts
    from projections.database import Database, DatabaseUnavailable

    async def work(opened: Log) -> dict[str, object]:
        user = await users.find(opened, user_id)
        database = Database(settings.database_url, timeout=OPERATOR_SECONDS)
        try:
            workers = await accounts.worker_ids(database, user_id)
        except DatabaseUnavailable as error:
            raise CannotOpen(f"Postgres does not answer: {error}") from error
        finally:
            await database.close()
        await leave(opened, Messages(opened), user, workers)
        return {"deleted_id": user_id, "deleted_name": user.username}

    return _with_log(settings, work)


async def _told(opened: Log, user_id: int, limits: Limits) -> dict[str, object]:
    user = await users.find(opened, user_id)
    profile = await read_profile(opened, user_id)
    return {
        **_shown_user(user, limits),
        "escrow": user.escrow / KUDOS,
        "worker_invited": user.worker_invited,
        "public_workers": user.public_workers,
        "monthly_kudos": user.monthly_kudos / KUDOS,
        "usage_multiplier": user.usage_multiplier / 1000,
        "suspicious": user.suspicious,
        "proxy_passkey": user.passkey,
        "shared_keys": await users.shared_keys_of(opened, user_id),
        **profile._asdict(),
    }


def _shown_user(user: users.User, limits: Limits) -> dict[str, object]:
    return {
        "id": user.id,
        "username": user.username,
        "kind": user.kind,
        "roles": sorted(user.roles),
        "kudos": user.kudos / KUDOS,
        "concurrency": limits.jobs_of(user.concurrency, anonymous=user.anonymous),
        "created": datetime.fromtimestamp(user.created_ms / 1000, UTC).isoformat(
            timespec="seconds"
        ),
    }


def kudos_grant(
    settings: Settings, *, user_id: int, amount: int, grant_id: str | None = None
) -> dict[str, object]:
    """Grant an account so much, 10^-4 kudos; another grant with the same id changes nothing."""

    async def work(opened: Log) -> dict[str, object]:
        made = await grant(opened, user_id, amount, grant_id=grant_id or str(uuid.uuid4()))
        username = (await people(opened, [user_id]))[user_id].username
        return {
            "id": user_id,
            "username": username,
            "granted": 0.0 if made.repeated else amount / KUDOS,
            "kudos": made.kudos / KUDOS,
        }

    return _with_log(settings, work)


def ledger_show(settings: Settings, *, user_id: int, limit: int, as_json: bool) -> bool:
    """Print the newest lines of an account's ledger; False where there is no such account."""
    import msgspec

    from hordechat import ledger
    from projections import accounts
    from projections.database import Database, DatabaseUnavailable

    async def read() -> list[accounts.Entry] | None:
        database = Database(settings.database_url, timeout=OPERATOR_SECONDS)
        try:
            if await accounts.account(database, user_id) is None:
                return None
            return await accounts.history(database, user_id, limit)
        except DatabaseUnavailable as error:
            raise CannotOpen(f"Postgres does not answer: {error}") from error
        finally:
            await database.close()

    found = asyncio.run(read())
    if found is None:
        return False
    lines = [ledger.Line.of(entry) for entry in found]
    for line in map(msgspec.json.encode, lines) if as_json else ledger.table(lines):
        print(line.decode() if isinstance(line, bytes) else line)
    return True


def ledger_check(settings: Settings) -> bool:
    """Check the books; print what they come to and every difference."""
    from handlers.ledger import check
    from hordechat import ledger
    from projections import accounts

    def stored(partition: int) -> Awaitable[Stored]:
        return accounts.stored(settings.database_url, partition)

    report = _with_log(settings, lambda opened: check(opened, stored))
    for line in ledger.told(report):
        print(line)
    return not report.differences


def objects_check(settings: Settings, *, as_json: bool, delete: bool) -> bool:
    """Check what is in the object store; print what is wrong, and what there is."""
    import msgspec

    from archive.s3 import reason
    from handlers.accounted import Orphan, Tally, check
    from handlers.deletes import queue_delete
    from hordechat import objects

    store = store_of(settings)
    if store is None:
        raise CannotOpen("No object store: S3_ENDPOINT_URL is not set.")

    async def work(opened: Log) -> tuple[Tally, int | None]:
        tally, queued, limits = Tally(), 0, limits_of(settings)
        async for found in check(opened, store, tally):
            told = objects.record(found) if as_json else objects.told(found)
            print(msgspec.json.encode(told).decode() if as_json else told)
            if delete and isinstance(found, Orphan):
                queued += await queue_delete(opened, limits, found.key)
        return tally, queued if delete else None

    try:
        tally, queued = _with_log(settings, work)
    except ChatImageStorageUnavailable as error:
        why = reason(error.__cause__)
        raise CannotOpen(f"The object store refuses, or does not answer: {why}") from error
    finally:
        store.close()
    if as_json:
        print(msgspec.json.encode(objects.counts(tally, queued)).decode())
    else:
        for line in objects.summary(tally, queued):
            print(line)
    return not (tally.orphans or tally.missing)


def timeout_set(settings: Settings, *, address: str, minutes: int) -> dict[str, object]:
    """Put an address or a network into timeout."""
    timeout = _with_log(settings, lambda opened: Timeouts(opened).set(address, minutes))
    return _shown_timeout(timeout)


def timeout_list(settings: Settings) -> list[dict[str, object]]:
    """Every timeout."""
    listed = _with_log(settings, lambda opened: Timeouts(opened).list())
    return [_shown_timeout(each) for each in listed]


def timeout_clear(settings: Settings, *, address: str) -> bool:
    """End the timeout of an address or a network; whether there was one."""
    return _with_log(settings, lambda opened: Timeouts(opened).clear(address))


def _shown_timeout(timeout: Timeout) -> dict[str, object]:
    return {"ipaddr": spelled(timeout.network), "seconds": timeout.left}


def mode(settings: Settings, *, maintenance: bool | None) -> dict[str, bool]:
    """Switch maintenance, where asked to; return the modes as they are then."""

    async def work(opened: Log) -> dict[str, bool]:
        if maintenance is not None:
            await set_modes(opened, limits_of(settings), maintenance=maintenance)
        return (await read_modes(opened))._asdict()

    return _with_log(settings, work)


@contextmanager
def _told_by_name() -> Iterator[None]:
    """Say of a file that cannot be used which one it is, and why."""
    from handlers.files import Unreadable

    try:
        yield
    except Unreadable as error:
        raise CannotOpen(str(error)) from error


def check_files(settings: Settings) -> None:
    """Raise CannotOpen for a file of the operator's that the web process could not start with."""
    from handlers import moderation, reference

    with _told_by_name():
        reference.opened(settings.text_model_reference)
        moderation.opened(settings.replacement_filters)


def check_filters(path: str, *, text: str | None) -> None:
    """Print the replacement filters in a file, one line each, and what they make of `text`."""
    from handlers import moderation

    with _told_by_name():
        filters = moderation.opened(path)()
    for index, rule in enumerate(filters):
        described = " ".join(["", *rule.description.split()])  # on the same line, whatever it is
        print(f"{index}: {rule.pattern.pattern!r} -> {rule.replacement!r}{described}")
    if text is not None:
        try:
            (rewritten,) = moderation.rewrite([text], filters)
        except moderation.OutOfTime:
            raise CorruptPrompt(moderation.SLOW) from None
        print(f"{text!r} becomes {rewritten!r}" if rewritten != text else f"{text!r} is unchanged")


def run_worker(
    *,
    url: str,
    api_key: str,
    name: str,
    model: str,
    backend: str,
    threads: int,
    prompts: bool,
    vision: bool,
) -> None:
    """Run the sample worker until SIGTERM."""
    from worker import Refused, run
    from worker.backends import JobFailed

    try:
        asyncio.run(
            run(
                url,
                api_key,
                name,
                model,
                backend,
                threads=threads,
                prompts=prompts,
                vision=vision,
            )
        )
    except (Refused, JobFailed) as error:
        raise CannotOpen(str(error)) from error


def demo(*, keep: bool) -> int:
    """Show the whole service at work; return the exit code."""
    from hordechat.demo import run

    return run(keep=keep)
