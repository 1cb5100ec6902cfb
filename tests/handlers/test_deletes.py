"""Objects of requests that are gone are deleted, whatever the store does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from handlers.deletes import queue_delete
from handlers.janitor import Janitor
from handlers.objects import image_key, messages_key
from handlers.store import Object, Place, Store
from hordechat.datadir import free_port
from tests.handlers.pool import Pool, request_of
from tests.spec import spec

SOMEBODY = "3f0c6a5e-7f52-4a49-8a55-6d0c9f1e2a33"


class Hanging(Store):
    """Its deletions take until they are let go on."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.go_on = asyncio.Event()

    async def delete(self, keys: Sequence[str]) -> set[str]:
        await self.go_on.wait()
        return await super().delete(keys)


@pytest.fixture
async def pool(pool: Pool, store: Store) -> Pool:
    pool.store = store
    return pool


async def _expired(pool: Pool) -> str:
    """A request of two images whose time is over."""
    request_id = (await pool.submitted(request_of(images=2))).request_id
    await pool.pass_time(pool.limits.admission_deadline + 1)
    await pool.sweep()  # it came
    await pool.pass_time(pool.limits.request_ttl - pool.limits.admission_deadline)
    return request_id


async def _to_be_deleted(pool: Pool, keys: Sequence[str]) -> None:
    for key in keys:
        await pool.log.read("SADD", pool.log.keys.delete_retry(0), key)


@spec("Images", 26)
async def test_objects_are_gone_in_the_pass_that_ends_their_request(
    pool: Pool, store: Store
) -> None:
    await _expired(pool)

    swept = await pool.sweep()

    assert (swept.expired, swept.deleted) == (1, 2)
    assert await store.keys() == []
    assert await pool.doomed() == set()


@spec("Images", 27)
async def test_what_a_store_that_is_away_keeps_is_deleted_once_it_is_back(
    pool: Pool, store: Store, place: Place
) -> None:
    request_id = await _expired(pool)
    named = {image_key(request_id, n) for n in range(2)}
    away = Store(place._replace(endpoint=f"http://127.0.0.1:{free_port()}"))
    pool.store, pool.janitors = away, {}

    for _ in range(2):
        swept = await pool.sweep()
        assert swept.deleted == 0
        assert await pool.doomed() == named == set(await store.keys())
    away.close()
    await pool.settle()

    pool.store, pool.janitors = store, {}
    assert (await pool.sweep()).deleted == 2
    assert await pool.doomed() == set(await store.keys()) == set()


async def test_a_store_that_hangs_does_not_hold_up_what_else_is_due(
    pool: Pool, place: Place
) -> None:
    """What it was asked to delete goes on behind the passes, and is counted in the one after."""
    store = Hanging(place)
    pool.janitors = {each: Janitor(pool.log, pool.limits, each) for each in pool.log.keys.all()}
    first = await _expired(pool)
    partition = pool.log.keys.of(first)
    janitor = Janitor(pool.log, pool.limits, partition, store, patience=0.01)
    swept = await janitor.sweep()
    assert (swept.expired, swept.deleted) == (1, 0)

    while pool.log.keys.of(second := await _expired(pool)) != partition:
        pass
    swept = await janitor.sweep()
    assert swept.expired == 1
    assert await pool.request(second) == {}
    assert await pool.log.read("SCARD", pool.log.keys.delete_retry(partition)) == 4

    assert janitor._deleting is not None
    store.go_on.set()
    await asyncio.wait({janitor._deleting})
    assert (await janitor.sweep()).deleted == 2
    await janitor.close()
    pool.store, pool.janitors = store, {}
    await pool.settle()
    await pool.sweep()
    assert await pool.doomed() == set()
    store.close()


async def test_a_janitor_that_is_relieved_leaves_no_call_behind(pool: Pool, place: Place) -> None:
    store = Hanging(place)
    janitor = Janitor(pool.log, pool.limits, 0, store, patience=0)
    await _to_be_deleted(pool, [image_key(SOMEBODY, 0)])
    await janitor.sweep()
    running = asyncio.all_tasks()

    await janitor.close()

    assert len(running - asyncio.all_tasks()) == 1
    assert await pool.doomed() == {image_key(SOMEBODY, 0)}
    store.close()


async def test_names_that_do_not_delete_do_not_keep_the_rest(pool: Pool, store: Store) -> None:
    """Not even one that makes the store refuse whatever is to be deleted along with it."""
    named = [image_key(SOMEBODY, 0), messages_key(SOMEBODY)]
    await store.put(Object(key, b"jpeg") for key in named)
    await _to_be_deleted(pool, [*named, "what no XML can hold \x01"])

    await pool.sweep()

    assert await pool.doomed() == {"what no XML can hold \x01"}
    assert await store.keys() == []


async def test_names_are_tried_page_by_page_until_the_store_is_away(
    pool: Pool, store: Store, place: Place
) -> None:
    """A set of several pages, in a store that fails at the first."""
    named = [image_key(SOMEBODY, n) for n in range(1500)]
    await pool.log.read("SADD", pool.log.keys.delete_retry(0), *named)
    asked: list[int] = []

    class Away(Store):
        async def delete(self, keys: Sequence[str]) -> set[str]:
            asked.append(len(keys))
            return await super().delete(keys)

    pool.store = away = Away(place._replace(endpoint=f"http://127.0.0.1:{free_port()}"))
    await pool.sweep()
    away.close()
    assert len(asked) == 1
    assert len(await pool.doomed()) == 1500

    pool.store, pool.janitors = store, {}
    assert (await pool.sweep()).deleted == 1500
    assert await pool.doomed() == set()


async def test_others_objects_in_the_same_bucket_stay(pool: Pool, store: Store) -> None:
    theirs = [image_key(SOMEBODY, 0), "readme.txt"]
    await store.put(Object(key, b"theirs") for key in theirs)
    await _expired(pool)

    await pool.sweep()

    assert sorted(await store.keys()) == theirs


async def test_an_operator_may_add_what_is_to_be_deleted_up_to_the_bound(pool: Pool) -> None:
    limits = msgspec.structs.replace(pool.limits, delete_retries=1)
    keys = [image_key(SOMEBODY, 0), image_key(SOMEBODY, 1)]

    assert [await queue_delete(pool.log, limits, key) for key in keys] == [True, False]

    assert await pool.doomed() == {keys[0]}
    with pytest.raises(ValueError, match="no object of ours"):
        await queue_delete(pool.log, limits, "readme.txt")
