"""What is stored in the object store beside a chat request: its images, and perhaps its messages
(spec, Images; Messages offload)."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from typing import NamedTuple

from handlers.chat import images, payload
from handlers.chat.body import Message
from handlers.objects import REFERENCE, Kept, image_key, messages_key
from handlers.store import Object

DATA_URL = "data:image/jpeg;base64,"


class Attached(NamedTuple):
    """Messages whose images are normalised, nothing stored yet."""

    messages: Sequence[Message]
    """As workers get them; image parts still with the URLs that were submitted."""

    images: tuple[bytes, ...]
    """JPEGs, one for each image part, in order."""

    offload: bool = False
    """Whether the messages are to be an object, too."""

    compress: bool = False
    """Whether that is gzipped, where it is smaller so."""

    @property
    def kept(self) -> Kept:
        """How much of it will be in the store."""
        return Kept(len(self.images), self.offload)

    def stored(self, request_id: str) -> bytes:
        """The messages with a reference in place of each image's URL, JSON: what content holds."""
        urls = [REFERENCE + image_key(request_id, n) for n in range(len(self.images))]
        return payload.messages(images.with_urls(self.messages, urls))

    def objects(self, request_id: str, kept: Kept) -> list[Object]:
        """What has to be stored before the request is. Takes long where messages are compressed.

        `kept` is what its admission allows, which decides whether messages are an object.
        """
        found = [Object(image_key(request_id, n), jpeg) for n, jpeg in enumerate(self.images)]
        if kept.offloaded:
            found.append(self._messages(request_id))
        return found

    def inline_bytes(self) -> int:
        """The size of the messages as a base64 worker gets them, JSON: what the threshold of the
        offload is compared with."""
        bare = images.with_urls(self.messages, [DATA_URL] * len(self.images))
        encoded = sum(4 * -(-len(jpeg) // 3) for jpeg in self.images)
        return len(payload.messages(bare)) + encoded

    def _messages(self, request_id: str) -> Object:
        body = payload.messages(images.with_urls(self.messages, [*map(data_url, self.images)]))
        key = messages_key(request_id)
        if self.compress:
            small = gzip.compress(body, compresslevel=6, mtime=0)
            if len(small) < len(body):
                return Object(key, small, encoding="gzip")
        return Object(key, body)


def data_url(jpeg: bytes) -> str:
    """A stored image as a data URL."""
    return DATA_URL + base64.b64encode(jpeg).decode()
