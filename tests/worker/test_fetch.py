"""How the reference worker gets images and large messages, whichever way they come."""

import asyncio
import base64
import gzip
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.worker.conftest import DROP, HANG, Answer, Stub, a_job
from tests.worker.test_loop import REPLY, Scripted, working
from worker.backends import JobFailed
from worker.fetch import Fetcher

JPEG = b"\xff\xd8 a jpeg"
INLINE = "data:image/jpeg;base64," + base64.b64encode(JPEG).decode()


@pytest.fixture
async def store() -> AsyncIterator[Stub]:
    """What signed URLs lead to."""
    stub = Stub()
    stub.standing = {"image": (200, JPEG)}
    await stub.start()
    yield stub
    await stub.stop()


def shown(*urls: str) -> list[dict[str, Any]]:
    """Messages that show these images."""
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}} for url in urls]
    text = {"type": "text", "text": "look"}
    return [{"role": "system", "content": "hi"}, {"role": "user", "content": [text, *parts]}]


async def whole(payload: dict[str, Any], **bounds: Any) -> dict[str, Any]:
    """What the backend gets."""
    fetcher = Fetcher(**bounds)
    try:
        return dict(await fetcher.whole(payload))
    finally:
        await fetcher.close()


async def test_images_come_in_place_of_their_urls(store: Stub) -> None:
    url = f"{store.url}/image"

    got = await whole({"messages": shown(url, INLINE, url), "n": 1})

    assert got == {"messages": shown(INLINE, INLINE, INLINE), "n": 1}
    assert len(store.seen) == 2


async def test_what_is_inline_asks_nobody(store: Stub) -> None:
    payload = {"messages": shown(INLINE), "n": 1}

    assert await whole(payload) == payload

    assert store.seen == []


@pytest.mark.parametrize("compressed", [False, True])
async def test_messages_come_in_place_of_their_url(store: Stub, compressed: bool) -> None:
    body = json.dumps(shown(INLINE)).encode()
    headers = {"Content-Encoding": "gzip"} if compressed else {}
    sent = gzip.compress(body) if compressed else body
    store.standing["messages"] = (200, sent, headers)

    got = await whole({"messages_url": f"{store.url}/messages", "n": 1})

    assert got == {"messages": shown(INLINE), "n": 1}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, b""), "answered 404"),
        ((302, b"", {"Location": "http://127.0.0.1/"}), "answered 302"),
        (DROP, "RemoteProtocolError"),
        (HANG, "within 0.3 s"),
        ((200, b"x" * 1001), "more than 1000 bytes"),
        ((200, gzip.compress(b"x" * 100_000), {"Content-Encoding": "gzip"}), "more than 1000"),
        ((200, b"no gzip", {"Content-Encoding": "gzip"}), "DecodingError"),
        ((200, b"[1,"), "no JSON"),
        ((200, b"{}"), "no array"),
    ],
)
async def test_messages_that_do_not_come_fail_the_job(
    store: Stub, answer: Answer, said: str
) -> None:
    store.standing["messages"] = answer
    url = f"{store.url}/secret/messages"

    started = time.monotonic()
    with pytest.raises(JobFailed, match=said) as failed:
        await whole({"messages_url": url}, seconds=0.3 if answer is HANG else 60, most=1000)

    assert time.monotonic() - started < 40
    assert failed.value.reason is None
    assert "secret" not in str(failed.value)


async def test_images_share_one_bound(store: Stub) -> None:
    url = f"{store.url}/image"

    with pytest.raises(JobFailed, match="more than 25 bytes"):
        await whole({"messages": shown(url, url, url)}, most=25)


async def test_messages_share_it_with_their_images(store: Stub) -> None:
    body = json.dumps(shown(f"{store.url}/image")).encode()
    store.standing["messages"] = (200, body)
    payload = {"messages_url": f"{store.url}/messages"}
    most = len(body) + len(JPEG)

    assert await whole(payload, most=most) == {"messages": shown(INLINE)}
    with pytest.raises(JobFailed, match=f"more than {most - 1} bytes"):
        await whole(payload, most=most - 1)


async def test_a_worker_that_sees_declares_it_and_hands_images_to_its_backend(
    pool: Stub, store: Stub
) -> None:
    seen: list[Any] = []

    class Sees(Scripted):
        async def generate(self, payload: Any) -> Any:
            seen.append(payload["messages"])
            yield REPLY

    pool.scripts["pop"].append(a_job(messages=shown(f"{store.url}/image")))
    async with working(pool, Sees(), vision=True):
        await pool.until(lambda: bool(pool.bodies("submit")))

    declared = pool.bodies("pop")[0]
    assert "vision" in declared["chat_features"]
    assert declared["image_transports"] == ["base64", "messages_url", "url"]
    assert seen == [shown(INLINE)]


async def test_what_cannot_be_fetched_faults_the_job_without_a_reason(
    pool: Stub, store: Stub
) -> None:
    store.standing["image"] = (403, b"expired")
    pool.scripts["pop"].append(a_job(messages=shown(f"{store.url}/image")))
    async with working(pool, Scripted(parts=(REPLY,)), vision=True):
        await pool.until(lambda: bool(pool.bodies("submit")))

    assert pool.bodies("submit") == [{"id": "g1", "state": "faulted", "model_id": "m"}]


async def test_fetching_ends_with_the_job(store: Stub) -> None:
    store.standing["image"] = HANG
    fetching = asyncio.create_task(whole({"messages": shown(f"{store.url}/image")}))
    await store.until(lambda: bool(store.seen))

    fetching.cancel()

    async with asyncio.timeout(20):
        await store.closed_by_peer.wait()
