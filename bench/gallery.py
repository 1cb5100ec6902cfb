"""Requests that show images, as a phone's user would send them."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image, ImageChops

COUNT = 20
"""The most that a request may have."""
SIZE = (1024, 768)
"""Of each: 0.17 MiB as a JPEG, 4.5 MiB of base64 for all."""


def messages(count: int = COUNT) -> list[dict[str, Any]]:
    """A user shows so many images, each a little different."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": "What do these have in common?"}]
    for number in range(count):
        url = "data:image/jpeg;base64," + base64.b64encode(photo(number)).decode()
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return [{"role": "user", "content": parts}]


def photo(number: int) -> bytes:
    """A JPEG of colours that run into each other, with the grain of a camera."""
    across, down = Image.linear_gradient("L").rotate(90), Image.linear_gradient("L")
    smooth = [each.resize(SIZE) for each in (across, down, Image.radial_gradient("L"))]
    turned = smooth[number % 3 :] + smooth[: number % 3]
    grain = Image.effect_noise(SIZE, 12)
    file = io.BytesIO()
    Image.merge("RGB", [ImageChops.overlay(each, grain) for each in turned]).save(
        file, "JPEG", quality=85
    )
    return file.getvalue()
