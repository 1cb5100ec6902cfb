"""Requests with images, and workers that take them by any transport."""

from __future__ import annotations

import base64
import io
import random
from typing import Any

from PIL import Image

from handlers.log import Log
from handlers.store import Store
from hordechat import settings
from hordechat.datadir import DataDir
from hordechat.opening import store_of
from tests.e2e.harness import MODEL, Up, declaration


def picture(seed: int = 0, side: int = 64) -> str:
    """A small image of noise as a data URL."""
    noise = random.Random(seed).randbytes(3 * side * side)
    file = io.BytesIO()
    Image.frombytes("RGB", (side, side), noise).save(file, "JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def asking(text: str, *urls: str) -> dict[str, Any]:
    """The body of a chat request with these images."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    parts += ({"type": "image_url", "image_url": {"url": url}} for url in urls)
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 16,
    }


def seeing(name: str, *transports: str) -> dict[str, Any]:
    """The body of a pop of a worker that gets images this way."""
    declared = declaration(name)
    features = [*declared["chat_features"], "vision"]
    return declared | {"chat_features": features, "image_transports": list(transports)}


def store_at(up: Up) -> Store:
    """The store of a running service."""
    store = store_of(settings.load(DataDir(up.data).read_environment()))
    assert store is not None
    return store


async def doomed(log: Log) -> set[str]:
    """Objects that are to be deleted."""
    names = [
        await log.read("SMEMBERS", log.keys.delete_retry(partition)) for partition in log.keys.all()
    ]
    return {name.decode() for each in names for name in each}
