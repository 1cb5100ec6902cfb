"""What every generate route checks of its caller, in the order of the specification (Routes, step
5; text_path_reference.md 3.3)."""

from __future__ import annotations

from collections.abc import Iterable

import falcon.asgi

from api import auth
from api.client import Callers, Whitelist
from api.guard import MemoryGuard
from handlers.accounts import Account, Accounts
from handlers.admission import Operation, Settled, check_concurrency
from handlers.errors import MaintenanceMode
from handlers.limits import Limits
from handlers.log import Log
from handlers.modes import Modes
from handlers.shared_keys import check_expiry
from handlers.timeouts import Timeouts

AGENT_HEADER = "client-agent"
NO_AGENT = "unknown:0:unknown"
_MOST_AGENT = 1000  # characters


class Gate:
    """Lets callers in, or says why not. Each check is a call of its own: the routes of text and
    chat have others between them."""

    def __init__(
        self,
        log: Log,
        limits: Limits,
        accounts: Accounts,
        modes: Modes,
        timeouts: Timeouts,
        callers: Callers,
        whitelist: Whitelist,
        guard: MemoryGuard,
        settled: Settled,
    ) -> None:
        self._log = log
        self._limits = limits
        self._accounts = accounts
        self._modes = modes
        self._timeouts = timeouts
        self._callers = callers
        self._whitelist = whitelist
        self._guard = guard
        self.settled = settled
        """Whether the settler came to some heads, for the submit that follows."""

    async def enter(self, req: falcon.asgi.Request) -> Account:
        """Maintenance, then authentication, by a shared key too. Raise MaintenanceMode, BadRequest,
        InvalidAPIKey, SharedKeyExpired."""
        if (await self._modes.current()).maintenance:
            raise MaintenanceMode
        account = await auth.payer(req, self._accounts)
        if account.shared_key is not None and account.shared_key.expiry_ms:
            check_expiry(account, await self._log.now_ms(self._log.keys.of_account(account.id)))
        await self._whitelist.called(self._callers.caller(req), account)
        return account

    async def check(
        self,
        req: falcon.asgi.Request,
        account: Account,
        jobs: int,
        models: Iterable[str],
        operation: Operation | None = None,
    ) -> None:
        """Concurrency, then countermeasures. Raise TooManyPrompts, SettlerBehind, TimeoutIP."""
        await check_concurrency(
            self._log, self._limits, account, jobs, models, self.settled, operation=operation
        )
        await self._timeouts.check(self._callers.caller(req).address)

    def room(self) -> None:
        """Raise OutOfMemory while there is none for another request."""
        self._guard.check()


def client_agent(req: falcon.asgi.Request) -> bytes:
    """The header of that name, `name:version:contact`: stored, never validated."""
    return (req.get_header(AGENT_HEADER) or NO_AGENT)[:_MOST_AGENT].encode()
