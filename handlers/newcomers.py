"""Whether an account may have one more worker (text_path_reference.md 5.2).

Workers are counted as a read model shows them, and those let in here since. Processes that let
workers of one account in within the same moment do not see each other's: the limits keep accounts
from piling workers up, and are no exact quota.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from handlers.accounts import Account
from handlers.errors import BadRequest, TooManyWorkers, TooManyWorkersTrusted
from handlers.limits import Limits

NamesOf = Callable[[int], Awaitable[frozenset[str]]]
"""The names of an account's workers, as far as a read model knows."""

_HOSTED = ("colab", "tpu", "google")
"""Names of services that must not seem to run a worker."""
_SHOWN_SECONDS = 60.0
"""By then the read model shows a worker that was let in, or it never came."""
_ACCOUNTS_KEPT = 1000


class Newcomers:
    """Judges workers with new names."""

    def __init__(self, limits: Limits, names_of: NamesOf) -> None:
        self._limits = limits
        self._names_of = names_of
        self._let_in: OrderedDict[int, dict[str, float]] = OrderedDict()
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def admit(self, account: Account, name: str) -> None:
        """Let a worker of that name in.

        Raise BadRequest, TooManyWorkers, TooManyWorkersTrusted, and what reading the names raises.
        """
        if any(word in name.casefold() for word in _HOSTED):
            raise BadRequest("Choose a worker name without the name of a hosting service in it.")
        lock = self._locks.setdefault(account.id, asyncio.Lock())
        async with lock:
            shown = await self._names_of(account.id)
            now = asyncio.get_running_loop().time()
            recent = {
                each: at
                for each, at in self._let_in.pop(account.id, {}).items()
                if now - at < _SHOWN_SECONDS
            }
            self._let_in[account.id] = recent
            if len(self._let_in) > _ACCOUNTS_KEPT:
                self._let_in.popitem(last=False)
            others = (shown | recent.keys()) - {name}
            if len(others) >= self._limits.workers_of(account):
                raise TooManyWorkersTrusted if account.trusted else TooManyWorkers
            recent[name] = now
