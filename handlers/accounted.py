"""Whether each object in the store is accounted for, and each that a request names is there.

It works beside running commands, for what accounts for an object only moves forward: an open
admission, then its request or a tombstone, then the set of what is to be deleted, then nothing, and
the object is gone before its name leaves that set. So a suspect is looked for in that order, and
last in the store again; and one that a request names and that is not there is missing where the
request names it still.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from events.keys import Due
from handlers.admission import opened
from handlers.errors import Rebuilding
from handlers.log import Log
from handlers.objects import Kept, Named, named
from handlers.store import Found, Store

PAGE = 500
"""Requests, or admissions, that are read together."""

AT_ONCE = 50
"""Objects that the store is asked for together."""

By = Literal["request", "deletion", "tombstone", "admission"]
"""What accounts for an object."""


class Orphan(NamedTuple):
    """An object that nothing accounts for."""

    bucket: str
    key: str
    size: int  # bytes


class Missing(NamedTuple):
    """An object that a request names, and that is not there."""

    bucket: str
    key: str


class Tally:
    """What was looked at so far."""

    def __init__(self) -> None:
        self.objects = 0
        """With names of ours."""
        self.size = 0
        """Of those, bytes."""
        self.foreign = 0
        """Objects with other names: nobody asks about them."""
        self.by: Counter[By] = Counter()
        self.orphans = 0
        self.missing = 0


class _Ours(NamedTuple):
    found: Found
    named: Named


class _Listed:
    """Which names were listed. Kept by their hashes, of 64 bits: one in 10^13 that are missing
    would be overlooked for a million that are there."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, keys: Iterable[str]) -> None:
        self._hashes.extend(map(hash, keys))

    def close(self) -> None:
        """All were: look-ups may begin."""
        self._hashes = array("q", sorted(self._hashes))

    def __contains__(self, key: str) -> bool:
        at = bisect_left(self._hashes, hash(key))
        return at < len(self._hashes) and self._hashes[at] == hash(key)


async def check(log: Log, store: Store, tally: Tally) -> AsyncIterator[Orphan | Missing]:
    """Every object that is not accounted for, and every one that is missing, counted in `tally`.

    In memory there is a page of them, and eight bytes of each. Raise ChatImageStorageUnavailable,
    RedisUnavailable, and Rebuilding: while hot state is rebuilt nothing can be told.
    """
    await _not_rebuilding(log)
    listed = _Listed()
    async for page in store.pages():
        ours = [_Ours(each, told) for each in page if (told := named(each.key))]
        tally.foreign += len(page) - len(ours)
        tally.objects += len(ours)
        tally.size += sum(each.found.size for each in ours)
        listed.add(
            each.found.key for each in ours if each.found.bucket == store.bucket(each.found.key)
        )
        async for orphan in _orphans(log, store, ours, tally):
            tally.orphans += 1
            yield orphan
    listed.close()
    missed: set[str] = set()
    for partition in log.keys.all():
        async for request_ids in _due(log, partition, "request"):
            for missing in await _missing(log, store, request_ids, listed):
                if missing.key not in missed:  # a scan may tell a request twice
                    missed.add(missing.key)
                    tally.missing += 1
                    yield missing
    await _not_rebuilding(log)


async def _orphans(
    log: Log, store: Store, ours: Sequence[_Ours], tally: Tally
) -> AsyncIterator[Orphan]:
    suspects = []
    for each, by in zip(ours, await _accounts(log, ours), strict=True):
        if by is None:
            suspects.append(each)
        else:
            tally.by[by] += 1
    if not suspects:
        return
    admitted = await _admitted(log, {each.named.request_id for each in suspects})
    left: list[Found] = []
    for each, by in zip(suspects, await _accounts(log, suspects), strict=True):
        kept = admitted.get(each.named.request_id)
        if kept is not None and kept.holds(each.named):
            tally.by["admission"] += 1
        elif by is not None:
            tally.by[by] += 1
        else:
            left.append(each.found)
    there = await _there(store, [(each.bucket, each.key) for each in left])
    await _not_rebuilding(log)
    for found, held in zip(left, there, strict=True):
        if held:
            yield Orphan(*found)
        else:
            tally.objects -= 1  # it went meanwhile
            tally.size -= found.size


async def _accounts(log: Log, ours: Sequence[_Ours]) -> list[By | None]:
    """What accounts for each object, but for admissions: requests are read first."""
    request_ids = list(dict.fromkeys(each.named.request_id for each in ours))
    requests = dict(zip(request_ids, await _requests(log, request_ids), strict=True))
    deleted = await asyncio.gather(
        *(
            log.read(
                "SISMEMBER",
                log.keys.delete_retry(log.keys.of(each.named.request_id)),
                each.found.key,
            )
            for each in ours
        )
    )
    found: list[By | None] = []
    for each, waits in zip(ours, deleted, strict=True):
        request = requests[each.named.request_id]
        names = request is not None and request.kept.holds(each.named)
        if names and request is not None and request.alive:
            found.append("request")
        elif waits:
            found.append("deletion")
        else:
            found.append("tombstone" if names else None)
    return found


class _Request(NamedTuple):
    kept: Kept
    alive: bool
    """Whether it came and is not forgotten yet: else this is its tombstone."""


async def _requests(log: Log, request_ids: Sequence[str]) -> list[_Request | None]:
    told = await asyncio.gather(
        *(log.read("HMGET", log.keys.request(each), "state", "objects") for each in request_ids)
    )
    return [
        None
        if state is None
        else _Request(Kept.parse((objects or b"").decode()), state != b"abandoned")
        for state, objects in told
    ]


async def _admitted(log: Log, request_ids: Collection[str]) -> dict[str, Kept]:
    """What those of these requests may have stored whose admission is open."""
    found: dict[str, Kept] = {}
    for partition in log.keys.all():
        async for members in _due(log, partition, "admission"):
            for member in members:
                user_id, request_id = member.split(":", 1)
                if request_id in request_ids:
                    admission = await opened(log, int(user_id), request_id)
                    if admission is not None:
                        found[request_id] = admission.kept
    return found


async def _missing(
    log: Log, store: Store, request_ids: Sequence[str], listed: _Listed
) -> list[Missing]:
    """Objects of these requests that are not in the store. What was listed is there."""
    named = [
        (request_id, Missing(store.bucket(key), key))
        for request_id, request in zip(request_ids, await _requests(log, request_ids), strict=True)
        if request is not None and request.alive
        for key in request.kept.keys(request_id)
        if key not in listed
    ]
    there = await _there(store, [missing for _, missing in named])
    lost = [each for each, held in zip(named, there, strict=True) if not held]
    requests = await _requests(log, [request_id for request_id, _ in lost])
    return [
        missing
        for (_, missing), request in zip(lost, requests, strict=True)
        if request is not None and request.alive
    ]


async def _there(store: Store, objects: Sequence[tuple[str, str]]) -> list[bool]:
    """Which of these are in the store: buckets and names."""
    found: list[bool] = []
    for at in range(0, len(objects), AT_ONCE):
        some = objects[at : at + AT_ONCE]
        found += await asyncio.gather(*(store.holds(key, bucket) for bucket, key in some))
    return found


async def _due(log: Log, partition: int, what: Due) -> AsyncIterator[list[str]]:
    """The members of a due-set, page by page, whatever comes and goes meanwhile. Some may come
    twice."""
    key, cursor = log.keys.due(partition, what), b"0"
    while True:
        cursor, flat = await log.read("ZSCAN", key, cursor, "COUNT", PAGE)
        yield [member.decode() for member in flat[::2]]
        if int(cursor) == 0:
            return


async def _not_rebuilding(log: Log) -> None:
    for partition in log.keys.all():
        if await log.read("HGET", log.keys.control(partition), "gate"):
            raise Rebuilding
