"""Images of a chat request, from the route to the store (spec, Images)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from handlers.objects import image_key
from hordechat.process import Service
from tests.api.gallery import Gallery, likeness, opened_gallery, picture
from tests.spec import spec


@pytest.fixture
async def gallery(redis_url: str, migrated_url: str, s3_server: Service) -> AsyncIterator[Gallery]:
    async with opened_gallery(redis_url, migrated_url, s3_server) as made:
        yield made


@spec("Images", 19)
async def test_images_of_data_urls_are_stored_as_jpegs_under_names_of_the_request(
    gallery: Gallery,
) -> None:
    files = picture("red"), picture("#00f000", size=(9, 30)), picture("blue", kind="WEBP")

    answer = await gallery.submit(*files)

    assert answer.status_code == 202, answer.text
    request_id = answer.json()["id"]
    names = [image_key(request_id, n) for n in range(3)]
    assert await gallery.store.keys() == names
    for name, file in zip(names, files, strict=True):
        assert likeness(await gallery.store.get(name), file) < 4
    urls = [
        each["image_url"]["url"]
        for each in json.loads(await gallery.content(request_id))[0]["content"][1:]
    ]
    assert urls == [f"horde-r2://{name}" for name in names]
