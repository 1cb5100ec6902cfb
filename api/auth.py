"""Who is calling: the `apikey` header."""

from __future__ import annotations

import falcon.asgi

from handlers.accounts import Account, Accounts
from handlers.errors import AnonForbiddenWorker, InvalidAPIKey

_MOST = 256
"""Characters. No key of ours is a tenth as long, and what is looked up is kept for a while."""


async def account(req: falcon.asgi.Request, accounts: Accounts) -> Account:
    """The caller's account; raise InvalidAPIKey without a key, or for one of nobody."""
    key = req.get_header("apikey")
    if not key or len(key) > _MOST:
        raise InvalidAPIKey
    return await accounts.find(key)


async def worker_owner(req: falcon.asgi.Request, accounts: Accounts) -> Account:
    """The caller as an owner of workers; raise AnonForbiddenWorker for the anonymous account."""
    owner = await account(req, accounts)
    if owner.anonymous:
        raise AnonForbiddenWorker
    return owner
