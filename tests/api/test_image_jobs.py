"""Jobs whose images or messages stand in the object store, from the pop to the worker that has
them (spec, Images; Messages offload)."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import random
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest

from api.app import create_app
from events.types import Demand
from handlers import submit
from handlers.accounts import open_account
from handlers.chat import delivery
from handlers.chat.attached import Attached
from handlers.chat.body import Message
from handlers.chat.payload import ChatPayload
from handlers.log import Log
from handlers.objects import image_key, messages_key
from handlers.replay import read_log
from hordechat.datadir import free_port
from hordechat.embedded import s3
from hordechat.process import Service
from tests.api.asgi_client import Call
from tests.api.gallery import TEXT, Gallery, opened_gallery, part
from tests.api.site import BODY, MODEL, POP, SECRET
from tests.e2e.conftest import Server
from tests.proxy import Proxy
from tests.spec import spec

SEES: dict[str, Any] = {
    "name": "sees",
    "chat_features": [*POP["chat_features"], "vision"],
    "image_transports": ["base64"],
}
JPEGS = tuple(random.Random(size).randbytes(size) for size in (1, 3000, 300_001))
"""What is kept of images; it does not matter here that they are none. The last one is sent in
several pieces."""
PAYLOAD = msgspec.json.encode(
    ChatPayload(
        max_length=512,
        max_context_length=2048,
        temperature=1.0,
        top_p=1.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
    )
)
SHOWN: list[Any] = [
    {"role": "system", "content": "See."},
    {"role": "user", "content": [TEXT, part("", detail="low")]},
    {"role": "assistant", "content": "Seen."},
    {"role": "user", "content": [part("", detail="high"), TEXT, part("")]},
]


@pytest.fixture
async def gallery(redis_url: str, migrated_url: str, s3_server: Service) -> AsyncIterator[Gallery]:
    async with opened_gallery(redis_url, migrated_url, s3_server) as made:
        yield made


async def queued(
    gallery: Gallery, messages: Any = SHOWN, images: tuple[bytes, ...] = JPEGS, **attached: bool
) -> str:
    """Queue a request, as its route would have, and let workers see it."""
    parts = gallery.site.parts
    account = await parts.accounts.find(gallery.site.client_key)
    features = ("prompt_overflow_refused", *(["vision"] if images else []))
    new = submit.NewRequest(
        chat=True,
        jobs=1,
        max_length=512,
        stream=False,
        demand=Demand(models=(MODEL,), features=features, images=bool(images)),
        content={"payload": PAYLOAD},
        attached=Attached(msgspec.convert(messages, list[Message]), images, **attached),
    )
    receipt = await submit.submit(
        parts.log, parts.limits, parts.tariff, account, new, store=gallery.store
    )
    await gallery.site.project()
    return receipt.request_id


def urls(messages: list[dict[str, Any]]) -> list[str]:
    """Of the image parts, in order."""
    return [
        each["image_url"]["url"]
        for message in messages
        if not isinstance(message["content"], str)
        for each in message["content"]
        if each["type"] == "image_url"
    ]


def inlined(jpegs: Iterable[bytes]) -> list[str]:
    """Stored images as a worker that does not fetch gets them."""
    return ["data:image/jpeg;base64," + base64.b64encode(each).decode() for each in jpegs]


def without_urls(messages: list[Any]) -> list[Any]:
    """All else of messages."""
    plain: list[Any] = copy.deepcopy(messages)
    for message in plain:
        for each in message["content"] if isinstance(message["content"], list) else ():
            each.get("image_url", {}).pop("url", None)
    return plain


async def fetched(url: str) -> httpx.Response:
    """As a worker does that knows nothing but the URL."""
    async with httpx.AsyncClient() as client:
        return await client.get(url)


async def words(gallery: Gallery, request_id: str) -> list[str]:
    """What happened to a request, by the stream alone: the store may be away, and the archive."""
    parts = gallery.site.parts
    log = Log(parts.log.redis, parts.log.keys)
    return [
        str(type(entry.recorded.event).__struct_config__.tag)
        async for page in read_log(log, log.keys.of(request_id))
        for entry in page
        if getattr(entry.recorded.event, "request_id", "") == request_id
    ]


async def told(gallery: Gallery, request_id: str, word: str) -> None:
    """Wait until something happened to a request."""
    async with asyncio.timeout(20):
        while word not in await words(gallery, request_id):
            await asyncio.sleep(0.01)


@spec("Images", 9, 24)
async def test_who_does_not_fetch_has_its_images_streamed_to_it(gallery: Gallery) -> None:
    await queued(gallery)

    answer = await gallery.site.pop(**SEES)

    assert int(answer.headers["content-length"]) == len(answer.content)
    job = answer.json()
    assert urls(job["payload"]["messages"]) == inlined(JPEGS)
    assert without_urls(job["payload"]["messages"]) == without_urls(SHOWN)
    assert (job["payload"]["max_length"], job["chat"]) == (512, True)
    assert (await gallery.site.reply(job["id"])).status_code == 200


@spec("Images", 23)
async def test_who_fetches_gets_signed_urls_of_the_stored_images(gallery: Gallery) -> None:
    await queued(gallery)

    job = await gallery.site.popped(**SEES | {"image_transports": ["base64", "url"]})

    signed = urls(job["payload"]["messages"])
    answers = [await fetched(url) for url in signed]
    assert tuple(each.content for each in answers) == JPEGS
    assert {each.headers["content-type"] for each in answers} == {"image/jpeg"}
    assert {parse_qs(urlsplit(url).query)["X-Amz-Expires"][0] for url in signed} == {"600"}


@spec("Messages offload", 6, 10)
@pytest.mark.parametrize("compress", [False, True])
async def test_who_fetches_messages_gets_what_a_base64_worker_gets(
    gallery: Gallery, compress: bool
) -> None:
    request_id = await queued(gallery, offload=True, compress=compress)
    await queued(gallery, offload=True)

    fetches = {"image_transports": ["base64", "messages_url"]}
    job = await gallery.site.popped(**SEES | fetches)
    inline = await gallery.site.popped(**SEES | {"name": "another"})

    url = job["payload"].pop("messages_url")
    assert parse_qs(urlsplit(url).query)["X-Amz-Expires"] == ["120"]
    assert urlsplit(url).path.endswith(messages_key(request_id))
    assert (await fetched(url)).json() == inline["payload"].pop("messages")
    assert job["payload"] == inline["payload"]


@spec("Messages offload", 11)
async def test_offloaded_text_is_fetched_or_comes_inline(gallery: Gallery) -> None:
    words = [{"role": "user", "content": "so much " * 2000}]
    for _ in range(2):
        await queued(gallery, words, (), offload=True, compress=True)

    fetching = await gallery.site.popped(**SEES | {"image_transports": ["messages_url"]})
    inline = await gallery.site.popped(name="plain")

    answer = await fetched(fetching["payload"]["messages_url"])
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json() == words
    assert inline["payload"]["messages"] == words


@spec("Images", 22)
async def test_no_other_worker_is_offered_images(gallery: Gallery) -> None:
    await queued(gallery)

    for declared, reason in (
        ({"image_transports": ["messages_url"]}, "image_transports"),
        ({"image_transports": []}, "image_transports"),
        ({"chat_features": POP["chat_features"]}, "vision"),
    ):
        answer = (await gallery.site.pop(**SEES | declared)).json()
        assert (answer["id"], answer["skipped"]) == (None, {reason: 1})


async def test_images_that_no_worker_sees_do_not_lengthen_the_wait_of_others(
    gallery: Gallery,
) -> None:
    """C-107: they would be 307 seconds of work, with which no more than 512 tokens were free."""
    site = gallery.site
    _, poor = await open_account(site.parts.log, SECRET, "poor")
    for _ in range(6):
        await queued(gallery, [{"role": "user", "content": [part("")]}], JPEGS[:1])

    plain = await site.queued(max_tokens=100)
    await site.project()

    assert (await site.status(plain)).json()["wait_time"] == 10
    assert (await site.submit(poor, max_tokens=1000)).status_code == 202


async def test_of_several_jobs_that_a_worker_asks_for_one_with_images_is_the_only_one(
    gallery: Gallery,
) -> None:
    await queued(gallery)
    await queued(gallery)

    job = await gallery.site.popped(**SEES | {"amount": 5})

    assert job["ids"] == [job["id"]]


async def test_a_job_whose_images_there_is_no_room_to_read_goes_at_once_to_who_fetches(
    gallery: Gallery,
) -> None:
    gallery.site.parts.delivery._memory.left = 0
    await queued(gallery)

    assert (await gallery.site.pop(**SEES)).json()["id"] is None

    fetches = {"name": "fetches", "image_transports": ["base64", "url"]}
    assert (await gallery.site.pop(**SEES | fetches)).json()["id"]


async def test_a_paused_worker_sees_what_the_others_see(gallery: Gallery) -> None:
    await gallery.site.pop(**SEES)
    log = gallery.site.parts.log
    worker_id = (await log.read("GET", log.keys.worker_name("sees"))).decode()
    await log.read("HSET", log.keys.worker(worker_id), "paused", "1")
    request_id = await queued(gallery)

    decoy = await gallery.site.popped(**SEES)
    assert await words(gallery, request_id) == ["admitted", "submitted"]
    job = await gallery.site.popped(**SEES | {"name": "honest"})

    assert decoy["payload"] == job["payload"]
    memory = gallery.site.parts.delivery._memory
    assert memory.left == delivery.AT_ONCE_BYTES


async def test_an_image_that_is_lost_ends_its_request_and_the_pop_goes_on(
    gallery: Gallery,
) -> None:
    lost = await queued(gallery)
    await gallery.store.delete([image_key(lost, 1)])
    whole = await queued(gallery)

    job = await gallery.site.popped(**SEES)

    assert urls(job["payload"]["messages"]) == inlined(JPEGS)
    ended = ["admitted", "submitted", "assigned", "returned", "expired"]
    assert await words(gallery, lost) == ended
    assert (await words(gallery, whole))[-1] == "assigned"
    assert (await gallery.site.status(lost)).status_code == 404


async def test_with_the_store_stopped_a_pop_gets_another_job(
    redis_url: str, migrated_url: str, own: Server
) -> None:
    async with opened_gallery(redis_url, migrated_url, own.service) as gallery:
        request_id = await queued(gallery)
        await gallery.site.queued()
        await gallery.site.project()
        own.stop()

        job = await gallery.site.popped(**SEES)

        assert job["payload"]["messages"] == BODY["messages"]
        ended = ["admitted", "submitted", "assigned", "returned"]
        assert await words(gallery, request_id) == ended
        for transport in ("url", "base64"):
            answer = (await gallery.site.pop(**SEES | {"image_transports": [transport]})).json()
            assert answer["id"] is None
        assert await words(gallery, request_id) == ended


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A store that no other test uses."""
    keys = {"access_key": secrets.token_hex(10), "secret_key": secrets.token_hex(20)}
    server = Server(s3.service(tmp_path / "s3", free_port(), **keys), tmp_path / "log")
    server.start()
    yield server
    server.stop()


# clients that go


@pytest.fixture
async def proxied(
    redis_url: str, migrated_url: str, s3_server: Service
) -> AsyncIterator[tuple[Gallery, Proxy]]:
    """A site whose way to the store may stall."""
    async with Proxy.before(s3_server.url) as proxy:
        changed: dict[str, Any] = {
            "s3_endpoint_url": proxy.url,
            "s3_public_endpoint_url": s3_server.url,
        }
        async with opened_gallery(redis_url, migrated_url, s3_server, **changed) as made:
            yield made, proxy


class Slow(Call):
    """A client that takes so many pieces of an answer, and then nothing."""

    def __init__(self, gallery: Gallery, takes: int, app: Any = None) -> None:
        headers = {"apikey": gallery.site.owner_key}
        super().__init__(app or gallery.site.app, "POST", "/v2/generate/text/pop", headers)
        self._takes = takes
        self.stalled = asyncio.Event()

    async def _send(self, event: dict[str, Any]) -> None:
        if event["type"] == "http.response.body":
            self._takes -= 1
        if self._takes < 0:
            self.stalled.set()
            await asyncio.Event().wait()
        await super()._send(event)

    def pops(self) -> Slow:
        """Ask for a job."""
        self.start(json.dumps(POP | SEES | {"name": "slow"}).encode())
        return self


async def test_a_job_whose_worker_leaves_while_its_images_are_read_is_given_back(
    proxied: tuple[Gallery, Proxy],
) -> None:
    gallery, proxy = proxied
    request_id = await queued(gallery)
    proxy.stall()
    gone = Slow(gallery, takes=1000).pops()
    await told(gallery, request_id, "assigned")

    gone.leave()
    async with asyncio.timeout(20):
        await gone.ended()
    proxy.flow()

    await told(gallery, request_id, "returned")
    assert gallery.site.parts.delivery._memory.left == delivery.AT_ONCE_BYTES
    await gallery.site.project()
    assert not gone.answered
    assert len(urls((await gallery.site.popped(**SEES))["payload"]["messages"])) == 3


@pytest.mark.parametrize("takes", [0, 2])
async def test_a_job_whose_worker_leaves_while_its_images_are_sent_is_given_back(
    gallery: Gallery, takes: int
) -> None:
    request_id = await queued(gallery)
    memory = gallery.site.parts.delivery._memory
    left = memory.left
    gone = Slow(gallery, takes).pops()
    await gone.stalled.wait()
    assert memory.left < left

    gone.leave()
    async with asyncio.timeout(20):
        await gone.ended()

    await told(gallery, request_id, "returned")
    assert memory.left == left
    await gallery.site.project()
    assert len(urls((await gallery.site.popped(**SEES))["payload"]["messages"])) == 3
    assert memory.left == left


async def test_a_worker_that_takes_its_images_too_slowly_loses_connection_and_job(
    gallery: Gallery,
) -> None:
    parts = gallery.site.parts
    hasty = delivery.Delivery(parts.log, parts.limits, gallery.store, sent=0.05)
    request_id = await queued(gallery, images=(b"a", b"b", b"c"))
    slow = Slow(gallery, 2, create_app(msgspec.structs.replace(parts, delivery=hasty))).pops()

    async with asyncio.timeout(20):
        await slow.ended()

    assert slow.transport.aborted
    await told(gallery, request_id, "returned")
    assert hasty._memory.left == delivery.AT_ONCE_BYTES
    assert hasty.patience(2**20) - hasty.patience(0) == 4
