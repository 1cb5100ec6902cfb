"""Workers as people see and steer them (text_path_reference.md 8.1; spec, Worker details).

Decisions where the specification is open:

* A name filters the list if it is the whole name, in either case of its letters.
* Contacts are left out: they are their account's. There are no teams: `team` in a change is
  refused.
* What a worker earned nothing by is null, as its clients know it.
* `suspicious` counts the replies of a worker that came faster than can be believed.
* The address is the one that the worker came from last, and is forgotten after a day.
* A worker that holds a job cannot be deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import falcon.asgi
import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from api import auth, query
from api.body import Bodies
from api.clock import Clock
from api.errors import JSON
from api.ids import canonical
from api.kept import Kept
from api.worker_messages import ShownMessage
from api.worker_messages import shown as shown_message
from events.base import KUDOS
from handlers.accounts import Accounts, Person, people
from handlers.chat import documents
from handlers.chat.declaration import MAX_NAME
from handlers.errors import BadRequest, NoWorkerModSelected, WorkerNotFound
from handlers.log import Log
from handlers.worker_addresses import WorkerAddresses
from handlers.worker_messages import Messages
from handlers.workers import Change, change_worker, check_rights, claim_name, delete_worker, find
from projections import workers as rows
from projections.database import Database
from projections.workers import WorkerRow

BODY_BYTES = 2**16
_SHORTEST_NAME = 5
TYPES = ("image", "text", "interrogation")
BASELINE_SPEED = 1.0
"""Tokens a second that are told of a worker whose speed was never measured."""


class Team(msgspec.Struct, frozen=True):
    """The worker's team. There are none."""

    name: str | None = None
    id: str | None = None


class KudosDetails(msgspec.Struct, frozen=True):
    """What the worker earned by what; null: nothing."""

    generated: float | None = None
    uptime: float | None = None


class ShownLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that its chat jobs run under, in tokens."""

    max_context_length: int
    max_length: int
    tools_max_temperature: float | UnsetType = UNSET


class ShownChat(msgspec.Struct, frozen=True, kw_only=True):
    """The chat declaration of its last pop, as far as it was recognised."""

    model_id: str
    features: list[str]
    limits: ShownLimits
    image_transports: list[str]


class ShownWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A text worker."""

    id: str
    name: str
    type: str = "text"
    online: bool
    requests_fulfilled: int
    uncompleted_jobs: int
    nonconformant_replies: int
    """Jobs that ended on a reply that broke its request's contract."""
    kudos_rewards: float
    """What its owner was paid for it, what waits until the owner is trusted included."""
    kudos_details: KudosDetails
    performance: str
    """Tokens a second, in words."""
    threads: int
    uptime: int  # seconds
    maintenance_mode: bool
    info: str | UnsetType = UNSET
    nsfw: bool
    trusted: bool
    flagged: bool
    team: Team = Team()
    bridge_agent: str
    models: list[str]
    max_length: int
    max_context_length: int
    accepts_chat_jobs: bool
    accepts_prompt_jobs: bool
    chat: ShownChat | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    """As `name#id`: for moderators, and for everyone where the owner shows its workers."""
    paused: bool | UnsetType = UNSET
    """For moderators."""
    messages: list[ShownMessage] | UnsetType = UNSET
    """What it is told with its pops: told to those who are told its owner."""
    suspicious: int | UnsetType = UNSET
    """Replies that came faster than can be believed. For moderators."""
    ipaddr: str | UnsetType = UNSET
    """Where it came from last, within a day. For moderators."""


class WorkerBody(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be changed. Unknown keys are ignored, as on text routes."""

    maintenance: bool | None = None
    maintenance_msg: Annotated[str, Meta(max_length=300)] | None = None
    """Told to the worker; goes with `maintenance`."""
    paused: bool | None = None
    info: Annotated[str, Meta(max_length=1000)] | None = None
    name: Annotated[str, Meta(min_length=_SHORTEST_NAME, max_length=MAX_NAME)] | None = None
    """What it is called from now on, or in a moment. The worker has to pop with this name, too."""
    team: Annotated[str, Meta(max_length=36)] | None = None
    """Refused: there are no teams."""


class ShownChange(msgspec.Struct, frozen=True, kw_only=True):
    """What was changed, and nothing else."""

    maintenance: bool | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    info: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


class Deleted(msgspec.Struct, frozen=True):
    """Which worker is gone."""

    deleted_id: str
    deleted_name: str


_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(WorkerBody)


class Who(NamedTuple):
    """Whom a cached answer is about, and who asked."""

    worker: str
    moderator: bool


class Directory:
    """What is told of workers, each answer kept for `keep_seconds`, or until it is known that
    something was changed of that one."""

    def __init__(
        self,
        log: Log,
        database: Database,
        clock: Clock,
        messages: Messages,
        addresses: WorkerAddresses,
        *,
        online_window: int,
        keep_seconds: float,
    ) -> None:
        self._log = log
        self._database = database
        self._clock = clock
        self._messages = messages
        self._addresses = addresses
        self._online_window = online_window
        self._lists: Kept[bool, list[ShownWorker]] = Kept(keep_seconds)
        self._by_id: Kept[Who, ShownWorker] = Kept(keep_seconds)
        self._by_name: Kept[Who, ShownWorker] = Kept(keep_seconds)

    async def online(self, *, moderator: bool) -> list[ShownWorker]:
        """All that are online. Raise DatabaseUnavailable, RedisUnavailable."""

        async def read() -> list[ShownWorker]:
            since_ms = await self._since_ms()
            found = await rows.online(self._database, since_ms=since_ms)
            return await self._shown(found, since_ms, moderator=moderator)

        return await self._lists.get(moderator, read)

    async def by_id(self, worker_id: str, *, moderator: bool) -> ShownWorker:
        """One, online or not; raise WorkerNotFound, DatabaseUnavailable, RedisUnavailable."""

        async def read() -> ShownWorker:
            return await self._one(await rows.by_id(self._database, worker_id), moderator=moderator)

        return await self._by_id.get(Who(worker_id, moderator), read)

    async def by_name(self, name: str, *, moderator: bool) -> ShownWorker:
        """The same by its name, spelled as it is."""

        async def read() -> ShownWorker:
            return await self._one(await rows.by_name(self._database, name), moderator=moderator)

        return await self._by_name.get(Who(name, moderator), read)

    def changed(self, worker_ids: Sequence[str]) -> None:
        """Something was changed of these workers: who asks for one is told that at once."""
        changed = frozenset(worker_ids)
        for kept in (self._by_id, self._by_name):
            kept.forget(lambda shown: shown.id in changed)

    async def _one(self, row: WorkerRow | None, *, moderator: bool) -> ShownWorker:
        if row is None:
            raise WorkerNotFound
        (shown,) = await self._shown([row], await self._since_ms(), moderator=moderator)
        return shown

    async def _since_ms(self) -> int:
        """When a worker that is online showed itself last, at the earliest."""
        return await self._clock.now_ms() - self._online_window * 1000

    async def _shown(
        self, found: Sequence[WorkerRow], since_ms: int, *, moderator: bool
    ) -> list[ShownWorker]:
        owners = await people(self._log, {row.user_id for row in found})
        shown = []
        for row in found:
            owner = owners[row.user_id]
            public = _public(row, owner, since_ms)
            if moderator or owner.public:
                messages = list(map(shown_message, await self._messages.of(row.id)))
                public = replace(public, owner=owner.username, messages=messages)
            shown.append(public)
        if not moderator:
            return shown
        addresses = await self._addresses.of([row.id for row in found])
        return [
            replace(
                public,
                paused=row.paused,
                suspicious=row.implausible,
                ipaddr=addresses.get(row.id, UNSET),
            )
            for public, row in zip(shown, found, strict=True)
        ]


def _public(row: WorkerRow, owner: Person, since_ms: int) -> ShownWorker:
    return ShownWorker(
        id=row.id,
        name=row.name,
        online=row.last_check_in_ms >= since_ms,
        requests_fulfilled=row.fulfilments,
        uncompleted_jobs=row.uncompleted_jobs,
        nonconformant_replies=row.nonconformant_replies,
        kudos_rewards=(row.generated + row.uptime_kudos) / KUDOS,
        kudos_details=KudosDetails(row.generated / KUDOS or None, row.uptime_kudos / KUDOS or None),
        performance=f"{row.speed or BASELINE_SPEED:.1f} tokens per second",
        threads=row.threads,
        uptime=row.uptime_ms // 1000,
        maintenance_mode=row.maintenance,
        info=row.info or UNSET,
        nsfw=row.nsfw,
        trusted=row.trusted,
        flagged=owner.flagged,
        bridge_agent=row.bridge_agent,
        models=row.models,
        max_length=row.max_length,
        max_context_length=row.max_context_length,
        accepts_chat_jobs=row.accepts_chat_jobs,
        accepts_prompt_jobs=row.accepts_prompt_jobs,
        chat=_chat(row),
    )


def _chat(row: WorkerRow) -> ShownChat | UnsetType:
    if not row.accepts_chat_jobs or row.chat_model_id is None:
        return UNSET
    most = row.chat_tools_max_temperature
    return ShownChat(
        model_id=row.chat_model_id,
        features=sorted(row.chat_features),
        limits=ShownLimits(
            max_context_length=row.chat_max_context_length or 0,
            max_length=row.chat_max_length or 0,
            tools_max_temperature=UNSET if most is None else most,
        ),
        image_transports=sorted(row.image_transports),
    )


class WorkersRoute:
    """`GET /v2/workers`."""

    def __init__(self, accounts: Accounts, directory: Directory) -> None:
        self._accounts = accounts
        self._directory = directory

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """List the workers that are online.

        There are text workers only. A `name` finds one of any type.
        """
        kind = query.choice(req, "type", TYPES, "text")
        name = query.text(req, "name")
        moderator = await auth.is_moderator(req, self._accounts)
        shown: list[ShownWorker] = []
        if name is not None or kind == "text":
            shown = await self._directory.online(moderator=moderator)
        if name is not None:
            shown = [each for each in shown if each.name.casefold() == name.casefold()]
        resp.content_type = JSON
        resp.data = _encode(shown)


class WorkerByName:
    """`GET /v2/workers/name/{worker_name}`."""

    def __init__(self, accounts: Accounts, directory: Directory) -> None:
        self._accounts = accounts
        self._directory = directory

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, worker_name: str
    ) -> None:
        """Tell of a worker, online or not, by its name as it is spelled."""
        moderator = await auth.is_moderator(req, self._accounts)
        shown = await self._directory.by_name(worker_name, moderator=moderator)
        resp.content_type = JSON
        resp.data = _encode(shown)


class WorkerRoute:
    """`/v2/workers/{worker_id}`."""

    def __init__(
        self,
        log: Log,
        database: Database,
        accounts: Accounts,
        directory: Directory,
        *,
        bodies: Bodies,
    ) -> None:
        self._log = log
        self._database = database
        self._accounts = accounts
        self._directory = directory
        self._bodies = bodies

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, worker_id: str
    ) -> None:
        """Tell of a worker, online or not."""
        moderator = await auth.is_moderator(req, self._accounts)
        shown = await self._directory.by_id(_known(worker_id), moderator=moderator)
        resp.content_type = JSON
        resp.data = _encode(shown)

    async def on_put(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, worker_id: str
    ) -> None:
        """Change a worker: what its owner or a moderator names of it."""
        async with self._bodies.read(req, BODY_BYTES) as raw:
            body = documents.decoded(_body, raw)
            documents.refuse_nul(raw, body)
        worker = await find(self._log, _known(worker_id))
        account = await auth.account(req, self._accounts)
        if body.team is not None:
            raise BadRequest("There are no teams.", errors={"team": "There are no teams"})
        change = Change(
            maintenance=body.maintenance,
            maintenance_msg=(body.maintenance_msg or "").strip(),
            paused=body.paused,
            info=None if body.info is None else body.info.strip(),
        )
        name = None if body.name is None else _named(body.name)
        if not change.words and name is None:
            raise NoWorkerModSelected
        check_rights(account, worker, change)
        if name is not None:
            await claim_name(self._log, account, worker, name)
        if change.words:
            await change_worker(self._log, account, worker, change)
        resp.content_type = JSON
        resp.data = _encode(
            ShownChange(
                **{word: getattr(change, word) for word in change.words},
                name=UNSET if name is None else name,
            )
        )

    async def on_delete(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, worker_id: str
    ) -> None:
        """Delete a worker that holds no job; its name is free then."""
        worker = await find(self._log, _known(worker_id))
        account = await auth.account(req, self._accounts)

        async def busy() -> bool:
            return await rows.busy(self._database, worker.id)

        await delete_worker(self._log, account, worker, busy)
        resp.content_type = JSON
        resp.data = _encode(Deleted(worker.id, worker.name))


def _named(sent: str) -> str:
    """A name as pops have it; raise BadRequest for one that is too short without its spaces."""
    name = sent.strip()
    if len(name) < _SHORTEST_NAME:
        reason = f"Expected `str` of length >= {_SHORTEST_NAME}"
        raise BadRequest(documents.INVALID, errors={"name": reason})
    return name


def _known(worker_id: str) -> str:
    """The id as ours are spelled; raise WorkerNotFound for what is none."""
    found = canonical(worker_id)
    if found is None:
        raise WorkerNotFound
    return found
