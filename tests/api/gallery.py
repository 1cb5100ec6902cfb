"""A site with an object store of its own, pictures to submit, and what is kept of them."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import random
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageChops, ImageStat

from handlers.fetch.fetcher import Fetcher
from handlers.store import Store
from hordechat.process import Service
from tests.api.site import Site, opened

TEXT = {"type": "text", "text": "What is this?"}


@functools.cache
def picture(
    colour: str = "#2060c0", *, size: tuple[int, int] = (24, 16), kind: str = "PNG"
) -> bytes:
    """An image file of one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


@functools.cache
def noise(side: int, *, kind: str = "JPEG", quality: int = 95) -> bytes:
    """An image file that nothing makes much smaller."""
    pixels = random.Random(side).randbytes(3 * side * side)
    file = io.BytesIO()
    Image.frombytes("RGB", (side, side), pixels).save(file, kind, quality=quality)
    return file.getvalue()


def padded(size: int) -> bytes:
    """An image file of so many bytes, most of which say nothing."""
    file = picture()
    return file + bytes(size - len(file))


def data_url(file: bytes) -> str:
    """As a client sends it. What the media type says of it does not matter."""
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def part(url: str | bytes, **options: Any) -> dict[str, Any]:
    """An image part, of a URL or of a file that is sent with it."""
    url = data_url(url) if isinstance(url, bytes) else url
    return {"type": "image_url", "image_url": {"url": url, **options}}


def shown(*images: str | bytes) -> list[dict[str, Any]]:
    """A conversation: a user shows these images."""
    return [{"role": "user", "content": [TEXT, *map(part, images)]}]


def likeness(jpeg: bytes, file: bytes) -> float:
    """How far a JPEG's pixels are from those of an image of the same size: of 255, in the mean."""
    ours, theirs = (Image.open(io.BytesIO(each)) for each in (jpeg, file))
    assert (ours.format, ours.mode, ours.size) == ("JPEG", "RGB", theirs.size)
    return max(ImageStat.Stat(ImageChops.difference(ours, theirs.convert("RGB"))).mean)


@dataclass
class Gallery:
    """A site and its store."""

    site: Site
    store: Store

    async def submit(self, *images: str | bytes, key: str | None = None, **changed: Any) -> Any:
        """Queue a request that shows these images."""
        return await self.site.submit(key, **({"messages": shown(*images)} | changed))

    async def refused(self, status: int, rc: str, *images: str | bytes, **changed: Any) -> str:
        """The sentence of a refusal that left nothing: no admission, object or charge."""
        before = await self.site.state()

        answer = await self.submit(*images, **changed)

        assert (answer.status_code, answer.json()["rc"]) == (status, rc), answer.text
        assert await self.site.state() == before
        assert await self.store.keys() == []
        return str(answer.json()["message"])

    async def content(self, request_id: str, field: str = "messages") -> bytes:
        """What the content hash of a request holds."""
        log = self.site.parts.log
        return bytes(await log.read("HGET", log.keys.content(request_id), field))


def settings_of(server: Service) -> dict[str, Any]:
    """To use a store, with buckets of one's own in it."""
    return {
        "s3_endpoint_url": server.url,
        "s3_access_key": server.settings["S3_ACCESS_KEY"],
        "s3_secret_key": server.settings["S3_SECRET_KEY"],
        "r2_source_image_bucket": f"test-{secrets.token_hex(6)}",
    }


@contextlib.asynccontextmanager
async def opened_gallery(
    redis_url: str,
    database_url: str,
    server: Service,
    fetcher: Fetcher | None = None,
    **changed: Any,
) -> AsyncIterator[Gallery]:
    """A site with images; nothing is stored."""
    settings = settings_of(server) | changed
    async with opened(redis_url, database_url, fetcher=fetcher, **settings) as site:
        store = site.parts.store
        assert store is not None
        yield Gallery(site, store)
