"""The object store on a real server, and on servers that are away in every way."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3

from handlers import store as store_module
from handlers.errors import ChatImageStorageUnavailable
from handlers.objects import image_key, messages_key
from handlers.store import THREADS, Bounds, Object, ObjectMissing, Place, Store
from handlers.threads import Busy
from hordechat.datadir import free_port
from tests.logged import logged
from tests.spec import spec

REQUEST = "0b7c9e52-1f7e-4a49-8a55-6d0c9f1e2a33"
IMAGE = image_key(REQUEST, 0)
MESSAGES = messages_key(REQUEST)
SECRET = "a secret of ours"


@pytest.fixture
def http() -> Iterator[urllib3.PoolManager]:
    """Whoever has nothing but a URL."""
    with urllib3.PoolManager(retries=False, timeout=30) as client:
        yield client


async def test_an_object_is_stored_in_a_bucket_that_did_not_exist_and_overwritten(
    store: Store,
) -> None:
    await store.put([Object(IMAGE, b"one")])
    await store.put([Object(IMAGE, b"another")])

    assert await store.get(IMAGE) == b"another"
    assert await store.keys() == [IMAGE]


async def test_an_image_is_served_by_its_signed_url(
    store: Store, http: urllib3.PoolManager
) -> None:
    await store.put([Object(IMAGE, b"\xff\xd8 an image")])

    answer = await asyncio.to_thread(http.request, "GET", store.url(IMAGE, 600))

    assert (answer.status, answer.data) == (200, b"\xff\xd8 an image")
    assert answer.headers["Content-Type"] == "image/jpeg"
    assert "Content-Encoding" not in answer.headers
    assert "Cache-Control" not in answer.headers


@spec("Messages offload", 7)
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("accepted", ["identity", "gzip"])
async def test_messages_are_served_as_they_were_stored_whatever_is_accepted(
    store: Store, http: urllib3.PoolManager, compressed: bool, accepted: str
) -> None:
    plain = b'[{"role":"user","content":"' + b"hello " * 100 + b'"}]'
    body = gzip.compress(plain) if compressed else plain
    await store.put([Object(MESSAGES, body, "gzip" if compressed else "")])

    answer = await asyncio.to_thread(
        lambda: http.request(
            "GET",
            store.url(MESSAGES, 120),
            headers={"Accept-Encoding": accepted},
            preload_content=False,
        )
    )

    assert answer.read(decode_content=False) == body
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-transform"
    assert answer.headers.get("Content-Encoding") == ("gzip" if compressed else None)
    assert await store.get(MESSAGES) == plain


async def test_large_messages_are_one_upload(store: Store, http: urllib3.PoolManager) -> None:
    """In parts, one that fails half-way would leave what no listing shows. What came in parts has
    their number behind its tag."""
    body = secrets.token_bytes(1024) * 12 * 1024
    await store.put([Object(MESSAGES, body)])

    answer = await asyncio.to_thread(http.request, "GET", store.url(MESSAGES, 120))

    assert answer.data == body
    assert "-" not in answer.headers["ETag"]


async def test_a_signed_url_refuses_after_its_time(
    place: Place, store: Store, http: urllib3.PoolManager
) -> None:
    await store.put([Object(IMAGE, b"an image")])
    earlier = Store(place, now=lambda: datetime.now(UTC) - timedelta(seconds=601))

    late = await asyncio.to_thread(http.request, "GET", earlier.url(IMAGE, 600))
    in_time = await asyncio.to_thread(http.request, "GET", earlier.url(IMAGE, 660))

    assert (late.status, in_time.status) == (403, 200)


async def test_a_signed_url_is_of_one_object(store: Store, http: urllib3.PoolManager) -> None:
    await store.put([Object(IMAGE, b"mine"), Object(image_key(REQUEST, 1), b"not mine")])

    other = store.url(IMAGE, 600).replace("_chat_0.jpg", "_chat_1.jpg")

    assert (await asyncio.to_thread(http.request, "GET", other)).status == 403


@pytest.mark.parametrize(
    ("public", "in_front"),
    [
        ("https://img.example", "https://img.example/"),
        ("https://img.example:8443/", "https://img.example:8443/"),
        ("http://192.0.2.1:9000", "http://192.0.2.1:9000/"),
    ],
)
def test_urls_are_signed_for_the_public_endpoint_without_asking_anybody(
    public: str, in_front: str
) -> None:
    store = Store(Place(f"http://127.0.0.1:{free_port()}", public, "a", "s", "r", "images", "text"))

    signed = store.url(IMAGE, 600), store.url(MESSAGES, 120)

    assert signed[0].startswith(f"{in_front}images/{IMAGE}?")
    assert signed[1].startswith(f"{in_front}text/{MESSAGES}?")
    told = [parse_qs(urlsplit(each).query) for each in signed]
    assert [each["X-Amz-Expires"] for each in told] == [["600"], ["120"]]
    assert [each["X-Amz-SignedHeaders"] for each in told] == [["host"], ["host"]]


@spec("Messages offload", 5)
async def test_messages_have_a_bucket_of_their_own(store: Store, place: Place) -> None:
    await store.put([Object(IMAGE, b"an image"), Object(MESSAGES, b"[]")])

    pages = [page async for page in store.pages()]

    assert pages == [[(place.images, IMAGE, 8)], [(place.messages, MESSAGES, 2)]]
    assert await store.delete([IMAGE, MESSAGES]) == {IMAGE, MESSAGES}
    assert await store.keys() == []


async def test_images_and_messages_may_share_a_bucket(place: Place) -> None:
    store = Store(place._replace(messages=place.images))
    await store.put([Object(IMAGE, b"an image"), Object(MESSAGES, b"[]")])

    pages = [page async for page in store.pages()]

    assert pages == [[(place.images, IMAGE, 8), (place.images, MESSAGES, 2)]]
    store.close()


async def test_nothing_is_in_a_bucket_that_does_not_exist(store: Store) -> None:
    with pytest.raises(ObjectMissing):
        await store.get(IMAGE)
    assert not await store.holds(IMAGE)
    assert await store.keys() == []
    assert await store.delete([IMAGE]) == {IMAGE}
    assert not store.away


async def test_objects_are_listed_and_deleted_page_by_page(place: Place) -> None:
    store, keys = Store(place, Bounds(page=3, deletes=3)), [image_key(REQUEST, n) for n in range(7)]
    await store.put(Object(key, b"an image") for key in keys)

    assert [[each.key for each in page] async for page in store.pages()] == [
        keys[:3],
        keys[3:6],
        keys[6:],
    ]
    assert await store.delete(keys) == set(keys)
    assert await store.keys() == []
    store.close()


async def test_messages_are_deleted_where_images_are_too(store: Store, place: Place) -> None:
    """The bucket of their own was chosen while they waited."""
    before = Store(place._replace(messages=place.images))
    await before.put([Object(MESSAGES, b"[]")])

    assert await store.delete([MESSAGES]) == {MESSAGES}

    assert await before.keys() == []
    before.close()


async def test_what_never_existed_counts_as_deleted(store: Store) -> None:
    await store.put([Object(IMAGE, b"an image")])
    assert await store.holds(IMAGE)

    gone = await store.delete([IMAGE, image_key(REQUEST, 1), "anything <&> else"])

    assert gone == {IMAGE, image_key(REQUEST, 1), "anything <&> else"}
    assert not await store.holds(IMAGE)


QUICK = Bounds(connect=0.2, read=0.2, call=0.5)
"""For a store that hangs; one that answers is waited for, however busy the machine is."""
PATIENT = Bounds(connect=20, read=20, call=60)
DRIPPED = b"an answer that comes in drops"


def drops() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    for _ in range(100):
        yield b"."


class Listener:
    """A server of a few lines on loopback, in place of a store."""

    def __init__(self) -> None:
        self.connections = 0
        self.ticks = 0.0
        self.delay = 0.0

    @contextlib.asynccontextmanager
    async def answering(
        self, *answers: bytes | None, bounds: Bounds = PATIENT
    ) -> AsyncIterator[Store]:
        """A store that answers its calls in turn so, the last one for ever; None: not at all."""
        left = list(answers)
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            writers.append(writer)
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = re.search(rb"(?i)content-length: (\d+)", head)
                    await reader.readexactly(int(length[1]) if length else 0)
                    answer = left.pop(0) if len(left) > 1 else left[0]
                    await asyncio.sleep(self.delay)
                    for piece in [answer] if answer != DRIPPED else drops():
                        writer.write(piece or b"")
                        await asyncio.sleep(0.05 if answer == DRIPPED else 0)
                    if answer == b"":
                        break
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        store = Store(
            Place(url, url, "access", SECRET, "r", "images", "images"),
            bounds,
            ticks=lambda: self.ticks,
        )
        try:
            yield store
        finally:
            store.close()
            server.close()
            for writer in writers:
                writer.transport.abort()
            await asyncio.sleep(0)  # the transports close in the loop's next turn


def answer(
    status: int, body: bytes = b"", kind: bytes = b"application/xml", etag: bytes = b""
) -> bytes:
    told = b"ETag: %b\r\n" % etag if etag else b""
    return b"HTTP/1.1 %d X\r\nContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n%b" % (
        status, kind, told, len(body), body,
    )  # fmt: skip


def refusal(status: int, code: bytes) -> bytes:
    return answer(status, b"<Error><Code>%b</Code><Message>so it is</Message></Error>" % code)


STORED = answer(200, etag=b'"0"')

ABSENCES = {
    "hangs": None,
    "closes": b"",
    "is overloaded": refusal(503, b"SlowDown"),
    "fails": refusal(500, b"InternalError"),
    "has a proxy that fails": answer(502, b"<html>" + b"x" * 5000, b"text/html"),
    "says nothing with it": answer(500),
    "does not know us": refusal(403, b"InvalidAccessKeyId"),
    "does not let us": refusal(403, b"AccessDenied"),
    "answers what is no XML": answer(400, b"<Error><Code>", b"application/xml"),
    "answers what is no HTTP": b"nonsense\r\n\r\n",
    "sends us elsewhere": refusal(301, b"PermanentRedirect"),
}


@pytest.mark.parametrize("how", ABSENCES)
async def test_a_store_that_is_away_is_told_so_whatever_it_does(
    how: str,
) -> None:
    listener = Listener()
    bounds = PATIENT if ABSENCES[how] else QUICK
    async with listener.answering(ABSENCES[how], bounds=bounds) as store:
        assert not store.away
        with logged(store_module.logger) as lines:
            for call in (store.put([Object(IMAGE, b"an image")]), store.get(IMAGE), store.keys()):
                with pytest.raises(ChatImageStorageUnavailable):
                    await call
            assert await store.delete([IMAGE]) == set()

        assert store.away
        assert [each["event"] for each in lines] == ["store_is_away"]
        assert len(lines[0]["reason"]) <= 200
        assert SECRET not in str(lines)


async def test_a_store_that_refuses_connections_is_away() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    store = Store(Place(url, url, "access", "secret", "r", "images", "images"))

    with pytest.raises(ChatImageStorageUnavailable):
        await store.get(IMAGE)
    assert store.away


async def test_a_store_is_away_for_a_moment_and_then_while_the_next_try_waits() -> None:
    listener = Listener()
    async with listener.answering(refusal(503, b"SlowDown"), None, bounds=QUICK) as store:
        with pytest.raises(ChatImageStorageUnavailable):
            await store.get(IMAGE)
        listener.ticks = 1.9
        assert store.away
        listener.ticks = 2.0
        assert not store.away

        trying = asyncio.ensure_future(store.get(IMAGE))
        await asyncio.sleep(0)
        assert store.away
        listener.ticks = 3.0
        with pytest.raises(ChatImageStorageUnavailable):
            await trying
        listener.ticks = 4.9
        assert store.away


async def test_a_store_that_answers_again_is_back() -> None:
    async with Listener().answering(refusal(503, b"SlowDown"), STORED) as store:
        with logged(store_module.logger) as lines:
            with pytest.raises(ChatImageStorageUnavailable):
                await store.put([Object(IMAGE, b"an image")])
            await store.put([Object(IMAGE, b"an image")])

        assert not store.away
        assert [each["event"] for each in lines] == ["store_is_away", "store_is_back"]


async def test_a_missing_object_does_not_tell_of_a_store_that_is_away() -> None:
    async with Listener().answering(refusal(404, b"NoSuchKey")) as store:
        with pytest.raises(ObjectMissing):
            await store.get(IMAGE)
        assert not store.away


async def test_a_connection_that_the_store_closed_is_no_absence() -> None:
    listener = Listener()
    async with listener.answering(STORED, b"", STORED) as store:
        await store.put([Object(IMAGE, b"one"), Object(IMAGE, b"two")])
        assert listener.connections == 2


async def test_what_a_store_does_not_delete_stays_and_the_rest_goes() -> None:
    told = (
        b"<DeleteResult><Error><Key>%b</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        b"<Error><Key>%b</Key><Code>NoSuchKey</Code><Message>no</Message></Error></DeleteResult>"
    ) % (IMAGE.encode(), image_key(REQUEST, 1).encode())
    async with Listener().answering(answer(200, told)) as store:
        gone = await store.delete([image_key(REQUEST, n) for n in range(3)])

        assert gone == {image_key(REQUEST, 1), image_key(REQUEST, 2)}
        assert not store.away


async def test_a_hung_store_holds_no_more_than_a_few_threads_and_no_call_for_long() -> None:
    """Those that wait for a thread give up with the first that got no answer."""
    listener, bounds = Listener(), Bounds(read=3, waiting=400)
    async with listener.answering(None, bounds=bounds) as store:
        before = time.monotonic()
        calls = [store.get(image_key(REQUEST, n)) for n in range(THREADS + 400 + 3)]
        ended = await asyncio.gather(*calls, return_exceptions=True)

        assert {type(each) for each in ended} == {ChatImageStorageUnavailable}
        assert [type(each.__cause__) for each in ended].count(Busy) == 3
        assert time.monotonic() - before < 60  # in turn they would take 300 s
        assert listener.connections <= THREADS


async def test_what_is_stored_may_take_longer_than_what_is_asked() -> None:
    """A large object, over a slow line."""
    listener = Listener()
    async with listener.answering(STORED, bounds=Bounds(read=20, call=0.1)) as store:
        listener.delay = 0.2
        await store.put([Object(MESSAGES, b"[]")])
        with pytest.raises(ChatImageStorageUnavailable):
            await store.get(MESSAGES)


async def test_an_answer_that_comes_in_drops_is_not_waited_for_for_ever() -> None:
    async with Listener().answering(DRIPPED, bounds=QUICK) as store:
        with pytest.raises(ChatImageStorageUnavailable):
            await store.get(IMAGE)
        assert store.away


async def test_a_put_that_takes_too_long_gives_up_and_what_it_had_not_begun_is_not_stored() -> None:
    """Though each of its calls is answered soon."""
    listener = Listener()
    listener.delay = 0.05
    sent: list[int] = []

    def objects() -> Iterator[Object]:
        for n in range(20):
            sent.append(n)
            yield Object(IMAGE, b"one")

    async with listener.answering(STORED) as store:
        with pytest.raises(ChatImageStorageUnavailable):
            await store.put(objects(), seconds=0.1)
        assert len(sent) < 20
        assert listener.connections <= 1


async def test_a_bucket_is_made_once_by_all_that_miss_it() -> None:
    listener = Listener()
    async with listener.answering(
        refusal(404, b"NoSuchBucket"), refusal(409, b"BucketAlreadyOwnedByYou"), STORED
    ) as store:
        await store.put([Object(IMAGE, b"an image")])
