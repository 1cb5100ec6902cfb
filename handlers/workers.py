"""What owners and moderators change of workers (text_path_reference.md 8.1).

Who may change what is judged here: a worker's owner never changes. A request that a deleted worker
holds goes on by itself: its reply is taken, and what would count for the worker counts for nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from events import codec
from events.keys import name_hash
from events.types import NameClaimed, Profile, WorkerChanged, WorkerDeleted
from handlers.accounts import Account
from handlers.errors import (
    Locked,
    NotModerator,
    NotOwner,
    SettlerBehind,
    WorkerNameAlreadyExists,
    WorkerNotFound,
)
from handlers.log import Log, Refusal

logger = structlog.get_logger()


class Known(NamedTuple):
    """A worker as hot state has it."""

    id: str
    name: str
    owner_id: int


class Change(NamedTuple):
    """What is to be changed; None: nothing of that."""

    maintenance: bool | None = None
    maintenance_msg: str = ""
    """Told to the worker, with `maintenance`; empty: the service's own words."""
    paused: bool | None = None
    info: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The names of what is to be changed."""
        values = {"maintenance": self.maintenance, "paused": self.paused, "info": self.info}
        return tuple(name for name, value in values.items() if value is not None)


async def find(log: Log, worker_id: str) -> Known:
    """The worker of that id; raise WorkerNotFound."""
    name, owner = await log.read("HMGET", log.keys.worker(worker_id), "name", "user")
    if name is None:
        raise WorkerNotFound
    return Known(worker_id, name.decode(), int(owner))


async def in_maintenance(log: Log, worker_id: str) -> bool:
    """Whether a worker is; one that is gone is not. Raise RedisUnavailable."""
    maintenance = await log.read("HGET", log.keys.worker(worker_id), "maintenance")
    return bool(maintenance == b"1")


def owned(account: Account, worker: Known) -> bool:
    """Whether the account may act as the worker's owner: moderators may, too."""
    return account.moderator or (not account.anonymous and account.id == worker.owner_id)


def check_rights(account: Account, worker: Known, change: Change) -> None:
    """Raise NotOwner, NotModerator where the account may not change this."""
    if change.paused is not None and not account.moderator:
        raise NotModerator
    if change.words and not owned(account, worker):
        raise NotOwner


async def change_worker(log: Log, account: Account, worker: Known, change: Change) -> None:
    """Change the worker in the name of the account.

    Raise as `check_rights` does, and WorkerNotFound where it is gone by now.
    """
    check_rights(account, worker, change)
    event = WorkerChanged(
        worker_id=worker.id,
        changed=change.words,
        maintenance=bool(change.maintenance),
        maintenance_msg=change.maintenance_msg if change.maintenance else "",
        paused=bool(change.paused),
        data=Profile(info=change.info or ""),
    )
    try:
        (position,) = await log.run(
            "change_worker",
            log.keys.of(worker.id),
            {"worker": log.keys.worker(worker.id)},
            {"event": codec.encode(event)},
        )
    except Refusal as refusal:
        raise WorkerNotFound from refusal
    logger.info(
        "worker_changed",
        worker_id=worker.id,
        position=position.decode(),
        changed=event.changed,
        user_id=account.id,
    )


async def claim_name(log: Log, account: Account, worker: Known, name: str) -> None:
    """Have the worker called so, in the name of the account.

    The claim decides. The settler carries it to the worker, and frees the name which that had.
    Raise NotModerator, WorkerNameAlreadyExists; SettlerBehind where an earlier change of the
    worker's name is not done yet.
    """
    if not owned(account, worker):
        raise NotModerator
    if name == worker.name:
        return
    keys = log.keys
    try:
        (position,) = await log.run(
            "claim_name",
            keys.of(name_hash(name)),
            {"worker_name": keys.worker_name(name)},
            {"event": codec.encode(NameClaimed(name=name, worker_id=worker.id))},
        )
    except Refusal as refusal:
        if refusal.details[0].decode() == worker.id:
            raise SettlerBehind("The worker's name is just being changed.") from refusal
        raise WorkerNameAlreadyExists from refusal
    logger.info("name_claimed", worker_id=worker.id, position=position.decode(), user_id=account.id)


async def delete_worker(
    log: Log, account: Account, worker: Known, busy: Callable[[], Awaitable[bool]]
) -> None:
    """Delete the worker in the name of the account.

    `busy` says whether it holds a job. One that it is given meanwhile does no harm: see above.
    Raise NotOwner, Locked, WorkerNotFound where it is gone by now.
    """
    if not owned(account, worker):
        raise NotOwner
    if await busy():
        raise Locked
    position = await forget(log, worker)
    logger.info("worker_deleted", worker_id=worker.id, position=position, user_id=account.id)


async def forget(log: Log, worker: Known) -> str:
    """Delete the worker, whoever wants it; return the position. Raise WorkerNotFound."""
    keys = log.keys
    try:
        (position,) = await log.run(
            "delete_worker",
            keys.of(worker.id),
            {"worker": keys.worker(worker.id)},
            {
                "name": worker.name,
                "event": codec.encode(WorkerDeleted(worker_id=worker.id, name=worker.name)),
            },
        )
    except Refusal as refusal:
        raise WorkerNotFound from refusal
    return position.decode()
