"""From settings to the log and the numbers of its rules: what every process opens first."""

import asyncio
from collections.abc import Sequence

import structlog

from archive.archive import Archive, ArchiveUnavailable
from archive.bucket import Bucket
from archive.bucket import Place as Shelf
from archive.endpoints import Endpoint, is_local
from archive.s3 import Access
from events.base import KUDOS
from events.keys import PARTITIONS, Keys
from handlers.limits import Limits
from handlers.log import Log
from handlers.store import Place, Store
from hordechat.settings import Settings
from lua.link import connect
from projections.known import Known

logger = structlog.get_logger()

ASKING_SECONDS = 2.0
"""That the archive has to say whether it knows more than Redis."""


class CannotOpen(Exception):
    """These servers are not fit to run on; the message says why."""


class WrongPartitions(CannotOpen):
    """The deployment was started with another number of partitions; it cannot change."""


class Forgotten(CannotOpen):
    """Redis has lost what it held, and the archive or Postgres knows that there was something."""


async def open_log(
    settings: Settings,
    *,
    timeout: float | None = None,
    ordered: bool = False,
    forgotten: bool = False,
) -> Log:
    """Connect to Redis; record or check the number of partitions, and mark them as begun.

    timeout    seconds, instead of the settings'
    ordered    as for `connect`
    forgotten  for who rebuilds: whatever Redis has lost; nothing is recorded or marked

    Raise WrongPartitions; Forgotten; psycopg.OperationalError where Postgres does not answer and
    would have to say whether Redis lost anything.
    """
    redis = await connect(
        settings.redis_url,
        timeout=settings.redis_timeout_seconds if timeout is None else timeout,
        ordered=ordered,
    )
    log = Log(redis, Keys(settings.partitions), test=settings.test, archive=archive_of(settings))
    try:
        await _check_partitions(log)
        if not forgotten:
            await _begin(log, settings)
    except BaseException:
        await log.close()
        raise
    return log


async def _check_partitions(log: Log) -> None:
    recorded = int(await log.read("GET", PARTITIONS) or 0)
    if recorded and recorded != log.keys.partitions:
        raise WrongPartitions(
            f"This log has {recorded} partitions, HORDE_PARTITIONS says {log.keys.partitions}. "
            "The number is fixed at the first start."
        )


async def _begin(log: Log, settings: Settings) -> None:
    """Mark what is new as begun: nobody has ever heard of an event there."""
    unmarked = [each for each in log.keys.all() if not await log.has_begun(each)]
    if unmarked and (known := await _known(settings, unmarked)):
        raise Forgotten(
            f"Redis has lost what it held: it knows nothing of partition {known[0][0]}, of which "
            f"{known[0][1]} holds events. `hordechat rebuild state` brings back what was archived."
        )
    if unmarked or not await log.read("EXISTS", PARTITIONS):
        await log.begin()
        await _check_partitions(log)


async def _known(settings: Settings, partitions: Sequence[int]) -> list[tuple[int, str]]:
    """Those of which somebody has heard of an event, and who: Postgres, or else the archive."""
    if settings.database_url:
        heard = await Known(settings.database_url).partitions()
        if known := [(each, "Postgres") for each in partitions if each in heard]:
            return known
    archive = archive_of(settings, patience=ASKING_SECONDS)
    if archive is None:
        return []
    try:
        return [
            (each, "the archive")
            for each in partitions
            if await asyncio.to_thread(next, archive.listed(each), None)
        ]
    except ArchiveUnavailable as error:
        # The first start must not wait for the store: an archiver that finds an archive of another
        # log stops, and says so.
        logger.warning("archive_not_asked", reason=str(error))
        return []


def store_of(settings: Settings) -> Store | None:
    """The object store; None where there is none."""
    if not settings.s3_endpoint_url:
        return None
    images = settings.r2_source_image_bucket
    return Store(
        Place(
            endpoint=settings.s3_endpoint_url,
            public=settings.s3_public_endpoint_url or settings.s3_endpoint_url,
            access_key=settings.s3_access_key,
            secret_key=settings.s3_secret_key,
            region=settings.s3_region,
            images=images,
            messages=settings.r2_chat_messages_bucket or images,
        )
    )


def archive_of(settings: Settings, *, patience: float = 10.0) -> Archive | None:
    """The archive of the log; None where there is no object store.

    patience  seconds that an answer may take
    """
    if not settings.s3_endpoint_url:
        return None
    access = Access(settings.s3_access_key, settings.s3_secret_key, settings.s3_region)
    shelf = Shelf(settings.s3_endpoint_url, access, settings.archive_bucket)
    return Archive(Bucket(shelf, read=patience), settings.partitions)


def out_of_reach(settings: Settings) -> str | None:
    """The public URL of the store where workers elsewhere cannot use it: they reach us, and it
    names their own machine. None where all is well."""
    public = settings.s3_public_endpoint_url or settings.s3_endpoint_url
    if not public or is_local(settings.host) or not is_local(Endpoint.parse(public).host):
        return None
    return public


def limits_of(settings: Settings) -> Limits:
    """The numbers that the rules depend on."""
    return Limits(
        request_ttl=settings.request_ttl_seconds,
        online_window=settings.online_window_seconds,
        check_in_window=settings.check_in_window_seconds,
        text_job_lease=settings.text_job_lease_seconds,
        trusted_lease_cap=settings.trusted_text_job_lease_cap_seconds,
        untrusted_lease_cap=settings.untrusted_text_job_lease_cap_seconds,
        faulted_generations=settings.faulted_generations_limit,
        concurrency=settings.concurrency,
        anonymous_concurrency=settings.anonymous_concurrency,
        workers=settings.workers_per_user,
        trusted_workers=settings.workers_per_trusted_user,
        trust_threshold=int(settings.kudos_trust_threshold) * KUDOS
        if settings.kudos_trust_threshold
        else None,
        admission_deadline=settings.admission_deadline_seconds,
        fault_holdoff=settings.fault_holdoff_seconds,
        fault_reason=settings.max_chat_fault_reason_length,
        progress_entries=settings.max_chat_progress_entries,
        progress_bytes_per_token=settings.chat_progress_bytes_per_token,
        progress_stream_ttl=settings.chat_progress_stream_ttl_seconds,
        progress_stream_entries=settings.chat_progress_stream_max_entries,
        progress_lease_grace=settings.chat_progress_lease_grace_seconds,
    )
