"""Images of a chat request, from the route to the store (spec, Images)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import tracemalloc
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from api.app import create_app
from events.base import KUDOS
from handlers.accounts import open_account
from handlers.chat.pictures import Offload, Pictures
from handlers.fetch.fetcher import Fetcher
from handlers.images.pool import ImagePool
from handlers.objects import image_key
from hordechat.datadir import free_port
from hordechat.process import Service
from tests.api.asgi_client import Call
from tests.api.gallery import (
    Gallery,
    data_url,
    likeness,
    noise,
    opened_gallery,
    padded,
    part,
    picture,
    settings_of,
    shown,
)
from tests.api.site import BODY, SECRET, Site, opened
from tests.handlers.chat.test_images import data
from tests.handlers.images.imagery import plain, png, read, saved
from tests.origin import PUBLIC, Hosts, Internet, Origin, ok, origin, redirect
from tests.spec import spec

MIB = 2**20
CHAT = "/v2/generate/chat/async"
HOST = "http://images.example"
AT = "messages[0].content[{}].image_url.url: ".format
"""Where an image stands, behind the text of `shown`."""
RED, GREEN = picture("red"), picture("#00c000", size=(9, 30))
BOMB = png(30_000, 30_000, bytes(1000))
"""Nine hundred million pixels, says its header."""
ORIENTATION, GPS = 0x0112, 0x8825  # EXIF


@pytest.fixture
async def gallery(redis_url: str, migrated_url: str, s3_server: Service) -> AsyncIterator[Gallery]:
    async with opened_gallery(redis_url, migrated_url, s3_server) as made:
        yield made


@dataclass
class Web:
    """A gallery that fetches from an origin."""

    gallery: Gallery
    origin: Origin

    @property
    def fetched(self) -> list[str]:
        """The paths that were asked for."""
        return [head.split(" ")[1] for head in self.origin.heads if head]


@contextlib.asynccontextmanager
async def web_of(
    redis_url: str, migrated_url: str, s3_server: Service, **changed: Any
) -> AsyncIterator[Web]:
    async with origin({"/red": ok(RED), "/green": ok(GREEN)}) as served:
        fetcher = Fetcher(
            seconds=20,
            ports=frozenset({80}),
            resolve=Hosts({"images.example": [[PUBLIC]]}).resolve,
            network=Internet({(PUBLIC, 80): served.port}),
        )
        opening = opened_gallery(redis_url, migrated_url, s3_server, fetcher, **changed)
        async with opening as gallery:
            yield Web(gallery, served)


@pytest.fixture
async def web(redis_url: str, migrated_url: str, s3_server: Service) -> AsyncIterator[Web]:
    """Where images.example has /red and /green."""
    async with web_of(redis_url, migrated_url, s3_server) as made:
        yield made


async def patron(site: Site) -> str:
    """The API key of somebody who may send five times as much."""
    _, key = await open_account(site.parts.log, SECRET, "patron", kudos=10**9, roles=["patron"])
    return key


async def balance(site: Site) -> float:
    """What the client has, once everything is settled."""
    await site.settle()
    account = await site.parts.accounts.find(site.client_key)
    value = await site.parts.log.read("HGET", site.parts.log.keys.account(account.id), "kudos")
    return int(value) / KUDOS


# What is stored


@spec("Images", 9, 18, 19)
async def test_images_of_data_urls_are_stored_as_jpegs_under_names_of_the_request(
    gallery: Gallery,
) -> None:
    files = RED, GREEN, picture("blue", kind="WEBP")
    said = shown()
    said[0]["content"] += [part(files[0], detail="low"), part(files[1]), part(files[2])]

    answer = await gallery.submit(messages=said)

    assert answer.status_code == 202, answer.text
    request_id = answer.json()["id"]
    names = [image_key(request_id, n) for n in range(3)]
    assert await gallery.store.keys() == names
    for name, file in zip(names, files, strict=True):
        assert likeness(await gallery.store.get(name), file) < 4
    for at, name in enumerate(names, 1):
        said[0]["content"][at]["image_url"]["url"] = f"horde-r2://{name}"
    assert json.loads(await gallery.content(request_id)) == said


@spec("Images", 9, 10)
async def test_images_of_urls_are_fetched_and_stored_in_their_place(web: Web) -> None:
    answer = await web.gallery.submit(f"{HOST}/green", RED, f"{HOST}/red")

    assert answer.status_code == 202, answer.text
    assert web.fetched == ["/green", "/red"]
    for n, file in enumerate((GREEN, RED, RED)):
        stored = await web.gallery.store.get(image_key(answer.json()["id"], n))
        assert likeness(stored, file) < 4


@spec("Images", 16)
async def test_images_of_dropped_turns_are_neither_fetched_nor_stored_nor_taxed(web: Web) -> None:
    """What is wrong with the others is told by its place in the body as it was sent."""
    said = [
        *shown(f"{HOST}/green", data_url(b"no image")),
        {"role": "assistant", "content": "x" * 30_000},
        *shown(f"{HOST}/red"),
    ]
    answer = await web.gallery.submit(messages=said)
    broken = await web.gallery.submit(messages=said[:2] + shown(f"{HOST}/red", f"{HOST}/nothing"))

    assert answer.status_code == 202, answer.text
    assert web.fetched == ["/red", "/red", "/nothing"]
    assert await web.gallery.store.keys() == [image_key(answer.json()["id"], 0)]
    assert len(json.loads(await web.gallery.content(answer.json()["id"]))) == 1
    assert (broken.status_code, broken.json()["rc"]) == (400, "SourceImageUrlInvalid")
    assert broken.json()["message"].startswith("messages[2].content[2].image_url.url: ")
    assert await balance(web.gallery.site) == 1_000_000_000 / KUDOS - 1 - 5


async def test_images_of_a_moderated_request_are_those_that_were_sent(
    redis_url: str, migrated_url: str, s3_server: Service, tmp_path: Path
) -> None:
    file = tmp_path / "filters.json"
    file.write_text('[{"regex": "what is", "replacement": "-"}]')
    filters: dict[str, Any] = {"replacement_filters": str(file)}
    async with opened_gallery(redis_url, migrated_url, s3_server, **filters) as gallery:
        _, key = await open_account(gallery.site.parts.log, SECRET, "flagged", flagged=True)

        answer = await gallery.submit(GREEN, key=key)
        broken = await gallery.submit(GREEN, b"no image", key=key)

        request_id = answer.json()["id"]
        (said,) = json.loads(await gallery.content(request_id))
        name = image_key(request_id, 0)
        assert said["content"][0]["text"] == "- this?"
        assert said["content"][1]["image_url"]["url"] == f"horde-r2://{name}"
        assert likeness(await gallery.store.get(name), GREEN) < 4
        assert broken.json()["message"].startswith(AT(2))


@spec("Images", 20)
async def test_each_image_is_five_kudos_more_in_the_quote_and_in_the_tax(gallery: Gallery) -> None:
    before = await balance(gallery.site)
    quotes = [
        (await gallery.submit(*images, horde={"dry_run": True}, max_tokens=16)).json()["kudos"]
        for images in ((), (RED,), (RED, GREEN, RED))
    ]

    answer = await gallery.submit(RED, GREEN, RED, max_tokens=16)

    assert [quote - quotes[0] for quote in quotes] == [0, 5, 15]
    assert answer.json()["kudos"] == quotes[2]
    assert before - await balance(gallery.site) == 1 + 15


# What is refused, and leaves nothing


@spec("Images", 1, 2, 4, 7, 8)
async def test_what_is_wrong_with_images_is_told_with_its_place_and_leaves_nothing(
    gallery: Gallery,
) -> None:
    async def refused(rc: str, *images: str | bytes) -> str:
        return await gallery.refused(400, rc, *images)

    at_once = await refused("TooManyExtraSourceImages", *[RED] * 21)
    assert "20" in at_once
    large = await refused("SourceImageSizeExceeded", RED, data(5 * MIB + 1))
    assert large.startswith(AT(2))
    total = await refused("SourceImageSizeExceeded", RED, padded(3 * MIB), padded(2 * MIB))
    assert str(5 * MIB + len(RED)) in total
    assert str(5 * MIB) in total
    for broken in (b"no image", RED[: len(RED) // 2], b""):
        said = await refused("SourceImageUnreadable", GREEN, broken)
        assert said.startswith(AT(2))
    spelled = await refused("SourceImageUnreadable", data_url(RED)[:-9] + "\u00e9%%\n=")
    assert spelled.startswith(AT(1))
    assert (await refused("SourceImageResolutionExceeded", BOMB)).startswith(AT(1))
    assert (await gallery.submit(RED)).status_code == 202


@spec("Images", 2, 5, 10, 14)
async def test_what_is_wrong_with_a_url_is_told_with_its_place_and_leaves_nothing(
    web: Web,
) -> None:
    async def refused(rc: str, *images: str | bytes) -> str:
        return await web.gallery.refused(400, rc, *images)

    web.origin.answers |= {
        "/gone": ok(b"", status="410 Gone"),
        "/text": ok(b"no image"),
        "/large": ok(bytes(6 * MIB)),
        "/padded": ok(padded(3 * MIB)),
    }
    inward = "http://[::ffff:169.254.169.254]/a.png", "http://2130706433/", "http://localhost/"
    for url in (*inward, f"{HOST}:8080/red", "http://user@images.example/red"):
        assert (await refused("SourceImageUrlRefused", RED, url)).startswith(AT(2))
    for path in ("/gone", "/nowhere"):
        assert (await refused("SourceImageUrlInvalid", HOST + path)).startswith(AT(1))
    assert (await refused("SourceImageUnreadable", f"{HOST}/text")).startswith(AT(1))
    assert (await refused("SourceImageSizeExceeded", f"{HOST}/large")).startswith(AT(1))
    before = len(web.fetched)
    said = await refused("SourceImageSizeExceeded", *[f"{HOST}/padded"] * 2, f"{HOST}/red")
    assert said.startswith(AT(2))
    assert str(6 * MIB) in said
    assert web.fetched[before:] == ["/padded"] * 2


@spec("Images", 4, 6)
async def test_patrons_may_send_more_in_all_and_jpegs_count_as_well(gallery: Gallery) -> None:
    """Noise is larger as a JPEG of quality 90 than as one of little."""
    large, dense = padded(3 * MIB), noise(1600, quality=10)

    key = await patron(gallery.site)
    assert (await gallery.submit(large, large, key=key)).status_code == 202
    await gallery.store.delete(await gallery.store.keys())
    assert len(dense) * 7 < 2 * MIB
    said = await gallery.refused(400, "SourceImageSizeExceeded", *[dense] * 7)
    assert "encoded as JPEG" in said
    assert str(5 * MIB) in said


async def test_images_are_fetched_from_the_ports_that_are_set(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    changed = {"image_fetch_ports": "8080,81"}
    async with opened_gallery(redis_url, migrated_url, s3_server, **changed) as gallery:
        said = await gallery.refused(400, "SourceImageUrlRefused", f"{HOST}/red")
        assert said == AT(1) + "images are fetched from ports 81, 8080 only."


@spec("Images", 17)
async def test_a_dry_run_fetches_and_stores_nothing_and_holds_data_urls_to_the_total(
    web: Web,
) -> None:
    dry_run = {"dry_run": True}
    before = await web.gallery.site.state()

    quote = await web.gallery.submit(f"{HOST}/red", b"no image", horde=dry_run)
    many = await web.gallery.submit(*[f"{HOST}/red"] * 21, horde=dry_run)
    large = await web.gallery.submit(padded(3 * MIB), padded(3 * MIB), horde=dry_run)

    assert quote.status_code == 200, quote.text
    assert "[image]" in quote.json()["resolved"]["prompt"]
    assert (many.status_code, many.json()["rc"]) == (400, "TooManyExtraSourceImages")
    assert (large.status_code, large.json()["rc"]) == (400, "SourceImageSizeExceeded")
    assert str(6 * MIB) in large.json()["message"]
    assert web.fetched == []
    assert await web.gallery.store.keys() == []
    assert await web.gallery.site.state() == before


@spec("Images", 16)
async def test_every_other_check_comes_before_images_are_looked_at(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    long = {"messages": [*shown(f"{HOST}/red"), {"role": "user", "content": "x" * 40_000}]}
    async with web_of(redis_url, migrated_url, s3_server) as web:
        refused = web.gallery.refused
        url = f"{HOST}/nothing"
        await refused(404, "UnknownChatModel", url, model="nobody/knows")
        await refused(400, "PromptExceedsContext", **long, horde={"context_fit": "reject"})
        await refused(400, "TooManyStopSequences", url, stop=[str(n) for n in range(129)])
        await refused(400, "ChatKudosCapExceeded", url, horde={"max_kudos": 1})
        assert web.fetched == []
        await refused(400, "SourceImageUrlInvalid", url)
    async with web_of(redis_url, migrated_url, s3_server, memory_limit_bytes=1) as full:
        await full.gallery.site.parts.guard.sample()
        await full.gallery.refused(503, "OutOfMemory", url)
        assert full.fetched == []


# Cases that others met


async def test_addresses_in_other_spellings_are_not_fetched_from(web: Web) -> None:
    """C-079, C-083."""
    for url in (
        "http://[::ffff:169.254.169.254]/a.png",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[0:0:0:0:0:ffff:7f00:1]/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://0/",
    ):
        said = await web.gallery.refused(400, "SourceImageUrlRefused", url)
        assert said.startswith(AT(1))
    assert web.origin.connections == 0


async def test_redirects_are_followed_three_times_and_never_inward(web: Web) -> None:
    """C-081."""
    web.origin.answers |= {
        "/3": redirect("/2"),
        "/2": redirect(f"{HOST}/1"),
        "/1": redirect("/red"),
        "/4": redirect("/3"),
        "/inward": redirect("http://169.254.169.254/"),
        "/file": redirect("file:///etc/passwd"),
        "/lost": redirect(None),
    }
    for path in ("/inward", "/file"):
        await web.gallery.refused(400, "SourceImageUrlRefused", HOST + path)
    for path in ("/4", "/lost"):
        await web.gallery.refused(400, "SourceImageUrlInvalid", HOST + path)

    assert (await web.gallery.submit(f"{HOST}/3")).status_code == 202


async def test_images_that_drip_do_not_keep_others_from_coming(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    """C-085: twenty in one request, all within one deadline."""
    dripped = asyncio.Event()

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4194304\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            dripped.set()
            await asyncio.sleep(0.02)

    within = {"images_fetch_seconds": 3}
    async with web_of(redis_url, migrated_url, s3_server, **within) as web:
        web.origin.answers["/drip"] = drip
        site = web.gallery.site
        await site.pop(chat_limits={"max_context_length": 16_384, "max_length": 2048})
        await site.project()
        slow = asyncio.create_task(web.gallery.submit(*[f"{HOST}/drip"] * 20))
        async with asyncio.timeout(20):
            await dripped.wait()

        other = await web.gallery.submit(RED)
        answer = await slow

        assert other.status_code == 202, other.text
        assert (answer.status_code, answer.json()["rc"]) == (400, "SourceImageUrlInvalid")
        assert "within 3 seconds" in answer.json()["message"]
        assert web.fetched == ["/drip"]


async def test_huge_dimensions_are_refused_by_the_header_and_large_ones_scaled(
    gallery: Gallery,
) -> None:
    """C-087."""
    for file in (BOMB, plain(3073, 3072), plain(1, 9_437_185)):
        said = await gallery.refused(400, "SourceImageResolutionExceeded", file)
        assert said.startswith(AT(1))

    answer = await gallery.submit(plain(3072, 3072))

    stored = await gallery.store.get(image_key(answer.json()["id"], 0))
    assert read(stored).size == (2048, 2048)


async def test_a_photo_is_stored_upright_and_without_the_place_it_was_taken_at(
    gallery: Gallery,
) -> None:
    """C-089: its left half red, turned by a tag."""
    image = Image.new("RGB", (40, 20), "blue")
    image.paste("red", (0, 0, 20, 20))
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    exif.get_ifd(GPS)[1] = "N"

    answer = await gallery.submit(saved(image, "JPEG", exif=exif, quality=95))

    stored = await gallery.store.get(image_key(answer.json()["id"], 0))
    upright = read(stored)
    assert upright.size == (20, 40)
    assert not upright.getexif()
    assert b"Exif" not in stored
    top, bottom = (upright.getpixel((10, y)) for y in (5, 35))
    assert isinstance(top, tuple)
    assert isinstance(bottom, tuple)
    assert (top[0] > 200, bottom[2] > 200) == (True, True)


# The memory


async def test_of_a_body_with_images_nothing_stays_but_what_is_still_to_be_done(
    gallery: Gallery,
) -> None:
    """Five images of 1 MiB: neither the body nor those that are done are held."""
    weights: list[int] = []

    class Weighs(ImagePool):
        async def normalise(self, source: bytes, *_: Any, **__: Any) -> bytes:
            weights.append(tracemalloc.get_traced_memory()[0])
            return b"a JPEG"

    parts = gallery.site.parts
    fetcher = Fetcher(seconds=1, ports=frozenset())
    offload = Offload(enabled=False, most=0, compress=False)
    pictures = Pictures(
        gallery.store,
        fetcher,
        Weighs(seconds=1, processes=1),
        at_once=64 * MIB,
        fetch_seconds=1,
        offload=offload,
    )
    app = create_app(msgspec.structs.replace(parts, pictures=pictures))
    body = json.dumps(BODY | {"messages": shown(*[padded(MIB)] * 5)}).encode()
    headers = {"apikey": gallery.site.client_key, "content-length": str(len(body))}
    call = Call(app, "POST", CHAT, headers)
    tracemalloc.start()
    try:
        await call.start(body).ended()
    finally:
        tracemalloc.stop()
    await fetcher.close()

    assert call.status == 202
    assert len(weights) == 5
    encoded = MIB * 4 / 3
    for weight, following in itertools.pairwise(weights):
        assert weight - following == pytest.approx(encoded, rel=0.1)
    assert weights[-1] < 1.5 * encoded


# The store is away


@spec("Images", 21)
async def test_without_a_store_nothing_is_fetched(site: Site) -> None:
    before = await site.state()

    answer = await site.submit(messages=shown(f"{HOST}/red"))

    assert (answer.status_code, answer.json()["rc"]) == (503, "ChatImageStorageUnavailable")
    assert await site.state() == before


@spec("Images", 21)
@spec("Operation key", 4)
async def test_a_store_that_fails_leaves_nothing_and_the_same_key_works_later(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    settings = settings_of(s3_server)
    away = settings | {"s3_endpoint_url": f"http://127.0.0.1:{free_port()}"}
    horde = {"operation_key": str(uuid.uuid4())}
    async with opened_gallery(redis_url, migrated_url, s3_server, **away) as gallery:
        before = await balance(gallery.site)
        answers = [await gallery.submit(RED, horde=horde) for _ in range(2)]
        assert [(each.status_code, each.json()["rc"]) for each in answers] == [
            (503, "ChatImageStorageUnavailable")
        ] * 2
        assert await balance(gallery.site) == before
        log, key = gallery.site.parts.log, gallery.site.client_key
        account = await gallery.site.parts.accounts.find(key)
        assert await log.read("HGET", log.keys.account(account.id), "waiting") in (None, b"0")

        settings["r2_source_image_bucket"] = away["r2_source_image_bucket"]
        async with opened(redis_url, migrated_url, **settings) as site:
            again = await site.submit(key, messages=shown(RED), horde=horde)

            assert again.status_code == 202, again.text
            assert site.parts.store is not None
            assert await site.parts.store.keys() == [image_key(again.json()["id"], 0)]


# Who comes twice, and who goes


@spec("Operation key", 1)
async def test_a_repeat_is_answered_without_a_fetch(web: Web) -> None:
    horde = {"operation_key": str(uuid.uuid4())}
    first = await web.gallery.submit(f"{HOST}/red", horde=horde)
    before = await web.gallery.site.state()

    again = await web.gallery.submit(f"{HOST}/red", horde=horde)
    other = await web.gallery.submit(f"{HOST}/green", horde=horde)

    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json()["id"] == first.json()["id"]
    assert (other.status_code, other.json()["rc"]) == (400, "OperationKeyConflict")
    assert web.fetched == ["/red"]
    assert await web.gallery.site.state() == before


@spec("Operation key", 4)
async def test_of_concurrent_repeats_with_images_one_is_queued_with_its_objects(
    gallery: Gallery,
) -> None:
    horde = {"operation_key": str(uuid.uuid4())}

    answers = await asyncio.gather(*(gallery.submit(RED, GREEN, horde=horde) for _ in range(5)))

    assert sorted(each.status_code for each in answers) == [200] * 4 + [202]
    (request_id,) = {each.json()["id"] for each in answers}
    assert await gallery.store.keys() == [image_key(request_id, n) for n in range(2)]
    for n, file in enumerate((RED, GREEN)):
        assert likeness(await gallery.store.get(image_key(request_id, n)), file) < 4


async def test_a_client_that_leaves_while_images_are_fetched_is_not_admitted(web: Web) -> None:
    async def hangs(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    web.origin.answers["/hangs"] = hangs
    site = web.gallery.site
    before = await site.state()
    call = Call(site.app, "POST", CHAT, {"apikey": site.client_key})
    call.start(json.dumps(BODY | {"messages": shown(f"{HOST}/hangs", f"{HOST}/red")}).encode())
    while not (web.fetched and web.origin.open):
        await asyncio.sleep(0)

    call.leave()
    async with asyncio.timeout(20):
        await call.ended()
        while web.origin.open:
            await asyncio.sleep(0)

    assert not call.answered
    assert web.fetched == ["/hangs"]
    assert await site.state() == before
