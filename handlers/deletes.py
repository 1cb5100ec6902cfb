"""Deleting objects whose request is gone (spec, Images).

`expire` and `abandon` put their names into a set of the partition, in the step that ends the
request; here they are deleted, and taken off the set once they are. A name that the store does not
delete stays, and is tried again in the next pass.
"""

from __future__ import annotations

from handlers.limits import Limits
from handlers.log import Log
from handlers.objects import named
from handlers.store import PAGE, Store


async def delete_objects(log: Log, store: Store, partition: int) -> int:
    """Delete what is to be deleted; count it. Ends with the first page of which any stays."""
    waiting = log.keys.delete_retry(partition)
    deleted = 0
    while names := await log.read("SRANDMEMBER", waiting, PAGE):
        keys = [name.decode() for name in names]
        gone = await store.delete(keys)
        if gone:
            await log.read("SREM", waiting, *gone)
        deleted += len(gone)
        if len(gone) < len(keys):
            break
    return deleted


async def queue_delete(log: Log, limits: Limits, key: str) -> bool:
    """Have an object of ours deleted in the next pass; false where too many wait for that."""
    told = named(key)
    if told is None:
        raise ValueError(f"{key!r} is no object of ours")
    waiting = log.keys.delete_retry(log.keys.of(told.request_id))
    if await log.read("SCARD", waiting) >= limits.delete_retries:
        return False
    await log.read("SADD", waiting, key)
    return True
