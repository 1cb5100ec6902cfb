"""From settings to the log and the numbers of its rules: what every process opens first."""

from archive.archive import Archive
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


class CannotOpen(Exception):
    """These servers are not fit to run on; the message says why."""


class WrongPartitions(CannotOpen):
    """The deployment was started with another number of partitions; it cannot change."""


async def open_log(
    settings: Settings, *, timeout: float | None = None, ordered: bool = False
) -> Log:
    """Connect to Redis; record or check the number of partitions.

    `timeout` (seconds) instead of the settings'; `ordered` as for `connect`. Raise WrongPartitions.
    """
    redis = await connect(
        settings.redis_url,
        timeout=settings.redis_timeout_seconds if timeout is None else timeout,
        ordered=ordered,
    )
    log = Log(redis, Keys(settings.partitions), test=settings.test, archive=archive_of(settings))
    await log.read("SET", PARTITIONS, settings.partitions, "NX")
    recorded = int(await log.read("GET", PARTITIONS))
    if recorded != settings.partitions:
        await log.close()
        raise WrongPartitions(
            f"This log has {recorded} partitions, HORDE_PARTITIONS says {settings.partitions}. "
            "The number is fixed at the first start."
        )
    return log


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


def archive_of(settings: Settings) -> Archive | None:
    """The archive of the log; None where there is no object store."""
    if not settings.s3_endpoint_url:
        return None
    access = Access(settings.s3_access_key, settings.s3_secret_key, settings.s3_region)
    shelf = Shelf(settings.s3_endpoint_url, access, settings.archive_bucket)
    return Archive(Bucket(shelf), settings.partitions)


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
