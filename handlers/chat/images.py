"""Images of a request, as far as its body alone tells (spec, Images: the caps at parse time)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from handlers.chat import documents
from handlers.chat.body import ImagePart, Message, TextPart, UserMessage
from handlers.errors import (
    SourceImageSizeExceeded,
    SourceImageUnreadable,
    TooManyExtraSourceImages,
)

MAX_IMAGES = 20
MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""Decoded or fetched, of one image."""
MAX_TOTAL_BYTES = 25 * 1024 * 1024
"""Decoded or fetched, of all together, and again of their JPEGs. Every body is held to it, before
its user is known."""
MAX_TOTAL_BYTES_UNTRUSTED = 5 * 1024 * 1024
"""The same of users for whom nobody vouches."""
MAX_URL_CHARACTERS = 8192
"""Of an http(s) URL. The text limit does not count it, so it must not be a way around it."""
MAX_MEDIA_TYPE_CHARACTERS = 128
_WEB = ("http://", "https://")


class Placed(NamedTuple):
    """An image part and where it stands in the body."""

    path: str
    part: ImagePart

    @property
    def url(self) -> str:
        """Where the image is."""
        return self.part.image_url.url

    @property
    def held(self) -> bool:
        """Whether the URL itself holds the image."""
        return self.url[:5].lower() == "data:"

    @property
    def data_bytes(self) -> int:
        """What a data URL that was checked decodes to, in bytes, by its length: three for each four
        characters, less the padding. 0 for any other."""
        if not self.held:
            return 0
        url = self.url
        return (len(url) - url.find(",") - 1) * 3 // 4 - url.count("=", len(url) - 2)


def placed(messages: Iterable[Message], kept: Sequence[Message] | None = None) -> Iterator[Placed]:
    """The images of messages, in order. Only user messages have any.

    `kept`: those of the messages whose images are asked for; None: all. A place is always that in
    the whole body.
    """
    wanted = None if kept is None else set(map(id, kept))
    for at, message in enumerate(messages):
        if not isinstance(message, UserMessage) or isinstance(message.content, str):
            continue
        if wanted is None or id(message) in wanted:
            for index, part in enumerate(message.content):
                if isinstance(part, ImagePart):
                    yield Placed(f"messages[{at}].content[{index}].image_url.url", part)


def with_urls(messages: Iterable[Message], urls: Sequence[str]) -> list[Message]:
    """The messages with these URLs in place of those of their image parts, one for each in order;
    raise ValueError where there are more or fewer parts."""
    left = iter(urls)
    changed = [_with_urls(message, left) for message in messages]
    if next(left, None) is not None:
        raise ValueError("there are fewer image parts than URLs")
    return changed


def _with_urls(message: Message, urls: Iterator[str]) -> Message:
    if not isinstance(message, UserMessage) or isinstance(message.content, str):
        return message
    parts: list[TextPart | ImagePart] = []
    for part in message.content:
        if isinstance(part, ImagePart):
            url = next(urls, None)
            if url is None:
                raise ValueError("there are more image parts than URLs")
            parts.append(ImagePart(msgspec.structs.replace(part.image_url, url=url)))
        else:
            parts.append(part)
    return msgspec.structs.replace(message, content=parts)


def without_urls(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with an empty URL in each image part; themselves, where there are none."""
    count = sum(1 for _ in placed(messages))
    return with_urls(messages, [""] * count) if count else messages


def check(messages: Iterable[Message]) -> int:
    """The number of images, every one of which may be fetched or decoded later.

    Raise TooManyExtraSourceImages; SourceImageSizeExceeded by the size that a data URL's payload
    decodes to; SourceImageUnreadable for a data URL that is no image in base64; BadRequest for any
    other URL that is not http(s), or is too long.
    """
    images = list(placed(messages))
    if len(images) > MAX_IMAGES:
        raise TooManyExtraSourceImages(
            f"A chat request takes at most {MAX_IMAGES} images, not {len(images)}."
        )
    for each in images:
        _check(each)
    total = sum(each.data_bytes for each in images)
    if total > MAX_TOTAL_BYTES:
        raise SourceImageSizeExceeded(
            f"The images decode to {total} bytes in all: at most {MAX_TOTAL_BYTES} are allowed."
        )
    return len(images)


def _check(image: Placed) -> None:
    path, url = image.path, image.url
    if image.held:
        comma = url.find(",", 0, MAX_MEDIA_TYPE_CHARACTERS)
        head = url[: max(comma, 0)].lower()
        if not head.startswith("data:image/") or not head.endswith(";base64"):
            raise SourceImageUnreadable(f"{path}: a data URL has to be an image in base64.")
        if (size := image.data_bytes) > MAX_IMAGE_BYTES:
            raise SourceImageSizeExceeded(
                f"{path}: the image decodes to {size} bytes: at most {MAX_IMAGE_BYTES} are allowed."
            )
        return
    scheme = next((web for web in _WEB if url[: len(web)].lower() == web), None)
    if scheme is None or len(url) == len(scheme):
        reason = "Expected a data:image/...;base64, URL or an http(s) URL"
        raise documents.invalid(documents.Fault(path, reason, unknown=False))
    if len(url) > MAX_URL_CHARACTERS:
        reason = f"Expected at most {MAX_URL_CHARACTERS} characters"
        raise documents.invalid(documents.Fault(path, reason, unknown=False))
