"""From settings to the parts of a web process: the composition root of the API."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Sequence
from importlib.metadata import version

from api import limits as rate_limits
from api.allowance import Allowances
from api.app import Parts
from api.availability import Availability, Queue
from api.client import Callers, Whitelist
from api.clock import Clock
from api.gate import Gate
from api.guard import MemoryGuard
from api.health import Check
from api.matcher import Finds, Matcher
from api.models import Models
from api.patience import PATIENCE, Patience
from api.service_status import Census
from api.wait import Drain, Watches
from api.workers import Directory
from archive.endpoints import Endpoint
from events.base import Position
from events.keys import Keys
from handlers import moderation
from handlers import reference as references
from handlers.accounts import Accounts
from handlers.addresses import Ranges, networks_of
from handlers.admission import Settled
from handlers.allowance import Terms
from handlers.chat.delivery import Delivery
from handlers.chat.pictures import Offload, Pictures
from handlers.chat.pricing import Tariff
from handlers.chat.schema_pool import SchemaPool
from handlers.fetch.fetcher import Fetcher
from handlers.images.pool import ImagePool
from handlers.log import Log
from handlers.modes import Modes
from handlers.newcomers import Newcomers
from handlers.passkeys import Passkeys
from handlers.pop import Workers
from handlers.store import Store
from handlers.timeouts import Timeouts
from handlers.worker_addresses import WorkerAddresses
from handlers.worker_messages import Messages
from hordechat.opening import limits_of, store_of
from hordechat.settings import Settings
from projections import online, queue
from projections.database import Database
from projections.follow import NAMES, SETTLER, Follower
from projections.rules import Candidate, Offer, Place, Rules
from projections.status import StatusLoader

_MOST_SPREAD = 8


def build(
    settings: Settings,
    log: Log,
    drain: Drain | None = None,
    fetcher: Fetcher | None = None,
    patience: Patience = PATIENCE,
) -> Parts:
    """Build the parts, nothing running yet.

    `fetcher`: fetches images in place of the one that the settings describe.
    """
    limits = limits_of(settings)
    database = Database(settings.database_url, timeout=settings.database_timeout_seconds)
    follower = Follower(settings.redis_url, database, log.keys, (*NAMES, SETTLER))
    clock, drain = Clock(log), drain or Drain()
    watches = Watches(drain)
    passkeys = Passkeys(log, settings.secret, _listed(settings.proxy_passkeys))
    callers = Callers(
        forwarded=Ranges.of(networks_of(settings.forwarded_allow_ips)),
        passkeys=passkeys.known,
    )
    whitelist = Whitelist(log, settings.secret, Ranges.of(networks_of(settings.whitelisted_ips)))

    def find(
        offer: Offer,
        *,
        now_ms: int,
        limit: int,
        after: Place,
        workers: Sequence[str],
    ) -> Awaitable[list[Candidate]]:
        return queue.candidates(
            database, offer, now_ms=now_ms, limit=limit, after=after, workers=workers
        )

    def find_of(offer: Offer, *, users: frozenset[int], now_ms: int) -> Awaitable[list[Candidate]]:
        return queue.of_users(database, offer, users, now_ms=now_ms)

    def tally(offer: Offer) -> Awaitable[list[queue.Group]]:
        return queue.tally(database, offer)

    def names_of(user_id: int) -> Awaitable[frozenset[str]]:
        return online.worker_names(database, user_id)

    accounts = Accounts(log, settings.secret)
    guard = MemoryGuard(log, settings.memory_limit_bytes, settings.log_memory_hard_bytes)
    timeouts, modes, messages = Timeouts(log), Modes(log), Messages(log)
    addresses, store = WorkerAddresses(log), store_of(settings)
    reference = references.opened(settings.text_model_reference)
    rules = Rules(
        validated=frozenset(_listed(settings.validated_backends)),
        size=reference.multiplier,
        lease=settings.text_job_lease_seconds,
        preparation=settings.text_job_preparation_seconds,
    )
    availability = Availability(
        log,
        database,
        follower,
        clock,
        rules,
        online_window=settings.online_window_seconds,
        keep_seconds=settings.availability_cache_seconds,
        patience=patience,
    )
    waiting, settled = Queue(database, clock), _settled(follower, patience.settled)
    tariff = Tariff(reference, matched_targeting=settings.require_matched_targeting)
    delivery = Delivery(log, limits, store)
    matcher = Matcher(
        Finds(find, find_of, tally),
        _Eligibility(follower, log.keys),
        clock,
        drain,
        spread=min(settings.web_workers, _MOST_SPREAD),
        serves=lambda worker: delivery.serves(reading=not worker.fetches),
    )
    directory = Directory(
        log,
        database,
        clock,
        messages,
        addresses,
        online_window=settings.online_window_seconds,
        keep_seconds=settings.worker_details_cache_seconds,
    )
    follower.on_status(watches.changed)
    follower.on_queue(matcher.hinted)
    follower.on_workers(matcher.changed)
    follower.on_workers(directory.changed)
    return Parts(
        log=log,
        limits=limits,
        accounts=accounts,
        workers=Workers(log, limits, Newcomers(limits, names_of)),
        database=database,
        loader=StatusLoader(database, log.keys),
        follower=follower,
        clock=clock,
        matcher=matcher,
        availability=availability,
        rules=rules,
        gate=Gate(
            log,
            limits,
            accounts,
            modes,
            timeouts,
            callers,
            whitelist,
            guard,
            settled,
        ),
        allowances=Allowances(
            log,
            limits,
            accounts,
            tariff,
            availability,
            waiting,
            Terms(
                settings.text_free_output_ceiling,
                settings.text_free_output_floor,
                settings.text_free_output_wait_full_seconds,
                settings.text_free_output_wait_floor_seconds,
                settings.upfront_kudos_on_workerlist,
            ),
            settled,
            store,
            measure_seconds=patience.measure,
        ),
        store=store,
        delivery=delivery,
        models=Models(reference, availability),
        reference=reference,
        tariff=tariff,
        moderation=moderation.Moderation(
            reference, moderation.opened(settings.replacement_filters)
        ),
        secret=settings.secret,
        chat_admission=settings.chat_admission_enabled,
        queue=waiting,
        watches=watches,
        drain=drain,
        guard=guard,
        pictures=_pictures(settings, store, fetcher),
        schemas=SchemaPool(
            seconds=settings.reply_check_seconds, processes=settings.reply_check_processes
        ),
        callers=callers,
        passkeys=passkeys,
        limiter=_limiter(settings, log, callers, whitelist, patience.limits),
        timeouts=timeouts,
        modes=modes,
        messages=messages,
        addresses=addresses,
        directory=directory,
        census=Census(
            database,
            clock,
            online_window=settings.online_window_seconds,
            models_seconds=settings.models_cache_seconds,
            statistics_seconds=settings.statistics_cache_seconds,
        ),
        version=version("hordechat"),
        admins=frozenset(_listed(settings.admins)),
        node=node(settings),
        optional={"object_store": s3_check(settings.s3_endpoint_url)}
        if settings.s3_endpoint_url
        else {},
        max_body=settings.max_chat_body_bytes,
        max_messages=settings.max_chat_message_count,
        max_text_bytes=settings.max_chat_text_bytes,
        wait_limit=settings.wait_limit_seconds,
        stale_seconds=settings.stale_seconds,
        patience=patience,
    )


def _pictures(settings: Settings, store: Store | None, fetcher: Fetcher | None) -> Pictures:
    ports = frozenset(map(int, _listed(settings.image_fetch_ports)))
    return Pictures(
        store,
        fetcher or Fetcher(seconds=settings.image_fetch_seconds, ports=ports),
        ImagePool(seconds=settings.image_seconds, processes=settings.image_processes),
        at_once=settings.images_at_once_bytes,
        fetch_seconds=settings.images_fetch_seconds,
        offload=Offload(
            settings.chat_messages_offload_enabled,
            settings.chat_messages_offload_bytes,
            settings.chat_messages_offload_gzip,
        ),
    )


def _listed(text: str) -> list[str]:
    """The entries of a comma-separated setting."""
    return [entry for entry in map(str.strip, text.split(",")) if entry]


def node(settings: Settings) -> str:
    """What answers call this process."""
    return f"{socket.gethostname()}:{settings.port}:{version('hordechat')}"


def _limiter(
    settings: Settings, log: Log, callers: Callers, whitelist: Whitelist, wait_seconds: float
) -> rate_limits.Limiter | None:
    if not settings.rate_limits_enabled:
        return None
    rules = rate_limits.rules(
        text=(settings.text_request_2sec_limit_per_ip, settings.text_request_90min_limit_per_ip),
        chat=(settings.chat_request_2sec_limit_per_ip, settings.chat_request_90min_limit_per_ip),
    )
    return rate_limits.Limiter(
        log, callers, whitelist, rules, settings.secret, wait_seconds=wait_seconds
    )


def _settled(follower: Follower, seconds: float) -> Settled:
    async def settled(heads: Sequence[Position]) -> bool:
        arrived = await asyncio.gather(
            *(
                follower.reached(SETTLER, partition, head, seconds)
                for partition, head in enumerate(heads)
            )
        )
        return all(arrived)

    return settled


class _Eligibility:
    """How far the eligibility model has come, for the matcher."""

    def __init__(self, follower: Follower, keys: Keys) -> None:
        self._follower = follower
        self._partitions = keys.all()
        self.partition = keys.of

    def shown(self) -> list[Position]:
        return [self._follower.position("eligibility", each) for each in self._partitions]


@contextlib.asynccontextmanager
async def running(parts: Parts) -> AsyncIterator[Parts]:
    """What has to run beside the routes: following the read models, watching Redis' memory."""
    tasks = [
        asyncio.create_task(parts.follower.run(), name="follower"),
        asyncio.create_task(parts.guard.run(), name="memory guard"),
        asyncio.create_task(parts.passkeys.run(), name="passkeys"),
    ]
    try:
        yield parts
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await parts.schemas.close()
        await parts.pictures.close()
        await parts.delivery.close()
        if parts.store is not None:
            parts.store.close()
        await parts.log.close()
        await parts.database.close()


def s3_check(endpoint_url: str) -> Check:
    """The object store answers HTTP. What it holds is tried by those who store there."""
    where = Endpoint.parse(endpoint_url)
    context = ssl.create_default_context() if where.scheme == "https" else None
    question = f"HEAD / HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n\r\n".encode()

    async def check() -> None:
        reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context)
        try:
            writer.write(question)
            answer = await reader.readline()
        finally:
            writer.close()
        if not answer.startswith(b"HTTP/1.") or answer.split()[1:2] >= [b"500"]:
            raise ConnectionError(f"answered {answer[:40]!r}")

    return check
