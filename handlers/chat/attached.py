"""What is stored in the object store beside a chat request: its images, and perhaps its messages
(spec, Images; Messages offload)."""

from __future__ import annotations

import base64
import secrets
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import NamedTuple

from handlers.chat import images, payload
from handlers.chat.body import Message
from handlers.objects import REFERENCE, Kept, image_key, messages_key
from handlers.store import Object

DATA_URL = "data:image/jpeg;base64,"
_GZIP_LEVEL = 6
_GZIP = 16 + zlib.MAX_WBITS


class Attached(NamedTuple):
    """Messages whose images are normalised, nothing stored yet."""

    messages: Sequence[Message]
    """As workers get them, but for the URLs of image parts, which do not matter: those that were
    submitted are large, and best left behind."""

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
        return len(payload.messages(bare)) + sum(encoded_bytes(len(jpeg)) for jpeg in self.images)

    def _messages(self, request_id: str) -> Object:
        key = messages_key(request_id)
        if self.compress:
            packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP, strategy=self._strategy())
            size, small = 0, BytesIO()
            for part in self._inlined():
                size += len(part)
                small.write(packer.compress(part))
            small.write(packer.flush())
            if small.tell() < size:
                return Object(key, small.getvalue(), encoding="gzip")
        body = BytesIO()
        body.writelines(self._inlined())
        return Object(key, body.getvalue())

    def _strategy(self) -> int:
        """Of compression. For messages that are mostly images one that looks for no repetitions:
        base64 has none, and what its alphabet saves comes in a fifth of the time."""
        encoded = sum(encoded_bytes(len(jpeg)) for jpeg in self.images)
        mostly = 2 * encoded > self.inline_bytes()
        return zlib.Z_HUFFMAN_ONLY if mostly else zlib.Z_DEFAULT_STRATEGY

    def _inlined(self) -> Iterator[bytes]:
        """The messages as a base64 worker gets them, JSON, in parts: two copies of all images at
        once would be too much. Nobody can guess the mark that they are parted at."""
        mark = secrets.token_hex()
        marked = images.with_urls(self.messages, [DATA_URL + mark] * len(self.images))
        first, *others = payload.messages(marked).split(mark.encode())
        yield first
        for jpeg, following in zip(self.images, others, strict=True):
            yield base64.b64encode(jpeg)
            yield following


def encoded_bytes(size: int) -> int:
    """What so many bytes are in base64."""
    return 4 * -(-size // 3)
