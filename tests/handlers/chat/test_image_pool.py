"""Images of strangers are normalised in processes of their own."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator

import pytest
from PIL import Image

from handlers import errors
from handlers.chat.image_pool import ImagePool


@pytest.fixture
async def pool() -> AsyncIterator[ImagePool]:
    """One process."""
    opened = ImagePool(seconds=5, processes=1)
    yield opened
    await opened.close()


def drawn(width: int, height: int, form: str = "PNG") -> bytes:
    """An image file, blue."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), "blue").save(file, form)
    return file.getvalue()


async def test_an_image_comes_back_as_a_jpeg(pool: ImagePool) -> None:
    found = await pool.normalise(drawn(30, 20))
    same = await pool.normalise(base64.b64encode(drawn(30, 20)), encoded=True)

    assert same == found
    with Image.open(io.BytesIO(found)) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (30, 20))


async def test_base64_is_read_strictly(pool: ImagePool) -> None:
    payload = base64.b64encode(drawn(30, 20) + b"x" * (-len(drawn(30, 20)) % 3 + 1))
    assert payload.endswith(b"==")

    for broken in (payload[:-1], payload[:-2], payload + b"=", payload[:40] + b"\n" + payload[40:]):
        with pytest.raises(errors.SourceImageUnreadable):
            await pool.normalise(broken, encoded=True)

    assert await pool.normalise(payload, encoded=True)
