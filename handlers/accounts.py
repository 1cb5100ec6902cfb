"""Accounts: opening one, and finding the one behind an API key."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from events import codec
from events.base import KUDOS
from events.roles import ROLES
from events.types import AccountOpened
from handlers.errors import BadRequest, InvalidAPIKey
from handlers.log import Log, Refusal

ANONYMOUS_KEY = "0000000000"
ANONYMOUS_ID = 0
MOST_NAME = 30
OPERATOR = -1
"""Who changes or gives something where no account does."""
CACHE_SECONDS = 5.0
CACHE_SIZE = 10_000

Kind = Literal["registered", "pseudonymous", "anonymous"]

FLOORS: dict[Kind, int] = {
    "anonymous": -50 * KUDOS,
    "pseudonymous": 14 * KUDOS,
    "registered": 25 * KUDOS,
}
"""The least that a balance may be, 10^-4 kudos (text_path_reference.md 7.5): below it, it is
lifted."""

_FIELDS = ("name", "key", "concurrency", "trusted_ms", "worker_invited", *ROLES)
_KEY_FIELDS = ("user", "kudos", "expiry_ms", "max_text_tokens")


class SharedKey(NamedTuple):
    """A key with which an account's kudos may be spent within a budget, as it was a moment ago."""

    id: str
    kudos: int
    """10^-4 kudos that may be spent; -1: no end."""
    expiry_ms: int
    """Redis clock; 0: never."""
    max_text_tokens: int
    """Of one request; -1: no cap."""


class Account(NamedTuple):
    """Who is calling."""

    id: int
    name: str
    trusted: bool
    moderator: bool
    digest: str
    """HMAC of the API key, hexadecimal: the stored key hash."""

    flagged: bool = False
    """Whether the operator's filters apply to whatever it submits."""

    roles: frozenset[str] = frozenset()
    """All that it has of events/roles.py, the three above too."""

    concurrency: int = 0
    """Jobs of its own that may wait at once; 0: as many as the settings say, -1: none."""

    trusted_ms: int = 0
    """Since when it is trusted, Redis clock; 0: since ever, or not at all."""

    shared_key: SharedKey | None = None
    """With which it is called, where that is not its own key."""

    worker_invited: int = 0
    """Workers that it may have where that is more than trusted accounts may."""

    @property
    def username(self) -> str:
        """The unique alias, `name#id`."""
        return f"{self.name}#{self.id}"

    @property
    def anonymous(self) -> bool:
        """Whether it is the account of everyone who has none."""
        return self.id == ANONYMOUS_ID

    @property
    def service(self) -> bool:
        """Whether it calls for people of its own."""
        return "service" in self.roles

    @property
    def vouched(self) -> bool:
        """Whether a moderator or a patronage speaks for it."""
        return self.trusted or "patron" in self.roles

    @property
    def key_id(self) -> str:
        """The shared key whose budget counts what is spent, by its id; "" where none does.

        One that is empty has none: what is submitted with it runs as the anonymous account.
        """
        return "" if self.shared_key is None or self.anonymous else self.shared_key.id

    @property
    def progress_key(self) -> str:
        """What the stream lease keeps of the key."""
        return _progress_key(self.digest)


def digest_of(secret: str, api_key: str) -> str:
    """The stored form of an API key: HMAC-SHA256 under the deployment's secret, hexadecimal."""
    return hmac.digest(secret.encode(), api_key.encode(), "sha256").hex()


def _progress_key(digest: str) -> str:
    """SHA-256 of the stored key hash (spec, Streaming progress)."""
    return hashlib.sha256(digest.encode()).hexdigest()


def roles_of(values: Sequence[bytes | None]) -> frozenset[str]:
    """Those that an account has, by its hash's fields of events/roles.py in turn."""
    return frozenset(role for role, value in zip(ROLES, values, strict=True) if value == b"1")


async def open_account(
    log: Log,
    secret: str,
    name: str,
    *,
    kudos: int = 0,
    trusted: bool = False,
    moderator: bool = False,
    flagged: bool = False,
    kind: Kind = "registered",
    roles: Iterable[str] = (),
    concurrency: int = 0,
) -> tuple[int, str]:
    """Open an account with `kudos` (10^-4 kudos), or as many as its kind has at least; return its
    id and its API key, which is stored nowhere.

    roles        of events/roles.py, beside those that have an argument of their own
    concurrency  jobs of its own that may wait at once; 0: as many as the settings say

    The number is drawn in the partition of the key's digest, so one script does all. Raise
    BadRequest for a name that is no name.
    """
    if not name.strip() or not name.isprintable() or len(name) > MOST_NAME:
        raise BadRequest(f"A user's name has 1 to {MOST_NAME} characters that can be printed.")
    api_key = secrets.token_urlsafe(16)
    digest = digest_of(secret, api_key)
    keys = log.keys
    partition = keys.of(digest)
    event = AccountOpened(
        name=name,
        key=digest,
        kudos=kudos,
        trusted=trusted or moderator,
        moderator=moderator,
        flagged=flagged,
        kind=kind,
        floor=FLOORS[kind],
        concurrency=concurrency,
        roles=tuple(sorted(set(roles))),
    )
    while True:
        last = await log.read("GET", keys.accounts(partition))
        # Account 0 is the anonymous one, so partition 0 begins at its second number.
        user_id = int(last) + keys.partitions if last else partition or keys.partitions
        try:
            answer = await log.run(
                "open_account",
                partition,
                {
                    "account": keys.account(user_id),
                    "clearing": keys.clearing(partition),
                    "api_key": keys.api_key(digest),
                    "accounts": keys.accounts(partition),
                },
                {"user_id": user_id, "last": last or "", "event": codec.encode(event)},
            )
        except Refusal:  # STALE: another account took the number
            continue
        return int(answer[1]), api_key


async def open_anonymous(log: Log) -> None:
    """Make sure that the anonymous account exists."""
    partition = log.keys.of_account(ANONYMOUS_ID)
    kind: Kind = "anonymous"
    event = AccountOpened(name="Anonymous", key="", kind=kind, floor=FLOORS[kind])
    await log.run(
        "open_anonymous",
        partition,
        {"account": log.keys.account(ANONYMOUS_ID), "clearing": log.keys.clearing(partition)},
        {"event": codec.encode(event)},
    )


class Person(NamedTuple):
    """What others are told of an account."""

    username: str  # the unique alias, `name#id`
    flagged: bool
    public: bool  # everyone is told which workers are its own


async def people(log: Log, user_ids: Collection[int]) -> dict[int, Person]:
    """Those accounts, by number. Raise RedisUnavailable."""
    found = await asyncio.gather(
        *(
            log.read("HMGET", log.keys.account(each), "name", "flagged", "public_workers")
            for each in user_ids
        )
    )
    return {
        user_id: Person(f"{(name or b'').decode()}#{user_id}", flagged == b"1", public == b"1")
        for user_id, (name, flagged, public) in zip(user_ids, found, strict=True)
    }


class Accounts:
    """Finds accounts by API key, remembering each for a few seconds."""

    def __init__(self, log: Log, secret: str) -> None:
        self._log = log
        self._secret = secret
        self._cache: OrderedDict[str, tuple[float, Account]] = OrderedDict()
        self._forgotten = 0

    async def find(self, api_key: str) -> Account:
        """The account of `api_key`; raise InvalidAPIKey.

        A registry entry is only a pointer: it is valid when the account names the key back.
        """
        now = asyncio.get_running_loop().time()
        cached = self._cache.get(api_key)
        if cached is not None and now - cached[0] < CACHE_SECONDS:
            return cached[1]
        forgotten = self._forgotten
        account = await self._look_up(api_key)
        if forgotten == self._forgotten:  # else it may be from before the change
            self._cache[api_key] = (now, account)
            self._cache.move_to_end(api_key)
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
        return account

    async def payer(self, api_key: str) -> Account:
        """The account whose kudos are spent with `api_key`, its own one or a shared one; raise
        InvalidAPIKey.

        Of a shared key nothing is remembered: what may be spent with it changes with each request.
        """
        shared_key = await self._shared(api_key)
        if shared_key is None:
            return await self.find(api_key)
        user_id, found = shared_key
        account = await self._account(user_id)
        if account is None:  # deleted since, and its keys with it
            raise InvalidAPIKey
        return account._replace(shared_key=found)

    def forget(self, user_id: int) -> None:
        """Something was changed of the account: who calls with its key next is looked up again."""
        self._forgotten += 1
        for api_key, (_, account) in list(self._cache.items()):
            if account.id == user_id:
                del self._cache[api_key]

    def progress_key(self, api_key: str) -> str:
        """What the stream lease keeps of this key, whoever it may belong to."""
        return _progress_key(digest_of(self._secret, api_key))

    async def _look_up(self, api_key: str) -> Account:
        keys = self._log.keys
        digest = digest_of(self._secret, api_key)
        if api_key == ANONYMOUS_KEY:
            user_id = ANONYMOUS_ID
        else:
            claim = await self._log.read("GET", keys.api_key(digest))
            if claim is None:
                raise InvalidAPIKey
            user_id = int(claim)
        account = await self._account(user_id)
        if account is None or (user_id != ANONYMOUS_ID and account.digest != digest):
            raise InvalidAPIKey
        return account

    async def _shared(self, api_key: str) -> tuple[int, SharedKey] | None:
        """The shared key that this is, and whose; None where it is none."""
        try:
            id_ = str(uuid.UUID(api_key))
        except ValueError:
            return None
        fields = await self._log.read("HMGET", self._log.keys.shared_key(id_), *_KEY_FIELDS)
        if fields[0] is None:
            return None
        user_id, kudos, expiry_ms, max_text_tokens = map(int, fields)
        return user_id, SharedKey(id_, kudos, expiry_ms, max_text_tokens)

    async def _account(self, user_id: int) -> Account | None:
        """The account of that number; None where there is none (any more)."""
        fields = await self._log.read("HMGET", self._log.keys.account(user_id), *_FIELDS)
        name, key, concurrency, trusted_ms, invited, *held = fields
        if name is None:
            return None
        roles = roles_of(held)
        return Account(
            user_id,
            name.decode(),
            "trusted" in roles,
            "moderator" in roles,
            key.decode() or digest_of(self._secret, ANONYMOUS_KEY),
            "flagged" in roles,
            roles,
            int(concurrency or 0),
            int(trusted_ms or 0),
            worker_invited=int(invited or 0),
        )
