"""Accounts as their owners, moderators and everyone see them (text_path_reference.md 8.3).

Decisions where the specification is open:

* Balances, roles and limits are those of this moment; records, and the parts of a balance, are as
  the read model has them. An owner is told at once what was changed; lists are kept for a while.
* Nobody is the owner of the anonymous account: it is told of as to everyone, and nothing of it is
  changed.
* A passkey is told once, when it is made, as an API key is.
* Names are not looked up in lists of bad words.
* There are no styles, awards, donations and image requests: what tells of them is empty, or 0.
* An account is deleted by its own key, or by those who may change modes; at once, and for good.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from typing import Annotated, Any, NamedTuple

import falcon.asgi
import msgspec
from msgspec import UNSET, Meta, UnsetType

from api import auth, query
from api.body import Bodies
from api.errors import JSON
from api.kept import Kept
from events.base import KUDOS
from handlers import shared_keys, users
from handlers.account_changes import (
    Change,
    change_account,
    check_changeable,
    check_name,
)
from handlers.accounts import Account, Accounts
from handlers.amounts import amount_of
from handlers.chat import documents
from handlers.errors import (
    BadRequest,
    InvalidAPIKey,
    NotAdmin,
    NotModerator,
    NotPrivileged,
    NoUserModSelected,
    UserNotFound,
)
from handlers.grants import check_grant, grant
from handlers.leaving import leave
from handlers.limits import Limits
from handlers.log import Log
from handlers.passkeys import set_passkey
from handlers.profiles import Profile, read_profile, set_profile
from handlers.users import User
from handlers.worker_messages import Messages
from projections import accounts as rows
from projections.accounts import AccountRow
from projections.database import Database

BODY_BYTES = 2**14
_SHORTEST_NAME = 3
_MOST_DIGITS = 18
_MOST_PAGE = 1_000_000
_PAGE_SECONDS = 30.0
"""For which a page of the list is kept: each is cut out of all accounts in their order."""
_SORTS = ("kudos", "age")
_MULTIPLIER = 1000
ROLES = ("trusted", "moderator", "flagged", "customizer", "service", "education", "special", "vpn")
"""Those that moderators grant and take."""


class KudosParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a balance is made of."""

    accumulated: float = 0
    """For generations and uptime, less what was paid for them."""
    gifted: float = 0
    """To others: less than 0."""
    donated: float = 0
    admin: float = 0
    """By the operator and moderators."""
    received: float = 0
    """From others."""
    recurring: float = 0
    awarded: float = 0
    styled: float = 0


class Things(msgspec.Struct, frozen=True, kw_only=True):
    """Work, by its size."""

    megapixelsteps: float = 0
    tokens: int = 0


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """Work, by its number."""

    image: int = 0
    text: int = 0
    interrogation: int = 0


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """What the account asked for, and what its workers did."""

    usage: Things
    contribution: Things
    fulfillment: Amounts
    request: Amounts
    style: Amounts = Amounts()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Obsolete: see `records`."""

    megapixelsteps: float = 0
    requests: int = 0


class Contributions(msgspec.Struct, frozen=True, kw_only=True):
    """Obsolete: see `records`."""

    megapixelsteps: float = 0
    fulfillments: int = 0


class ActiveGenerations(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of requests that are stored."""

    text: list[str]
    """Chat requests, too."""
    image: list[str] = []


class MonthlyKudos(msgspec.Struct, frozen=True, kw_only=True):
    """What it is given each month."""

    amount: float


class ShownUser(msgspec.Struct, frozen=True, kw_only=True):
    """An account."""

    username: str
    """As `name#id`."""
    id: int
    kudos: float
    kudos_details: KudosParts
    concurrency: int
    """Jobs of it that may wait at once."""
    worker_invited: int
    """Workers that it may have where that is more than trusted accounts may."""
    moderator: bool
    trusted: bool
    flagged: bool
    pseudonymous: bool
    worker_count: int
    account_age: int
    """Seconds."""
    service: bool
    education: bool
    customizer: bool
    deleted: bool = False
    styles: list[str] = []
    records: Records
    usage: Usage
    contributions: Contributions
    worker_ids: list[str] | UnsetType = UNSET
    """For itself and moderators, and for everyone where it shows its workers."""
    sharedkey_ids: list[str] | UnsetType = UNSET
    """For itself and moderators, like the next four."""
    contact: str | UnsetType = UNSET
    vpn: bool | UnsetType = UNSET
    special: bool | UnsetType = UNSET
    active_generations: ActiveGenerations | UnsetType = UNSET
    evaluating_kudos: float | UnsetType = UNSET
    """What it gets once it is trusted. For moderators, like the next three."""
    monthly_kudos: MonthlyKudos | UnsetType = UNSET
    suspicious: int | UnsetType = UNSET
    """Replies that came faster than can be believed."""
    admin_comment: str | UnsetType = UNSET


_Flag = bool | UnsetType


class UserBody(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be changed. Unknown keys are ignored, as on text routes."""

    username: Annotated[str, Meta(min_length=_SHORTEST_NAME)] | UnsetType = UNSET
    """At most 30 characters. The number behind it stays. For itself and moderators, like the next
    three."""
    contact: Annotated[str, Meta(min_length=5, max_length=500)] | UnsetType = UNSET
    """Where moderators can reach it."""
    public_workers: _Flag = UNSET
    """Whether everyone is told which workers are its own."""
    generate_proxy_passkey: _Flag = UNSET
    """Of a service's account: a new passkey, or with false none any more."""
    kudos: int | float | UnsetType = UNSET
    """So many more, or less. For moderators, like all that follows."""
    monthly_kudos: Annotated[int, Meta(ge=0, le=1_000_000_000)] | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=0, le=500)] | UnsetType = UNSET
    usage_multiplier: Annotated[float, Meta(ge=0.1, le=10)] | UnsetType = UNSET
    """Scales what is recorded as used, and no charge."""
    worker_invited: Annotated[int, Meta(ge=0, le=10_000)] | UnsetType = UNSET
    moderator: _Flag = UNSET
    """With trust."""
    trusted: _Flag = UNSET
    """Its workers are paused no longer."""
    flagged: _Flag = UNSET
    customizer: _Flag = UNSET
    service: _Flag = UNSET
    """Without it, its passkey is gone."""
    education: _Flag = UNSET
    """Raises `concurrency` to 200."""
    special: _Flag = UNSET
    vpn: _Flag = UNSET
    reset_suspicion: _Flag = UNSET
    admin_comment: Annotated[str, Meta(min_length=5, max_length=500)] | UnsetType = UNSET


_OWN = ("username", "contact", "public_workers", "generate_proxy_passkey")


class ShownUserChange(msgspec.Struct, frozen=True, kw_only=True):
    """What was changed, and nothing else."""

    username: str | UnsetType = UNSET
    """As `name#id`."""
    contact: str | UnsetType = UNSET
    public_workers: bool | UnsetType = UNSET
    proxy_passkey: str | UnsetType = UNSET
    """Told this once."""
    new_kudos: float | UnsetType = UNSET
    """The balance."""
    monthly_kudos: int | UnsetType = UNSET
    concurrency: int | UnsetType = UNSET
    usage_multiplier: float | UnsetType = UNSET
    worker_invited: int | UnsetType = UNSET
    moderator: bool | UnsetType = UNSET
    trusted: bool | UnsetType = UNSET
    flagged: bool | UnsetType = UNSET
    customizer: bool | UnsetType = UNSET
    service: bool | UnsetType = UNSET
    education: bool | UnsetType = UNSET
    special: bool | UnsetType = UNSET
    vpn: bool | UnsetType = UNSET
    new_suspicion: int | UnsetType = UNSET
    admin_comment: str | UnsetType = UNSET


class DeletedUser(msgspec.Struct, frozen=True):
    """Which account is gone."""

    deleted_id: int
    deleted_name: str


_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(UserBody)


class _Seen(NamedTuple):
    """How much the caller is told."""

    own: bool
    moderator: bool


_PUBLIC = _Seen(own=False, moderator=False)


class People:
    """Tells of accounts."""

    def __init__(self, log: Log, limits: Limits, database: Database) -> None:
        self._log = log
        self._limits = limits
        self._database = database
        self._pages: Kept[tuple[int, rows.Order], list[ShownUser]] = Kept(
            0 if log.test else _PAGE_SECONDS
        )

    async def page(self, number: int, sort: rows.Order) -> list[ShownUser]:
        """25 of them, as the read model has them. Raise DatabaseUnavailable, RedisUnavailable."""

        async def read() -> list[ShownUser]:
            found = await rows.page(self._database, number, sort)
            now_ms = await self._log.now_ms(0)
            return [self._public(_projected(row), row, now_ms) for row in found]

        return await self._pages.get((number, sort), read)

    async def one(self, user_id: int, caller: Account | None) -> ShownUser:
        """One, as the caller may see it. Raise UserNotFound, and as `page` does."""
        user = await users.find(self._log, user_id)
        own = caller is not None and caller.id == user.id and not user.anonymous
        return await self._shown(user, _Seen(own, caller is not None and caller.moderator))

    async def worker_ids(self, user_id: int) -> list[str]:
        """Its workers. Raise DatabaseUnavailable."""
        return await rows.worker_ids(self._database, user_id)

    async def public(self, user_id: int) -> ShownUser:
        """One, as everyone sees it."""
        return await self._shown(await users.find(self._log, user_id), _PUBLIC)

    async def _shown(self, user: User, seen: _Seen) -> ShownUser:
        row = await rows.account(self._database, user.id)
        shown = self._public(user, row, await self._log.now_ms(0))
        more: dict[str, Any] = {}
        if seen.own or seen.moderator or user.public_workers:
            more["worker_ids"] = await rows.worker_ids(self._database, user.id)
        if seen.own or seen.moderator:
            profile = await read_profile(self._log, user.id)
            requests = await rows.request_ids(self._database, user.id)
            more |= {
                "sharedkey_ids": await users.shared_keys_of(self._log, user.id),
                "contact": profile.contact or UNSET,
                "vpn": "vpn" in user.roles,
                "special": "special" in user.roles,
                "active_generations": UNSET if user.anonymous else ActiveGenerations(text=requests),
            }
            if seen.moderator:
                more |= {
                    "evaluating_kudos": user.escrow / KUDOS,
                    "monthly_kudos": MonthlyKudos(amount=user.monthly_kudos / KUDOS),
                    "suspicious": user.suspicious,
                    "admin_comment": profile.admin_comment or UNSET,
                }
        return msgspec.structs.replace(shown, **more)

    def _public(self, user: User, row: AccountRow | None, now_ms: int) -> ShownUser:
        limits = self._limits
        return ShownUser(
            username=user.username,
            id=user.id,
            kudos=user.kudos / KUDOS,
            kudos_details=_details(row),
            concurrency=limits.jobs_of(user.concurrency, anonymous=user.anonymous),
            worker_invited=user.worker_invited,
            moderator="moderator" in user.roles,
            trusted="trusted" in user.roles,
            flagged="flagged" in user.roles,
            pseudonymous=user.kind == "pseudonymous",
            worker_count=row.workers if row else 0,
            account_age=max(0, now_ms - user.created_ms) // 1000,
            service="service" in user.roles,
            education="education" in user.roles,
            customizer="customizer" in user.roles,
            records=Records(
                usage=Things(tokens=row.usage_tokens if row else 0),
                contribution=Things(tokens=row.contribution_tokens if row else 0),
                fulfillment=Amounts(text=row.fulfillments if row else 0),
                request=Amounts(text=row.requests if row else 0),
            ),
            usage=Usage(requests=row.requests if row else 0),
            contributions=Contributions(fulfillments=row.fulfillments if row else 0),
        )


def _details(row: AccountRow | None) -> KudosParts:
    if row is None:
        return KudosParts()
    return KudosParts(
        accumulated=row.accumulated / KUDOS,
        gifted=row.gifted / KUDOS,
        admin=row.admin / KUDOS,
        received=row.received / KUDOS,
        recurring=row.recurring / KUDOS,
    )


def _projected(row: AccountRow) -> User:
    """The account as the read model has it."""
    return User(
        row.user_id,
        row.name,
        row.kind,
        row.kudos,
        row.escrow,
        row.concurrency,
        row.worker_invited,
        row.public_workers,
        row.monthly_kudos,
        row.usage_multiplier,
        row.suspicious,
        row.created_ms,
        False,
        frozenset(row.roles),
    )


class FindUser:
    """`GET /v2/find_user`."""

    def __init__(self, log: Log, accounts: Accounts, people: People) -> None:
        self._log = log
        self._accounts = accounts
        self._people = people

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Tell of the account whose key this is.

        Of a shared key's owner, what everyone is told.
        """
        if req.get_header("apikey") is None:
            raise InvalidAPIKey("An API key has to be sent in the apikey header.")
        try:
            account = await auth.payer(req, self._accounts)
            if account.shared_key is None:
                shown = await self._people.one(account.id, account)
            else:
                known = await shared_keys.find(self._log, account.shared_key.id)
                shown = await self._people.public(account.id)
                note = f"{shown.username} (Shared Key: {known.name or known.id})"
                shown = msgspec.structs.replace(shown, username=note)
        except InvalidAPIKey:
            raise UserNotFound("There is no account with that API key.") from None
        resp.content_type = JSON
        resp.cache_control = ["private", "no-store"]
        resp.data = _encode(shown)


class UsersRoute:
    """`GET /v2/users`."""

    def __init__(self, people: People) -> None:
        self._people = people

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """List 25 accounts, those with most kudos or the oldest first; pages are counted from 1."""
        number = query.number(req, "page")
        sort: Any = query.choice(req, "sort", _SORTS, "kudos")
        if number is not None and not 1 <= number <= _MOST_PAGE:
            reason = f"Expected a number from 1 to {_MOST_PAGE}"
            raise BadRequest(documents.INVALID, errors={"page": reason})
        resp.content_type = JSON
        resp.data = _encode(await self._people.page(number or 1, sort))


class UserRoute:
    """`/v2/users/{user_id}`. `admins`: who may delete accounts, as `name#id`."""

    def __init__(
        self,
        log: Log,
        accounts: Accounts,
        people: People,
        messages: Messages,
        *,
        secret: str,
        admins: Collection[str],
        bodies: Bodies,
    ) -> None:
        self._log = log
        self._accounts = accounts
        self._people = people
        self._messages = messages
        self._secret = secret
        self._admins = admins
        self._bodies = bodies

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, user_id: str
    ) -> None:
        """Tell of an account: more to itself, and most to moderators."""
        caller = await auth.caller(req, self._accounts)
        resp.content_type = JSON
        resp.cache_control = ["private", "no-store"]
        resp.data = _encode(await self._people.one(_known(user_id), caller))

    async def on_put(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, user_id: str
    ) -> None:
        """Change an account: what it names of itself, or a moderator of it."""
        async with self._bodies.read(req, BODY_BYTES) as raw:
            body = documents.decoded(_body, raw)
            documents.refuse_nul(raw, body)
        caller = await auth.account(req, self._accounts)
        user = await users.find(self._log, _known(user_id))
        given = {
            name: value
            for name in UserBody.__struct_fields__
            if (value := getattr(body, name)) is not UNSET
        }
        if not given or given == {"reset_suspicion": False}:
            raise NoUserModSelected
        if user.id == caller.id:
            check_changeable(user.id)
        if not caller.moderator and (caller.id != user.id or not given.keys() <= set(_OWN)):
            raise NotModerator
        check_changeable(user.id)
        told = await self._change(caller, user, given)
        self._accounts.forget(user.id)
        resp.content_type = JSON
        resp.cache_control = ["private", "no-store"]
        resp.data = _encode(told)

    async def _change(self, caller: Account, user: User, given: dict[str, Any]) -> ShownUserChange:
        amount = amount_of(given["kudos"]) if "kudos" in given else 0
        name = check_name(given["username"]) if "username" in given else None
        # What is refused changes nothing: it is found out before the first of several commands.
        check_grant(user.kudos, amount)
        service = given.get("service", "service" in user.roles)
        if given.get("generate_proxy_passkey") and not service:
            raise NotPrivileged
        change = Change(
            name=name,
            roles={role: given[role] for role in ROLES if role in given},
            concurrency=given.get("concurrency"),
            worker_invited=given.get("worker_invited"),
            public_workers=given.get("public_workers"),
            monthly_kudos=_times(given.get("monthly_kudos"), KUDOS),
            usage_multiplier=_times(given.get("usage_multiplier"), _MULTIPLIER),
            reset_suspicion=given.get("reset_suspicion", False),
        )
        told = {
            word: value
            for word, value in given.items()
            if word in ShownUserChange.__struct_fields__
        }
        profile = Profile(given.get("contact"), given.get("admin_comment"))
        if any(profile):
            await set_profile(self._log, user.id, profile)
        if change != Change():
            await change_account(self._log, user.id, change, by=caller.id)
            told |= change.also()
            if change.reset_suspicion:
                told["new_suspicion"] = 0
        if name is not None:
            told["username"] = f"{name}#{user.id}"
        if "generate_proxy_passkey" in given:
            told["proxy_passkey"] = await set_passkey(
                self._log, self._secret, user.id, wanted=given["generate_proxy_passkey"]
            )
        if "kudos" in given:
            granted = await grant(
                self._log, user.id, amount, grant_id=str(uuid.uuid4()), by=caller.id
            )
            told["new_kudos"] = granted.kudos / KUDOS
        return ShownUserChange(**told)

    async def on_delete(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, user_id: str
    ) -> None:
        """Delete an account, for good: its own, or any one as an operator of this service.

        Its name, its keys, its shared keys and its workers are gone; its kudos are nobody's.
        """
        caller = await auth.account(req, self._accounts)
        user = await users.find(self._log, _known(user_id))
        if user.id == caller.id:
            check_changeable(user.id)
        elif caller.anonymous or caller.username not in self._admins:
            raise NotAdmin
        workers = await self._people.worker_ids(user.id)
        leaving = leave(self._log, self._messages, user, workers)
        await asyncio.shield(
            asyncio.ensure_future(leaving)
        )  # all of it, if its caller stays or not
        self._accounts.forget(user.id)
        resp.content_type = JSON
        resp.data = _encode(DeletedUser(user.id, user.username))


def _times(value: float | None, by: int) -> int | None:
    return None if value is None else round(value * by)


def _known(user_id: str) -> int:
    """The number as it stands in a path; raise UserNotFound for what is none."""
    if not (user_id.isascii() and user_id.isdigit() and len(user_id) <= _MOST_DIGITS):
        raise UserNotFound
    return int(user_id)
