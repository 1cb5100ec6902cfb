"""What a check of the object store tells: nothing where all is well, and whatever is not."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from handlers.accounted import Missing, Orphan, Tally, check
from handlers.admission import admit
from handlers.errors import ChatImageStorageUnavailable, Rebuilding
from handlers.objects import Kept, image_key, messages_key
from handlers.store import Bounds, Object, Place, Store
from hordechat.datadir import free_port
from tests.handlers.pool import Pool, request_of
from tests.spec import spec

SOMEBODY = "3f0c6a5e-7f52-4a49-8a55-6d0c9f1e2a33"


@pytest.fixture
async def pool(pool: Pool, store: Store) -> Pool:
    pool.store = store
    return pool


async def _checked(pool: Pool) -> tuple[list[Orphan | Missing], Tally]:
    tally = Tally()
    assert pool.store is not None
    return [each async for each in check(pool.log, pool.store, tally)], tally


async def _with_images(pool: Pool, images: int = 2, *, offload: bool = False) -> str:
    return (await pool.submitted(request_of(images=images, offload=offload))).request_id


@spec("Images", 29)
async def test_whatever_becomes_of_a_request_its_objects_are_accounted_for(
    pool: Pool, store: Store
) -> None:
    await _with_images(pool, 2, offload=True)
    admission = await admit(
        pool.log, pool.limits, pool.client, pool.log.keys.new_request_id(), 1, kept=Kept(1)
    )
    late = Object(image_key(admission.request_id, 0), b"jpeg")
    await store.put([late])
    found, tally = await _checked(pool)
    assert (found, tally.by) == ([], {"request": 3, "admission": 1})
    assert tally.objects == 4

    pool.store = None  # of which its janitors have none: nothing is deleted
    await pool.pass_time(pool.limits.admission_deadline + 1)
    await pool.sweep()
    await pool.settle()
    await pool.pass_time(pool.limits.request_ttl - pool.limits.admission_deadline)
    await pool.sweep()
    pool.store, pool.janitors = store, {}
    found, tally = await _checked(pool)
    assert (found, tally.by) == ([], {"deletion": 4})

    await pool.sweep()
    await store.put([late])  # an upload lands that was under way when it was given up
    found, tally = await _checked(pool)
    assert (found, tally.by) == ([], {"tombstone": 1})


async def test_a_request_that_is_done_has_its_objects(pool: Pool, store: Store) -> None:
    request_id = await _with_images(pool, 2)
    await pool.cancel(request_id)
    assert (await _checked(pool))[0] == []

    key = image_key(request_id, 1)
    await store.delete([key])

    found, tally = await _checked(pool)
    assert found == [Missing(store.bucket(key), key)]
    assert (tally.missing, tally.orphans) == (1, 0)


async def test_messages_are_missed_in_the_bucket_where_they_belong(
    pool: Pool, store: Store, place: Place
) -> None:
    """Another bucket was chosen for them while they waited."""
    request_id = await _with_images(pool, 0, offload=True)
    pool.store = moved = Store(
        place._replace(messages=f"{place.messages}-new", images=place.messages)
    )

    found, tally = await _checked(pool)
    moved.close()

    assert found == [Missing(f"{place.messages}-new", messages_key(request_id))]
    assert tally.by == {"request": 1}


async def test_what_nothing_names_is_an_orphan(pool: Pool, store: Store, place: Place) -> None:
    request_id = await _with_images(pool, 2)
    orphans = [
        image_key(request_id, 2),  # it has two, and no messages
        messages_key(request_id),
        image_key(SOMEBODY, 0),
    ]
    await store.put(Object(key, b"12345") for key in orphans)

    found, tally = await _checked(pool)

    told = [Orphan(store.bucket(key), key, 5) for key in orphans]
    assert sorted(found) == sorted(told)
    assert (tally.orphans, tally.objects, tally.by) == (3, 5, {"request": 2})
    assert tally.size == 3 * 5 + len("jpeg 0jpeg 1")


async def test_an_open_admission_accounts_for_what_it_names_and_no_more(
    pool: Pool, store: Store
) -> None:
    request_id = pool.log.keys.new_request_id()
    await admit(pool.log, pool.limits, pool.client, request_id, 1, kept=Kept(1))
    await store.put(Object(image_key(request_id, n), b"jpeg") for n in range(2))

    found, tally = await _checked(pool)

    assert [each.key for each in found] == [image_key(request_id, 1)]
    assert tally.by == {"admission": 1}


async def test_objects_of_others_are_nobody_s_orphans(pool: Pool, place: Place) -> None:
    names = [
        "readme.txt",
        f"copies/{image_key(SOMEBODY, 0)}",
        image_key(SOMEBODY.upper(), 0),
        f"{SOMEBODY}_chat_00.jpg",
        f"{SOMEBODY}_chat_-1.jpg",
        f"{SOMEBODY}_chat_0.jpg.part",
        f"{SOMEBODY}.webp",
    ]
    assert pool.store is not None
    await pool.store.put(Object(name, b"theirs") for name in names)

    found, tally = await _checked(pool)

    assert (found, tally.foreign, tally.objects) == ([], len(names), 0)


async def test_pages_are_looked_at_one_by_one(pool: Pool, place: Place) -> None:
    pool.store = store = Store(place, Bounds(page=3))
    ids = [str(uuid.uuid4()) for _ in range(5)]
    await store.put(Object(image_key(each, 0), b"jpeg") for each in ids)
    request_ids = [await _with_images(pool, 1) for _ in range(5)]
    await store.delete([image_key(each, 0) for each in request_ids])

    found, _ = await _checked(pool)

    assert {each.key for each in found} == {image_key(each, 0) for each in ids + request_ids}
    assert [len(page) async for page in store.pages()] == [3, 2]
    store.close()


async def test_nothing_is_told_while_hot_state_is_rebuilt(pool: Pool) -> None:
    """Nor that all is well, where that began under the check."""
    gate = pool.log.keys.control(pool.log.keys.partitions - 1)
    assert pool.store is not None
    for _ in range(2):
        request_id = await _with_images(pool, 1)
    await pool.store.delete([image_key(request_id, 0)])
    checking = check(pool.log, pool.store, Tally())
    assert isinstance(await anext(checking), Missing)

    await pool.log.read("HSET", gate, "gate", "r")

    with pytest.raises(Rebuilding):
        await anext(checking)
    with pytest.raises(Rebuilding):
        await _checked(pool)


async def test_a_store_that_is_away_is_not_an_empty_one(pool: Pool, place: Place) -> None:
    await _with_images(pool, 1)
    pool.store = Store(place._replace(endpoint=f"http://127.0.0.1:{free_port()}"))

    with pytest.raises(ChatImageStorageUnavailable):
        await _checked(pool)


async def test_requests_that_come_and_go_meanwhile_are_no_false_alarm(
    pool: Pool, store: Store
) -> None:
    """They go their whole way while the check is made again and again."""
    over = asyncio.Event()

    async def come_and_go() -> None:
        for n in range(2):
            requests = [
                await _with_images(pool, images, offload=n % 2 == 0) for images in range(1, 4)
            ]
            await pool.cancel(requests[0])
            await pool.settle()
            await pool.pass_time(pool.limits.request_ttl + 1)
            await pool.sweep()

    async def look() -> set[str]:
        seen: set[str] = set()
        while not over.is_set():
            found, tally = await _checked(pool)
            assert found == []
            seen |= set(tally.by)
        return seen

    looking = asyncio.ensure_future(look())
    try:
        await come_and_go()
    finally:
        over.set()
        seen = await looking

    assert "request" in seen
