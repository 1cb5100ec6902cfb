"""Every object in the store is named by an open admission, a request or the set of what is to be
deleted, whatever fails, and is gone after the next pass once nobody needs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import get_args

import msgspec
import pytest

from events import types
from events.base import KUDOS
from handlers import cancel, errors
from handlers.account_changes import delete_account
from handlers.admission import Admission, Operation, admit, opened
from handlers.cancel import expire
from handlers.decoy import Decoys
from handlers.limits import Limits
from handlers.log import Log
from handlers.objects import Kept, messages_key
from handlers.rebuild import rebuild_state
from handlers.store import Place, Store
from handlers.submit import abandon
from handlers.verify import verify
from tests.handlers.invariants import check_objects
from tests.handlers.pool import MODEL, Pool, attached_of, operation_of, receiving, request_of
from tests.handlers.stores import Deletes, Trouble, Troubled
from tests.logged import logged
from tests.spec import spec

MINUTES = 60
TROUBLES = [each for each in get_args(Trouble) if each]


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Troubled]:
    opened = Troubled(place)
    yield opened
    opened.close()


@pytest.fixture
async def pool(pool: Pool, store: Troubled) -> Pool:
    pool.store = store
    return pool


async def _queued(pool: Pool, images: int = 2, *, offload: bool = True) -> str:
    receipt = await pool.submitted(request_of(images=images, offload=offload))
    return receipt.request_id


async def _admitted(pool: Pool, kept: Kept) -> Admission:
    """Its submitter died before it stored anything."""
    return await admit(
        pool.log, pool.limits, pool.client, pool.log.keys.new_request_id(), 1,
        operation=operation_of(), kept=kept,
    )  # fmt: skip


async def _repeat(pool: Pool, images: int, *, offload: bool = False) -> str:
    new = request_of(images=images, offload=offload)
    receipt = await pool.submitted(new, operation=operation_of())
    return receipt.request_id


async def _emptied(pool: Pool, store: Store) -> None:
    """The next pass leaves nothing in the store. Nothing is to be deleted after one more: who is
    judged by another partition's janitor may be named again behind the back of its own."""
    await check_objects(pool, store)
    await pool.sweep()
    assert await store.keys() == []
    await pool.sweep()
    assert await pool.doomed() == set()


async def _forgotten(pool: Pool, store: Store) -> None:
    """So it is when the last mark of every request is gone, too."""
    await pool.settle()
    await pool.pass_time(21 * MINUTES)
    await _emptied(pool, store)
    assert not [key for key in await pool.snapshot() if "horde:request:" in key]


@spec("Images", 26)
@spec("Messages offload", 14)
@pytest.mark.parametrize("ending", ["unserved", "cancelled", "answered"])
async def test_objects_live_and_end_with_their_request(
    pool: Pool, store: Troubled, ending: str
) -> None:
    request_id = await _queued(pool)
    named = Kept(2, offloaded=True).keys(request_id)
    if ending == "answered":
        job = await pool.assign(request_id, transports=("url",))
        assert job is not None
        await pool.reply(job.generation_id)
    if ending == "cancelled":
        await pool.cancel(request_id)
    await pool.settle()
    await pool.pass_time(19 * MINUTES)
    await pool.sweep()
    assert sorted(await store.keys()) == sorted(named)

    await pool.pass_time(2 * MINUTES)

    await _emptied(pool, store)
    assert await pool.request(request_id) == {}


@spec("Images", 26)
async def test_a_request_whose_content_is_lost_takes_its_objects_along(
    pool: Pool, store: Troubled
) -> None:
    """Its admission is open still: a repeat may be uploading, and what lands late is deleted when
    the mark that the request leaves ends."""
    request_id = await _queued(pool)
    await pool.log.read("DEL", pool.log.keys.content(request_id))
    assert await expire(pool.log, pool.limits, request_id)
    await _emptied(pool, store)
    await pool.settle()
    await pool.pass_time(60 + 20)  # an upload that began before the deadline may still land
    await pool.sweep()
    late = attached_of(2, offload=True)

    await store.put(late.objects(request_id, late.kept))

    await check_objects(pool, store)
    await pool.pass_time(11)
    await _emptied(pool, store)
    assert await pool.request(request_id) == {}


@spec("Images", 21, 26)
@spec("Messages offload", 12, 14)
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_store_that_fails_leaves_nothing_behind(
    pool: Pool, store: Troubled, trouble: Trouble
) -> None:
    store.trouble = trouble
    before = await pool.hash(pool.log.keys.account(pool.client.id))

    with pytest.raises(errors.ChatImageStorageUnavailable):
        await _queued(pool)

    assert len(await pool.doomed()) == 3
    await _emptied(pool, store)
    await pool.settle()
    after = await pool.hash(pool.log.keys.account(pool.client.id))
    assert (after["kudos"], after["waiting"]) == (before["kudos"], "0")
    assert not [name for name in after if name.startswith("admission:")]
    await store.land()
    await check_objects(pool, store)
    await _forgotten(pool, store)


@pytest.mark.parametrize("operation", [None, operation_of()], ids=["for good", "to come again"])
async def test_a_client_that_leaves_during_its_upload_leaves_nothing_behind(
    pool: Pool, store: Troubled, operation: Operation | None
) -> None:
    new = request_of(images=2)
    submitting = asyncio.ensure_future(pool.submitted(new, operation=operation))

    async def leaves() -> None:
        submitting.cancel()
        await asyncio.sleep(0)

    store.meanwhile = leaves
    await asyncio.wait({submitting})
    while pool.log._background:
        await asyncio.wait(pool.log._background)

    assert submitting.cancelled()
    if operation is not None:
        receipt = await pool.submitted(new, operation=operation)
        assert sorted(await store.keys()) == Kept(2).keys(receipt.request_id)
        await pool.pass_time(MINUTES + 1)
        await pool.sweep()
    else:
        assert len(await pool.doomed()) == 2
        await _emptied(pool, store)
    await _forgotten(pool, store)


@spec("Images", 21)
async def test_without_a_store_a_request_with_images_is_refused_and_any_other_is_not(
    pool: Pool,
) -> None:
    pool.store = None

    with pytest.raises(errors.ChatImageStorageUnavailable):
        await _queued(pool)

    await pool.submit()
    assert (await pool.words()).count("abandoned") == 1


async def test_objects_of_whoever_died_before_storing_the_request_are_deleted(
    pool: Pool, store: Troubled
) -> None:
    admission, attached = await _admitted(pool, Kept(2)), attached_of(2)
    await store.put(attached.objects(admission.request_id, attached.kept))
    await check_objects(pool, store)
    await pool.pass_time(40)
    await pool.sweep()
    assert len(await store.keys()) == 2

    await pool.pass_time(21)
    await pool.sweep()  # another partition's janitor may have been by already

    await _emptied(pool, store)
    await _forgotten(pool, store)


@pytest.mark.parametrize("life", [1, 20 * MINUTES])
async def test_the_mark_of_a_request_that_never_came_outlives_every_upload_of_its(
    pool: Pool, store: Troubled, life: int
) -> None:
    """However short requests live: one that began before the deadline may land 30 seconds later,
    and a submit that is late is refused as long as a request lives."""
    pool.limits = msgspec.structs.replace(pool.limits, request_ttl=life)
    store.trouble = "late"
    with pytest.raises(errors.ChatImageStorageUnavailable):
        await _queued(pool)
    (request_id,) = {key[:36] for key in await pool.doomed()}
    await pool.sweep()

    await pool.pass_time(max(60 + 30, life) - 20)
    await pool.sweep()
    await store.land()

    assert (await pool.request(request_id))["state"] == "abandoned"
    await check_objects(pool, store)
    await pool.pass_time(21)
    await _emptied(pool, store)


@pytest.mark.parametrize("judged", [False, True])
async def test_an_upload_that_takes_too_long_is_undone(
    pool: Pool, store: Troubled, judged: bool
) -> None:
    """Its admission's deadline passes under it, and the janitor may have been by."""

    async def passes() -> None:
        await pool.pass_time(61)
        if judged:
            await pool.sweep()

    store.meanwhile = passes

    with pytest.raises(errors.AdmissionLost):
        await _queued(pool)

    await _emptied(pool, store)
    await _forgotten(pool, store)


@pytest.mark.parametrize("trouble", ["", "after"])
async def test_an_upload_that_outlives_every_mark_of_its_request_is_undone(
    pool: Pool, store: Troubled, trouble: Trouble
) -> None:
    """Its process stood still for so long; it goes on by its own admission, or by another's."""
    admission = await _admitted(pool, Kept(2))

    async def passes() -> None:
        await pool.pass_time(61)
        await pool.sweep()
        await _forgotten(pool, store)
        await pool.settle()

    store.meanwhile, store.trouble = passes, trouble

    with pytest.raises(errors.AdmissionLost if not trouble else errors.ChatImageStorageUnavailable):
        await _repeat(pool, 2)

    assert await pool.doomed() == set(Kept(2).keys(admission.request_id))
    await _emptied(pool, store)


@pytest.mark.parametrize("trouble", ["", "after"])
async def test_an_upload_under_an_admission_that_was_given_up_is_undone_in_the_next_pass(
    pool: Pool, store: Troubled, trouble: Trouble
) -> None:
    """Whoever was admitted gives it up while the repeat uploads; the janitor has been by."""
    admission = await _admitted(pool, Kept(2))

    async def given_up() -> None:
        await abandon(pool.log, pool.limits, pool.client.id, admission.request_id, 0, kept=Kept(2))
        await pool.sweep()

    store.meanwhile, store.trouble = given_up, trouble

    with pytest.raises(errors.AdmissionLost if not trouble else errors.ChatImageStorageUnavailable):
        await _repeat(pool, 2)

    await _emptied(pool, store)
    await _forgotten(pool, store)


async def test_who_fails_to_store_what_a_repeat_has_stored_undoes_nothing(
    pool: Pool, store: Troubled
) -> None:
    repeated: list[str] = []

    async def repeat() -> None:
        repeated.append(await _repeat(pool, 2))

    store.meanwhile, store.trouble = repeat, "midway"

    with pytest.raises(errors.ChatImageStorageUnavailable):
        await _repeat(pool, 2)

    (request_id,) = repeated
    assert (await pool.request(request_id))["state"] == "open"
    await pool.sweep()
    assert sorted(await store.keys()) == Kept(2).keys(request_id)
    await check_objects(pool, store)


async def test_a_repeat_that_fails_leaves_the_admission_to_its_owner(
    pool: Pool, store: Troubled
) -> None:
    admission = await _admitted(pool, Kept(2))
    store.trouble = "midway"
    with pytest.raises(errors.ChatImageStorageUnavailable):
        await _repeat(pool, 2)
    await pool.sweep()
    await check_objects(pool, store)
    store.trouble = ""

    assert await _repeat(pool, 2) == admission.request_id
    await check_objects(pool, store)


@pytest.mark.parametrize(
    ("kept", "images", "offload"),
    [(Kept(2), 2, True), (Kept(2, offloaded=True), 2, False), (Kept(), 0, True)],
)
async def test_a_repeat_stores_what_the_admission_names(
    pool: Pool, store: Troubled, kept: Kept, images: int, offload: bool
) -> None:
    """What a URL brings may be larger this time, or the setting another."""
    admission = await _admitted(pool, kept)

    request_id = await _repeat(pool, images, offload=offload)

    assert request_id == admission.request_id
    assert sorted(await store.keys()) == sorted(kept.keys(request_id))
    assert Kept.parse((await pool.request(request_id)).get("objects", "")) == kept


async def test_a_repeat_that_has_nothing_to_store_needs_no_store(pool: Pool) -> None:
    await _admitted(pool, Kept())
    pool.store = None

    await _repeat(pool, 0, offload=True)


@pytest.mark.parametrize(
    ("kept", "images"), [(Kept(2), 1), (Kept(2), 0), (Kept(), 1), (Kept(0, offloaded=True), 0)]
)
async def test_a_repeat_whose_images_are_others_is_told_to_come_again(
    pool: Pool, store: Troubled, kept: Kept, images: int
) -> None:
    await _admitted(pool, kept)
    before = await pool.snapshot()

    with pytest.raises(errors.AdmissionLost):
        await _repeat(pool, images)

    assert await pool.snapshot() == before
    assert await store.keys() == []
    await pool.pass_time(61)
    with pytest.raises(errors.AdmissionLost):
        await _repeat(pool, images)
    await pool.settle()
    assert await _repeat(pool, images)
    await check_objects(pool, store)


async def test_a_repeat_that_comes_too_late_uploads_nothing(pool: Pool, store: Troubled) -> None:
    await _admitted(pool, Kept(2))
    await pool.pass_time(61)
    store.trouble = "after"  # and would be told of a store that is away

    with pytest.raises(errors.AdmissionLost):
        await _repeat(pool, 2)

    assert await store.keys() == []
    store.trouble = ""
    await pool.settle()
    assert await _repeat(pool, 2)


@spec("Images", 27)
@pytest.mark.parametrize("deletes", ["none", "images"])
async def test_what_the_store_does_not_delete_is_tried_again(
    pool: Pool, store: Troubled, deletes: Deletes
) -> None:
    request_id = await _queued(pool)
    kept = Kept(2, offloaded=True).keys(request_id)
    left = set(kept) if deletes == "none" else {messages_key(request_id)}
    await pool.pass_time(MINUTES + 1)
    await pool.sweep()  # its admission's deadline passed: it came
    await pool.pass_time(20 * MINUTES)
    store.deletes = deletes

    for _ in range(2):
        await pool.sweep()
        assert await pool.doomed() == set(await store.keys()) == left

    store.deletes = "all"
    assert (await pool.sweep()).deleted == len(left)
    await _emptied(pool, store)


@spec("Images", 28)
async def test_what_passes_the_bound_of_deletions_is_logged(pool: Pool, store: Troubled) -> None:
    """Whatever ended the requests; and it is the bound of all that waits."""
    assert Limits().delete_retries == 100_000
    expired = await _queued(pool, offload=False)
    first, second, third = (pool.log.keys.new_id_beside(expired) for _ in range(3))
    limits = msgspec.structs.replace(pool.limits, delete_retries=3)
    with logged(cancel.logger) as lines:
        await abandon(pool.log, limits, pool.client.id, first, 0, kept=Kept(2))
        await pool.log.read("DEL", pool.log.keys.content(expired))
        await expire(pool.log, limits, expired)
        await abandon(pool.log, limits, pool.client.id, second, 0, kept=Kept(1))
        await abandon(pool.log, limits, pool.client.id, third, 0, kept=Kept(1))

    assert await pool.doomed() == {*Kept(2).keys(first), *Kept(1).keys(second)}
    dropped = [line for line in lines if line["event"] == "object_deletes_dropped"]
    assert [(line["request_id"], line["keys"]) for line in dropped] == [
        (expired, Kept(2).keys(expired)),
        (third, Kept(1).keys(third)),
    ]
    keys = pool.log.keys
    assert await pool.log.read("TTL", keys.delete_retry(keys.of(first))) == -1


async def test_folding_the_log_anew_names_what_was_named_and_forgets_no_deletion(
    pool: Pool, store: Troubled, scratch: Log
) -> None:
    await _queued(pool)
    await _admitted(pool, Kept(1))
    lost = await _queued(pool, 3, offload=False)
    await pool.log.read("DEL", pool.log.keys.content(lost))
    await expire(pool.log, pool.limits, lost)
    store.trouble, store.deletes = "midway", "none"
    with pytest.raises(errors.ChatImageStorageUnavailable):
        await _queued(pool)
    strange = pool.log.keys.delete_retry(0)
    await pool.log.read("SADD", strange, "of another time")  # no event names it
    before = await pool.snapshot()

    assert await verify(pool.log, scratch) == []
    await rebuild_state(pool.log)

    assert await pool.snapshot() == before
    await check_objects(pool, store)


async def test_a_charge_leaves_what_an_admission_names(pool: Pool) -> None:
    """It rewrites the account's note of it."""
    new = request_of(jobs=2, hold=20 * KUDOS, images=2, offload=True)
    request_id = (await pool.submitted(new)).request_id
    job = await pool.assign(request_id, transports=("url",))
    assert job is not None
    await pool.reply(job.generation_id)

    await pool.settle()

    admission = await opened(pool.log, pool.client.id, request_id)
    assert admission is not None
    assert admission.kept == Kept(2, offloaded=True)


async def test_an_account_that_is_deleted_leaves_no_objects(pool: Pool, store: Troubled) -> None:
    admission, attached = await _admitted(pool, Kept(2)), attached_of(2)
    await store.put(attached.objects(admission.request_id, attached.kept))
    await _queued(pool)

    await delete_account(pool.log, pool.client.id)

    await check_objects(pool, store)
    await pool.pass_time(61)
    await pool.sweep()
    await _forgotten(pool, store)


TRANSPORTS: list[tuple[Kept, tuple[str, ...], str | None]] = [
    (Kept(), (), ""),
    (Kept(), ("base64", "messages_url", "url"), ""),
    (Kept(2), ("base64", "messages_url", "url"), "url"),
    (Kept(2), ("base64", "messages_url"), "base64"),
    (Kept(2), ("messages_url",), None),
    (Kept(2), (), None),
    (Kept(2, offloaded=True), ("messages_url", "url"), "messages_url"),
    (Kept(2, offloaded=True), ("base64", "url"), "url"),
    (Kept(2, offloaded=True), ("base64",), "base64"),
    (Kept(2, offloaded=True), ("messages_url",), None),
    (Kept(0, offloaded=True), ("messages_url",), "messages_url"),
    (Kept(0, offloaded=True), ("base64", "url"), ""),
    (Kept(0, offloaded=True), (), ""),
]
"""What a request keeps, what a worker declares, and how it gets the job; None: not at all."""


@spec("Images", 22)
@spec("Messages offload", 11)
async def test_a_worker_gets_what_it_declared_or_no_job(pool: Pool) -> None:
    decoys = Decoys(pool.log, pool.limits)
    given: dict[str, str | None] = {}
    for n, (kept, declared, transport) in enumerate(TRANSPORTS):
        request_id = await _queued(pool, kept.images, offload=kept.offloaded)
        spy = await pool.worker(f"spy {n % 3}")
        trick = await decoys.give(spy, receiving(*declared), request_id, MODEL)
        job = await pool.assign(request_id, transports=declared)
        for each in (trick, job):
            assert (each.transport if each else None) == transport, (kept, declared)
        given[request_id] = transport

    recorded = {
        entry.recorded.event.request_id: entry.recorded.event.image_transport
        for entry in await pool.events()
        if isinstance(entry.recorded.event, types.Assigned)
    }
    assert recorded == {id_: each for id_, each in given.items() if each is not None}
