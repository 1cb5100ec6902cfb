"""What operators and owners tell workers, with their next pops (text_path_reference.md 8.1).

These are people's words with a time to live: like prompts they are no history, and never enter the
log or Postgres. All of them stand in one hash in Redis, of which each process keeps a copy of at
most a second ago.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from handlers.accounts import Account
from handlers.copies import Copy
from handlers.errors import BadRequest, MessageNotFound, NotModerator, NotOwner
from handlers.log import Log
from handlers.users import User
from handlers.workers import Known, owned

MOST = 200
"""Messages of owners at once, and as many of moderators: those always have room for theirs."""
MOST_OF_OWNER = 20
"""Messages of one owner at once."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of one."""

    message: str
    origin: str
    worker_id: str | None = None
    """For whom; None: for all."""
    owner_id: int | None = None
    """Of that worker."""


class Left(NamedTuple):
    """A message as it lies there."""

    id: str
    until_ms: int
    message: Message


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


class Messages:
    """Leaves messages, takes them away, and finds those of a worker."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._copy = Copy(log, self._read)
        self._version: bytes | None = None
        self._left: list[Left] = []
        self._by_worker: dict[str | None, list[Left]] = {}

    async def of(self, worker_id: str) -> Sequence[Left]:
        """Those for this worker and those for all, the one that ends first in front.

        Raise RedisUnavailable where the copy is old and cannot be read again.
        """
        await self._copy.refresh()
        if not self._left:
            return ()
        found = self._by_worker.get(None, []) + self._by_worker.get(worker_id, [])
        return sorted(self._current(found), key=_end)

    async def readable(self, account: Account) -> Sequence[Left]:
        """Those that the account may read: for its own workers and for all; for a moderator, every
        one."""
        await self._copy.refresh()
        return [left for left in self._current(self._left) if _readable(account, left.message)]

    async def find(self, account: Account, id_: str) -> Left:
        """One of these; raise MessageNotFound."""
        for left in await self.readable(account):
            if left.id == id_:
                return left
        raise MessageNotFound

    async def leave(
        self, account: Account, worker: Known | None, text: str, origin: str, hours: int
    ) -> Left:
        """Leave a message for a worker, or for all, for so many hours.

        Raise NotModerator, NotOwner; BadRequest where MOST or MOST_OF_OWNER lie there already.
        """
        if worker is None and not account.moderator:
            raise NotModerator
        if worker is not None and not owned(account, worker):
            raise NotOwner
        message = Message(
            message=text,
            origin=origin,
            worker_id=None if worker is None else worker.id,
            owner_id=None if worker is None else worker.owner_id,
        )
        id_ = str(uuid.uuid4())
        owner = "" if account.moderator else str(account.id)
        until = await self._run(id_, hours * 3_600_000, owner, _encode(message))
        if not until:
            raise BadRequest(
                f"There are as many messages as there may be: {MOST}, and {MOST_OF_OWNER} of one "
                "owner. Delete some first."
            )
        return Left(id_, int(until), message)

    async def take_away(self, account: Account, id_: str) -> Left:
        """Delete a message; raise MessageNotFound, and NotModerator for one that is for all."""
        left = await self.find(account, id_)
        if left.message.worker_id is None and not account.moderator:
            raise NotModerator
        await self._run(id_, 0, "", b"")
        return left

    async def forget(self, user: User) -> None:
        """Take away what was told to the account's workers, and what it told to others."""
        self._copy.outdated()
        await self._copy.refresh()
        for left in list(self._left):
            if left.message.owner_id == user.id or left.message.origin == user.username:
                await self._run(left.id, 0, "", b"")

    async def _run(self, id_: str, ms: int, owner: str, message: bytes) -> bytes:
        (until,) = await self._log.run(
            "leave_message",
            0,
            {"messages": self._log.keys.worker_messages()},
            {
                "id": id_,
                "ms": ms,
                "owner": owner,
                "most": MOST,
                "of_owner": MOST_OF_OWNER,
                "message": message,
            },
        )
        self._copy.outdated()
        return until

    def _current(self, left: Sequence[Left]) -> list[Left]:
        now_ms = self._copy.now_ms()
        return [each for each in left if each.until_ms > now_ms]

    async def _read(self) -> None:
        key = self._log.keys.worker_messages()
        if await self._log.read("HGET", key, "version") == self._version:
            return  # all of them are some megabytes
        raw = await self._log.read("HGETALL", key)
        pairs = dict(zip(raw[::2], raw[1::2], strict=True))
        self._version = pairs.pop(b"version", None)
        self._left = sorted((_stored(*pair) for pair in pairs.items()), key=_end)
        by_worker: defaultdict[str | None, list[Left]] = defaultdict(list)
        for left in self._left:
            by_worker[left.message.worker_id].append(left)
        self._by_worker = dict(by_worker)


def _readable(account: Account, message: Message) -> bool:
    if account.moderator or message.worker_id is None:
        return True
    return not account.anonymous and account.id == message.owner_id


def _stored(id_: bytes, value: bytes) -> Left:
    until, _, message = value.partition(b" ")
    if not message.startswith(b"{"):  # an owner left it
        _, _, message = message.partition(b" ")
    return Left(id_.decode(), int(until), _decode(message))


def _end(left: Left) -> int:
    return left.until_ms
