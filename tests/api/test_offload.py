"""Messages of a chat request that become an object (spec, Messages offload)."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from handlers.objects import image_key, messages_key
from hordechat.datadir import free_port
from hordechat.process import Service
from tests.api.gallery import Gallery, opened_gallery, picture, settings_of, shown
from tests.api.site import Site, opened
from tests.spec import spec

RED, GREEN = picture("red"), picture("#00c000", size=(9, 30))
ON: dict[str, Any] = {"chat_messages_offload_enabled": True, "chat_messages_offload_bytes": 2000}
LONG = "long " * 1000
SAID = [{"role": "system", "content": LONG}, *shown(RED, GREEN)]


async def queued(gallery: Gallery, **changed: Any) -> str:
    """Queue a request and tell its id."""
    answer = await gallery.submit(**changed)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def got(gallery: Gallery, key: str) -> httpx.Response:
    """An object as a worker gets it from the store, not decoded."""
    async with httpx.AsyncClient() as http:
        url = gallery.store.url(key, 60)
        async with http.stream("GET", url, headers={"accept-encoding": "gzip"}) as answer:
            body = b"".join([part async for part in answer.aiter_raw()])
        return httpx.Response(
            answer.status_code,
            headers=[each for each in answer.headers.items() if each[0] != "content-encoding"],
            extensions={"encoding": answer.headers.get("content-encoding")},
            content=body,
        )


async def inlined(gallery: Gallery, request_id: str, said: Sequence[Any]) -> Any:
    """The messages as they were sent, with the stored images in them."""
    plain = json.loads(json.dumps(said))
    n = 0
    for message in plain:
        for each in message["content"] if isinstance(message["content"], list) else ():
            if each["type"] == "image_url":
                jpeg = await gallery.store.get(image_key(request_id, n))
                encoded = base64.b64encode(jpeg).decode()
                each["image_url"]["url"] = f"data:image/jpeg;base64,{encoded}"
                n += 1
    return plain


@spec("Messages offload", 1)
async def test_messages_of_any_size_stay_inline_unless_it_is_enabled(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    async with opened_gallery(
        redis_url, migrated_url, s3_server, chat_messages_offload_bytes=0
    ) as gallery:
        shows = await queued(gallery, messages=SAID)
        await queued(gallery, messages=SAID[:1])

        assert await gallery.store.keys() == [image_key(shows, n) for n in range(2)]


@spec("Messages offload", 2, 3, 6, 7, 8)
async def test_a_large_request_has_its_messages_beside_its_images(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    async with opened_gallery(redis_url, migrated_url, s3_server, **ON) as gallery:
        request_id = await queued(gallery, messages=SAID)

        images = [image_key(request_id, n) for n in range(2)]
        assert await gallery.store.keys() == [*images, messages_key(request_id)]
        answer = await got(gallery, messages_key(request_id))
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-transform"
        assert answer.extensions["encoding"] is None
        assert json.loads(answer.content) == await inlined(gallery, request_id, SAID)
        kept = json.loads(await gallery.content(request_id))
        assert [each["image_url"]["url"] for each in kept[1]["content"][1:]] == [
            f"horde-r2://{key}" for key in images
        ]


@spec("Messages offload", 4, 7)
async def test_messages_are_gzipped_where_that_is_smaller(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    settings = {"chat_messages_offload_gzip": True, "chat_messages_offload_bytes": 0}
    tiny = [{"role": "user", "content": "!"}]
    async with opened_gallery(redis_url, migrated_url, s3_server, **ON | settings) as gallery:
        long, short = await queued(gallery, messages=SAID), await queued(gallery, messages=tiny)

        small = await got(gallery, messages_key(long))
        assert small.extensions["encoding"] == "gzip"
        assert small.headers["cache-control"] == "no-transform"
        assert small.headers["content-type"] == "application/json"
        decoded = gzip.decompress(small.content)
        assert json.loads(decoded) == await inlined(gallery, long, SAID)
        assert len(small.content) < len(decoded)
        plain = await got(gallery, messages_key(short))
        assert plain.extensions["encoding"] is None
        assert json.loads(plain.content) == tiny


@spec("Messages offload", 2, 3)
@pytest.mark.parametrize("said", [SAID, SAID[:1]], ids=["images", "text"])
async def test_of_two_requests_around_the_size_that_stays_inline_one_stays(
    redis_url: str, migrated_url: str, s3_server: Service, said: list[Any]
) -> None:
    settings = ON | settings_of(s3_server)
    async with opened_gallery(redis_url, migrated_url, s3_server, **settings) as gallery:
        body = await gallery.store.get(messages_key(await queued(gallery, messages=said)))
    assert json.loads(body)

    settings |= settings_of(s3_server) | {"chat_messages_offload_bytes": len(body)}
    async with opened_gallery(redis_url, migrated_url, s3_server, **settings) as gallery:
        fits = await queued(gallery, messages=said)
        longer = [*said[:-1], said[-1] | {"name": "a"}]
        passes = await queued(gallery, messages=longer)

        keys = set(await gallery.store.keys())
        assert messages_key(fits) not in keys
        assert messages_key(passes) in keys


@spec("Messages offload", 5)
async def test_messages_may_have_a_bucket_of_their_own(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    settings = settings_of(s3_server)
    own = settings_of(s3_server)["r2_source_image_bucket"]
    settings |= ON | {"r2_chat_messages_bucket": own}
    async with opened_gallery(redis_url, migrated_url, s3_server, **settings) as gallery:
        request_id = await queued(gallery, messages=SAID)

        found = [each async for page in gallery.store.pages() for each in page]
        places = {each.key: each.bucket for each in found}
        assert places == {
            image_key(request_id, 0): settings["r2_source_image_bucket"],
            image_key(request_id, 1): settings["r2_source_image_bucket"],
            messages_key(request_id): own,
        }


async def test_without_a_store_messages_stay_inline(redis_url: str, migrated_url: str) -> None:
    async with opened(redis_url, migrated_url, **ON) as site:
        assert (await site.submit(messages=SAID[:1])).status_code == 202
        assert (await site.submit(messages=SAID)).json()["rc"] == "ChatImageStorageUnavailable"


@spec("Messages offload", 12)
async def test_a_store_failure_leaves_nothing_of_messages_either(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    away = ON | {"s3_endpoint_url": f"http://127.0.0.1:{free_port()}"}
    async with opened_gallery(redis_url, migrated_url, s3_server, **away) as gallery:
        site = gallery.site
        before = await balance(site)

        for said in (SAID[:1], SAID):
            answer = await site.submit(messages=said)
            assert (answer.status_code, answer.json()["rc"]) == (
                503,
                "ChatImageStorageUnavailable",
            )
            assert "large messages" in answer.json()["message"]

        assert await balance(site) == before
        assert (await site.submit()).status_code == 202  # small enough to need none


async def balance(site: Site) -> int:
    """What the client has, 10^-4 kudos, once everything is settled."""
    await site.settle()
    account = await site.parts.accounts.find(site.client_key)
    return int(await site.parts.log.read("HGET", site.parts.log.keys.account(account.id), "kudos"))


@spec("Messages offload", 13)
async def test_a_dry_run_is_never_offloaded(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    async with opened_gallery(redis_url, migrated_url, s3_server, **ON) as gallery:
        before = await gallery.site.state()

        answer = await gallery.submit(messages=SAID, horde={"dry_run": True})

        assert answer.status_code == 200, answer.text
        assert await gallery.store.keys() == []
        assert await gallery.site.state() == before


@spec("Operation key", 4)
async def test_concurrent_repeats_store_the_messages_of_one(
    redis_url: str, migrated_url: str, s3_server: Service
) -> None:
    horde = {"operation_key": "0b7c9e52-1f7e-4a49-8a55-6d0c9f1e2a33"}
    async with opened_gallery(redis_url, migrated_url, s3_server, **ON) as gallery:
        answers = await asyncio.gather(
            *(gallery.submit(messages=SAID, horde=horde) for _ in range(4))
        )

        assert sorted(each.status_code for each in answers) == [200] * 3 + [202]
        (request_id,) = {each.json()["id"] for each in answers}
        images = [image_key(request_id, n) for n in range(2)]
        assert await gallery.store.keys() == [*images, messages_key(request_id)]
        body = json.loads(await gallery.store.get(messages_key(request_id)))
        assert body == await inlined(gallery, request_id, SAID)
