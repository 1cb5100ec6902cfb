"""Deleting objects whose request is gone (spec, Images).

`expire` and `abandon` put their names into a set of the partition, in the step that ends the
request; here they are deleted, and taken off the set once they are. A name that the store does not
delete stays, and is tried again in the next pass.
"""

from __future__ import annotations

from handlers.log import Log
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
