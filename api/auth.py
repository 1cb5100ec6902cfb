"""Who is calling: the `apikey` header."""

from __future__ import annotations

import falcon.asgi

from handlers.accounts import Account, Accounts
from handlers.chat import documents
from handlers.errors import (
    AnonForbiddenWorker,
    BadRequest,
    InvalidAPIKey,
    NotModerator,
    WorkerFlaggedMaintenance,
)

LONGEST_KEY = 256
"""Characters. No key of ours is a tenth as long, and what is looked up is kept for a while."""
_MISSING = "Missing required parameter in the HTTP headers"


def key(req: falcon.asgi.Request) -> str:
    """The caller's API key, whoever it may belong to.

    Raise BadRequest without the header: like a key that a body lacks, it is told by its name.
    """
    sent = req.get_header("apikey")
    if sent is None:
        raise BadRequest(documents.INVALID, errors={"apikey": _MISSING})
    return sent


async def account(req: falcon.asgi.Request, accounts: Accounts) -> Account:
    """The caller's account; raise InvalidAPIKey for a key of nobody, the empty one too."""
    return await of(key(req), accounts)


async def payer(req: falcon.asgi.Request, accounts: Accounts) -> Account:
    """The account whose kudos the caller spends, perhaps with a shared key; raise InvalidAPIKey."""
    sent = key(req)
    if not sent or len(sent) > LONGEST_KEY:
        raise InvalidAPIKey
    return await accounts.payer(sent)


async def of(sent: str, accounts: Accounts) -> Account:
    """The account of a key that was sent; raise InvalidAPIKey."""
    if not sent or len(sent) > LONGEST_KEY:
        raise InvalidAPIKey
    return await accounts.find(sent)


async def worker_owner(req: falcon.asgi.Request, accounts: Accounts) -> Account:
    """The caller as an owner of workers.

    Raise WorkerFlaggedMaintenance for a flagged account, AnonForbiddenWorker for the anonymous one.
    """
    owner = await account(req, accounts)
    if owner.flagged:
        raise WorkerFlaggedMaintenance
    if owner.anonymous:
        raise AnonForbiddenWorker
    return owner


async def moderator(req: falcon.asgi.Request, accounts: Accounts) -> Account:
    """The caller as a moderator; raise NotModerator for anyone else."""
    caller = await account(req, accounts)
    if not caller.moderator:
        raise NotModerator
    return caller


async def caller(req: falcon.asgi.Request, accounts: Accounts) -> Account | None:
    """The account that calls a route which needs no key; None without one, or for nobody's."""
    sent = req.get_header("apikey")
    if not sent or len(sent) > LONGEST_KEY:
        return None
    try:
        return await accounts.find(sent)
    except InvalidAPIKey:
        return None


async def is_moderator(req: falcon.asgi.Request, accounts: Accounts) -> bool:
    """Whether a moderator calls a route that needs no key: any other key gives nothing more."""
    account = await caller(req, accounts)
    return account is not None and account.moderator
