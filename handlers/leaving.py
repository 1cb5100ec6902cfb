"""What goes when an account goes: its workers, and what people wrote for those (docs/privacy.md).

The account goes first, since its workers would come back with the key that it has. What holds a
name or words is deleted here; what is counted stays with numbers and ids.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from handlers.account_changes import delete_account
from handlers.errors import WorkerNotFound
from handlers.log import Log
from handlers.users import User
from handlers.worker_messages import Messages
from handlers.workers import find, forget


async def leave(log: Log, messages: Messages, user: User, worker_ids: Iterable[str]) -> None:
    """Delete the account, and those of the workers that are its own. A worker that holds a job goes
    too: nobody could send its reply. Raise AnonForbiddenUserMod, UserNotFound."""
    await delete_account(log, user.id)
    await messages.forget(user)
    for worker_id in worker_ids:
        with contextlib.suppress(WorkerNotFound):
            worker = await find(log, worker_id)
            if worker.owner_id == user.id:
                await forget(log, worker)
                await log.read("DEL", log.keys.worker_address(worker_id))
