"""Deleting objects whose request is gone (spec, Images).

`expire` and `abandon` put their names into a set of the partition, in the step that ends the
request; here they are deleted, and taken off the set once they are. A name that the store does not
delete stays, and is tried again in the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from handlers.limits import Limits
from handlers.log import Log
from handlers.objects import named
from handlers.store import PAGE, Store


async def delete_objects(log: Log, store: Store, partition: int) -> int:
    """Delete what is to be deleted, each name tried once; count it. Ends early where the store is
    away."""
    waiting, cursor, deleted = log.keys.delete_retry(partition), b"0", 0
    while True:
        cursor, names = await log.read("SSCAN", waiting, cursor, "COUNT", PAGE)
        gone = await _delete(store, [name.decode() for name in names])
        if gone:
            await log.read("SREM", waiting, *gone)
        deleted += len(gone)
        if store.away or int(cursor) == 0:
            return deleted


async def _delete(store: Store, keys: Sequence[str]) -> set[str]:
    """What of these is gone. A name that none of ours has may be one with which a store refuses
    all that is to be deleted along with it: it goes alone."""
    ours = [key for key in keys if named(key)]
    gone = await store.delete(ours) if ours else set()
    for key in keys:
        if named(key) is None and not store.away:
            gone |= await store.delete([key])
    return gone


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
