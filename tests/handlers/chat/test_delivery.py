"""What a worker gets of a request that keeps images or messages in the object store, and what
happens where it cannot get it."""

from __future__ import annotations

import asyncio
import base64
import random
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest

from events.types import Declaration, Demand, Expired
from handlers import pop, submit
from handlers.chat import payload
from handlers.chat.attached import DATA_URL, Attached
from handlers.chat.body import ImagePart, ImageUrl, SystemMessage, TextPart, UserMessage
from handlers.chat.delivery import Delivery, Handed
from handlers.chat.images import MAX_TOTAL_BYTES
from handlers.decoy import Decoys
from handlers.log import Log
from handlers.objects import image_key, messages_key
from handlers.store import ObjectMissing, Place, Store
from hordechat.datadir import free_port
from hordechat.embedded import s3
from tests.e2e.conftest import Server
from tests.handlers.pool import DECLARATION, MODEL, TARIFF, Pool
from tests.handlers.stores import place_in
from tests.spec import spec

pytestmark = pytest.mark.parametrize("log", ["one partition"], indirect=True)

IMAGES = tuple(random.Random(n).randbytes(size) for n, size in enumerate((1, 2, 3, 500_000)))
"""JPEGs are what they are called; of sizes that end in every place of base64, one in pieces."""
PAYLOAD = b'{"max_length":512}'
SEES = msgspec.structs.replace(
    DECLARATION, chat_features=(*DECLARATION.chat_features, "vision"), image_transports=("url",)
)
READ_FOR = msgspec.structs.replace(SEES, image_transports=("base64",))
FETCHES_ALL = msgspec.structs.replace(SEES, image_transports=("base64", "messages_url", "url"))


@pytest.fixture
async def delivered(log: Log, pool: Pool, store: Store) -> AsyncIterator[Delivery]:
    opened = Delivery(log, pool.limits, store)
    yield opened
    await opened.close()


def _messages(count: int) -> list[Any]:
    """Several messages, one image a part, their details in turn."""
    details: list[Any] = ["low", "high", "auto", msgspec.UNSET]
    parts = [
        ImagePart(ImageUrl("https://example.com/as-submitted", detail=details[n % 4]))
        for n in range(count)
    ]
    return [
        SystemMessage(content='horde-r2://x "quoted" é'),
        UserMessage(content=[TextPart("what is"), *parts[: count // 2]]),
        UserMessage(content=[*parts[count // 2 :], TextPart("this?")], name="me"),
    ]


async def _submit(
    pool: Pool,
    store: Store,
    images: tuple[bytes, ...] = IMAGES,
    *,
    offload: bool = False,
    jobs: int = 1,
) -> str:
    features = ("prompt_overflow_refused", *(["vision"] if images else []))
    new = submit.NewRequest(
        chat=True,
        jobs=jobs,
        max_length=512,
        stream=False,
        demand=Demand(models=(MODEL,), features=features, images=bool(images)),
        content={"payload": PAYLOAD},
        attached=Attached(_messages(len(images)), images, offload=offload),
    )
    receipt = await submit.submit(
        pool.log, pool.limits, TARIFF, pool.client, new, pool.settled, store
    )
    return receipt.request_id


async def _hand_out(
    pool: Pool,
    delivered: Delivery,
    request_id: str,
    declaration: Declaration = READ_FOR,
    *,
    images: bool = True,
    name: str = "w",
) -> Handed | None:
    worker = pool.names.get(name) or await pool.worker(name)

    def assign(declaration: Declaration) -> Any:
        return pop.assign(pool.log, pool.limits, worker, declaration, request_id, MODEL)

    return await delivered.hand_out(declaration, assign, images=images)


async def _got(handed: Handed | None) -> dict[str, Any]:
    """The payload as the worker reads it."""
    assert handed is not None
    delivered = handed.delivered
    answer = b'{"payload":' + bytes(delivered.payload) + b"}"
    if delivered.images:
        length = delivered.length(answer)
        answer = b"".join([piece async for piece in delivered.sent(answer)])
        assert len(answer) == length
    return dict(msgspec.json.decode(answer)["payload"])


def _urls(got: dict[str, Any]) -> list[str]:
    return [
        part["image_url"]["url"]
        for message in got["messages"]
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] == "image_url"
    ]


def _without_urls(messages: Any) -> Any:
    plain = msgspec.json.decode(payload.messages(messages)) if messages else []
    for message in plain:
        if not isinstance(message["content"], str):
            for part in message["content"]:
                if part["type"] == "image_url":
                    part["image_url"]["url"] = ""
    return plain


def _seconds(url: str) -> int:
    return int(parse_qs(urlsplit(url).query)["X-Amz-Expires"][0])


async def _transport(pool: Pool, handed: Handed | None) -> str:
    """As the generation has it."""
    assert handed is not None
    key = pool.log.keys.generation(handed.job.generation_id)
    return (await pool.hash(key)).get("image_transport", "")


@spec("Images", 24, 25)
async def test_who_does_not_fetch_gets_the_bytes_in_place_of_each_reference(
    pool: Pool, store: Store, delivered: Delivery
) -> None:
    request_id = await _submit(pool, store)

    handed = await _hand_out(pool, delivered, request_id)

    got = await _got(handed)
    assert _urls(got) == [DATA_URL + base64.b64encode(each).decode() for each in IMAGES]
    decoded = msgspec.json.decode(msgspec.json.encode(got["messages"]), type=list[Any])
    for message in decoded:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image_url":
                part["image_url"]["url"] = ""
    assert decoded == _without_urls(_messages(len(IMAGES)))
    assert got["max_length"] == 512
    assert await _transport(pool, handed) == "base64"


@spec("Images", 9, 23, 25)
@pytest.mark.parametrize(("lease", "seconds"), [(150, 600), (900, 900)])
async def test_who_fetches_gets_signed_urls_of_the_public_endpoint(
    log: Log, pool: Pool, place: Place, lease: int, seconds: int
) -> None:
    store = Store(place._replace(public="https://images.example"))
    pool.limits = msgspec.structs.replace(pool.limits, text_job_lease=lease)
    delivered = Delivery(log, pool.limits, store)
    request_id = await _submit(pool, store)

    handed = await _hand_out(pool, delivered, request_id, SEES)

    got = await _got(handed)
    parts = [urlsplit(url) for url in _urls(got)]
    assert [(each.scheme, each.netloc, each.path) for each in parts] == [
        ("https", "images.example", f"/{place.images}/{image_key(request_id, n)}") for n in range(4)
    ]
    assert [_seconds(url) for url in _urls(got)] == [seconds] * 4
    details = [part.get("detail") for m in got["messages"][1:] for part in _shown(m)]
    assert details == ["low", "high", "auto", None]
    assert await _transport(pool, handed) == "url"
    store.close()


def _shown(message: Any) -> list[Any]:
    return [part["image_url"] for part in message["content"] if part["type"] == "image_url"]


@spec("Images", 23)
@spec("Messages offload", 10)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("declaration", "seconds"), [(SEES, 600), (FETCHES_ALL, 120)])
async def test_a_signed_url_leads_nowhere_once_its_time_is_over(
    log: Log, pool: Pool, place: Place, declaration: Declaration, seconds: int, late: bool
) -> None:
    """By the store's clock. The URL is of a moment ago, then a little older than it lasts."""
    passed = timedelta(seconds=seconds + 2 if late else seconds - 30)
    store = Store(place, now=lambda: datetime.now(UTC) - passed)
    delivered = Delivery(log, pool.limits, store)
    request_id = await _submit(pool, store, offload=True)

    got = await _got(await _hand_out(pool, delivered, request_id, declaration))

    url = got.get("messages_url") or _urls(got)[0]
    async with httpx.AsyncClient() as client:
        assert (await client.get(url)).status_code == (403 if late else 200)
    store.close()


@spec("Images", 23)
async def test_url_goes_before_base64(pool: Pool, store: Store, delivered: Delivery) -> None:
    request_id = await _submit(pool, store)
    both = msgspec.structs.replace(SEES, image_transports=("base64", "url"))

    handed = await _hand_out(pool, delivered, request_id, both)

    assert await _transport(pool, handed) == "url"
    assert all(url.startswith("http://") for url in _urls(await _got(handed)))


@spec("Messages offload", 10)
@pytest.mark.parametrize("images", [(), IMAGES])
async def test_offloaded_messages_are_a_signed_url_in_place_of_them(
    pool: Pool, store: Store, delivered: Delivery, images: tuple[bytes, ...]
) -> None:
    request_id = await _submit(pool, store, images, offload=True)

    handed = await _hand_out(pool, delivered, request_id, FETCHES_ALL, images=bool(images))

    got = await _got(handed)
    assert got.keys() == {"messages_url", "max_length"}
    assert urlsplit(got["messages_url"]).path.endswith("/" + messages_key(request_id))
    assert _seconds(got["messages_url"]) == 120
    assert await _transport(pool, handed) == "messages_url"


@spec("Messages offload", 11)
@pytest.mark.parametrize(
    ("declaration", "images", "transport"),
    [(DECLARATION, (), ""), (SEES, (), ""), (SEES, IMAGES, "url"), (READ_FOR, IMAGES, "base64")],
)
async def test_who_fetches_no_messages_gets_an_offloaded_request_as_any_other(
    pool: Pool,
    store: Store,
    delivered: Delivery,
    declaration: Declaration,
    images: tuple[bytes, ...],
    transport: str,
) -> None:
    request_id = await _submit(pool, store, images, offload=True)

    handed = await _hand_out(pool, delivered, request_id, declaration, images=bool(images))

    got = await _got(handed)
    assert len(_urls(got)) == len(images)
    assert [message["role"] for message in got["messages"]] == ["system", "user", "user"]
    assert await _transport(pool, handed) == transport


async def test_a_plain_job_needs_no_store(log: Log, pool: Pool) -> None:
    request_id = await pool.submit()

    handed = await _hand_out(pool, Delivery(log, pool.limits, None), request_id, images=False)

    assert handed is not None
    job = handed.job
    assert handed.delivered == (payload.rendered(job.messages, job.payload), (), b"", None)


async def test_without_a_store_no_job_with_images_is_assigned(
    log: Log, pool: Pool, store: Store
) -> None:
    request_id = await _submit(pool, store)

    assert await _hand_out(pool, Delivery(log, pool.limits, None), request_id) is None

    assert "assigned" not in await pool.words()


# memory


@pytest.mark.parametrize("spare", [0, -1])
async def test_what_images_take_is_known_once_they_were_read(
    log: Log, pool: Pool, store: Store, spare: int
) -> None:
    at_once = MAX_TOTAL_BYTES + sum(map(len, IMAGES)) + spare
    delivered = Delivery(log, pool.limits, store, at_once=at_once)
    request_id = await _submit(pool, store)

    assert await _hand_out(pool, delivered, request_id) is not None

    assert delivered.serves(reading=True) == (spare == 0)


async def test_images_that_are_read_take_room_until_they_were_sent(
    log: Log, pool: Pool, store: Store
) -> None:
    """Before it is known how large they are it is taken for the largest; then as much as they
    are."""
    once = MAX_TOTAL_BYTES
    delivered = Delivery(log, pool.limits, store, at_once=once + sum(map(len, IMAGES)) - 1)
    first, second = [await _submit(pool, store) for _ in range(2)]
    handed = await _hand_out(pool, delivered, first)

    assert not delivered.serves(reading=True)
    assert delivered.serves(reading=False)
    assert await _hand_out(pool, delivered, second) is None
    assert (await pool.words()).count("assigned") == 1

    await _got(handed)
    assert delivered.serves(reading=True)
    assert handed is not None
    handed.delivered.release()  # once more
    again = await _hand_out(pool, delivered, second)
    assert again is not None
    assert again.delivered.mark != handed.delivered.mark  # or a client could write it
    again.delivered.release()  # never sent
    third = await _submit(pool, store)
    assert await _hand_out(pool, delivered, third) is not None

    roomy = Delivery(log, pool.limits, store, at_once=once + sum(map(len, IMAGES)))
    assert await _hand_out(pool, roomy, await _submit(pool, store)) is not None
    assert roomy.serves(reading=True)


async def test_what_was_taken_by_another_takes_no_room(log: Log, pool: Pool, store: Store) -> None:
    delivered = Delivery(log, pool.limits, store, at_once=MAX_TOTAL_BYTES)
    request_id = await _submit(pool, store)
    assert await _hand_out(pool, delivered, request_id, SEES) is not None

    assert await _hand_out(pool, delivered, request_id) is None

    assert delivered.serves(reading=True)


async def test_messages_that_are_fetched_take_no_room(log: Log, pool: Pool, store: Store) -> None:
    delivered = Delivery(log, pool.limits, store, at_once=MAX_TOTAL_BYTES)
    request_id = await _submit(pool, store, offload=True)
    both = msgspec.structs.replace(SEES, image_transports=("base64", "messages_url"))

    assert "messages_url" in await _got(await _hand_out(pool, delivered, request_id, both))

    assert delivered.serves(reading=True)


# a store that is away


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("own-s3")
    keys = {"access_key": secrets.token_hex(10), "secret_key": secrets.token_hex(20)}
    server = Server(s3.service(folder / "s3", free_port(), **keys), folder / "log")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own(own_server: Server) -> Iterator[Server]:
    """A store that no other test module uses: it may be paused and stopped."""
    yield own_server
    own_server.resume()


class Ticking:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = time.monotonic()

    def __call__(self) -> float:
        return self.seconds


async def _until_ready(delivered: Delivery) -> None:
    async with asyncio.timeout(60):
        while not delivered.ready():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("trouble", ["paused", "stopped"])
async def test_with_the_store_away_a_job_is_given_back_once_and_waits(
    log: Log, pool: Pool, own: Server, trouble: str
) -> None:
    """However often it is asked for: hand-outs are counted, and too many end a request."""
    ticks = Ticking()
    store = Store(place_in(own.service), ticks=ticks)
    delivered = Delivery(log, pool.limits, store, seconds=3)
    request_id = await _submit(pool, store)
    if trouble == "paused":
        own.pause()
    else:
        own.stop()

    started = time.monotonic()
    assert await _hand_out(pool, delivered, request_id) is None
    for name in ("w", "another"):
        for declaration in (READ_FOR, SEES):
            assert await _hand_out(pool, delivered, request_id, declaration, name=name) is None
    ticks.seconds += 3  # the store may be asked again, and is not there yet
    assert not delivered.ready()
    assert await _hand_out(pool, delivered, request_id) is None
    assert time.monotonic() - started < 20  # the store would take 5 s each time

    assert await pool.words() == ["submitted", "assigned", "returned"]
    request = await pool.request(request_id)
    assert (request["waiting"], request["faults"]) == ("1", "0")
    plain = await pool.submit()
    assert await _hand_out(pool, delivered, plain, images=False) is not None

    own.resume()
    if trouble == "stopped":
        own.start()
    async with asyncio.timeout(60):  # what hangs in the store's threads has its own deadline
        while not delivered.ready():
            ticks.seconds += 3
            await asyncio.sleep(0.02)
    assert len(_urls(await _got(await _hand_out(pool, delivered, request_id)))) == len(IMAGES)
    await delivered.close()
    store.close()


async def test_a_slow_store_holds_no_job_beyond_the_bound(
    log: Log, pool: Pool, own: Server
) -> None:
    store = Store(place_in(own.service))
    delivered = Delivery(log, pool.limits, store, seconds=0.1, at_once=MAX_TOTAL_BYTES)
    request_id = await _submit(pool, store)
    own.pause()

    started = time.monotonic()
    assert await _hand_out(pool, delivered, request_id) is None

    assert 0.1 <= time.monotonic() - started < 4  # the store would take 5 s
    assert (await pool.request(request_id))["waiting"] == "1"
    assert not delivered.ready()
    own.resume()
    await _until_ready(delivered)
    assert delivered.serves(reading=True)  # its room was given back
    await delivered.close()
    store.close()


@spec("Messages offload", 11)
async def test_offloaded_text_goes_inline_while_the_store_is_away(
    pool: Pool, store: Store, log: Log
) -> None:
    request_id = await _submit(pool, store, (), offload=True)
    delivered = Delivery(log, pool.limits, None)

    handed = await _hand_out(pool, delivered, request_id, FETCHES_ALL, images=False)

    assert [message["role"] for message in (await _got(handed))["messages"]] == [
        *("system", "user", "user")
    ]
    assert await _transport(pool, handed) == ""


# an object that is missing


async def test_a_request_whose_image_is_lost_ends_without_blame(
    pool: Pool, store: Store, delivered: Delivery
) -> None:
    request_id = await _submit(pool, store)
    await store.delete([image_key(request_id, 2)])

    assert await _hand_out(pool, delivered, request_id) is None

    assert await pool.words() == ["submitted", "assigned", "returned", "expired"]
    told = [entry.recorded.event for entry in await pool.events()]
    assert [each.cause for each in told if isinstance(each, Expired)] == ["content-lost"]
    partition = pool.log.keys.of(request_id)
    waiting = await pool.log.read("SMEMBERS", pool.log.keys.delete_retry(partition))
    assert {key.decode() for key in waiting} == {image_key(request_id, n) for n in range(4)}
    await pool.settle()
    assert "worker-aborted" not in await pool.words()
    assert delivered.serves(reading=True)


async def test_images_beside_one_that_is_lost_are_read_no_further(
    log: Log, pool: Pool, place: Place
) -> None:
    class Hanging(Store):
        async def get(self, key: str) -> bytes:
            if key == image_key(request_id, 0):
                raise ObjectMissing(key)
            await asyncio.Event().wait()
            return b""

    store = Hanging(place)
    request_id = await _submit(pool, store)
    delivered = Delivery(log, pool.limits, store)
    before = asyncio.all_tasks()

    assert await _hand_out(pool, delivered, request_id) is None

    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    store.close()


async def test_of_a_request_that_was_cancelled_meanwhile_nothing_is_lost(
    pool: Pool, store: Store, delivered: Delivery
) -> None:
    """Its replies stay until it expires, though its objects may be gone."""
    request_id = await _submit(pool, store, jobs=2)
    first = await _hand_out(pool, delivered, request_id)
    assert first is not None
    await pool.reply(first.job.generation_id)
    await store.delete([image_key(request_id, 0)])
    worker = await pool.worker()

    async def assign(declaration: Declaration) -> Any:
        job = await pop.assign(pool.log, pool.limits, worker, declaration, request_id, MODEL)
        await pool.cancel(request_id)
        return job

    assert await delivered.hand_out(READ_FOR, assign, images=True) is None

    assert "expired" not in await pool.words()
    assert await pool.log.read("EXISTS", pool.log.keys.content(request_id)) == 1


# decoys


@pytest.mark.parametrize("declaration", [SEES, READ_FOR])
async def test_a_decoy_is_rendered_as_a_job_is(
    pool: Pool, store: Store, delivered: Delivery, declaration: Declaration
) -> None:
    request_id = await _submit(pool, store)
    worker, decoys = await pool.worker(), Decoys(pool.log, pool.limits)

    def give(declared: Declaration) -> Any:
        return decoys.give(worker, declared, request_id, MODEL)

    handed = await delivered.hand_out(declaration, give, images=True)

    job = await _hand_out(pool, delivered, request_id, declaration, name="real")
    got, real = await _got(handed), await _got(job)
    if declaration is SEES:
        assert [urlsplit(url).path for url in _urls(got)] == [
            urlsplit(url).path for url in _urls(real)
        ]
    else:
        assert got == real


async def test_a_decoy_whose_image_is_lost_changes_nothing(
    pool: Pool, store: Store, delivered: Delivery
) -> None:
    request_id = await _submit(pool, store)
    worker, decoys = await pool.worker(), Decoys(pool.log, pool.limits)
    await store.delete([image_key(request_id, 0)])

    def give(declared: Declaration) -> Any:
        return decoys.give(worker, declared, request_id, MODEL)

    assert await delivered.hand_out(READ_FOR, give, images=True) is None

    assert await pool.words() == ["submitted"]
    assert (await pool.request(request_id))["waiting"] == "1"
