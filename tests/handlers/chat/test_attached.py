"""What is stored beside a request: objects and references, and messages with both inlined."""

from __future__ import annotations

import base64
import gzip
import json
import random
from typing import Any

import pytest

from handlers.chat.attached import Attached
from handlers.chat.images import without_urls
from handlers.objects import Kept, image_key, messages_key
from tests.handlers.chat.bodies import image, read, shows
from tests.spec import spec

REQUEST = "0b7c9e52-1f7e-4a49-8a55-6d0c9f1e2a33"
TEXT = {"type": "text", "text": 'a "quoted" data:image/jpeg;base64, \u0007 é'}
JPEGS = (b"one", b"\xff\xd8\x00", b"")
"""It does not matter here that they are none."""
SUBMITTED: list[dict[str, Any]] = [
    {"role": "system", "content": "See."},
    shows(image("https://x.test/secret", detail="low"), TEXT, image("data:image/png;base64,AAAA")),
    shows(image("http://x.test/", detail="auto")),
]
BODY = messages_key(REQUEST)


def attached(
    submitted: list[dict[str, Any]] = SUBMITTED, jpegs: tuple[bytes, ...] = JPEGS, **more: bool
) -> Attached:
    return Attached(without_urls(read(messages=submitted).messages), jpegs, **more)


def shown_at(urls: list[str]) -> list[dict[str, Any]]:
    """What was submitted, with other URLs."""
    left = iter(urls)
    return [
        message
        if isinstance(message["content"], str)
        else message
        | {
            "content": [
                {**each, "image_url": each["image_url"] | {"url": next(left)}}
                if each["type"] == "image_url"
                else each
                for each in message["content"]
            ]
        }
        for message in SUBMITTED
    ]


@spec("Images", 9, 18, 19)
def test_stored_messages_refer_to_their_images_by_name_and_keep_all_else() -> None:
    stored = json.loads(attached().stored(REQUEST))

    assert stored == shown_at([f"horde-r2://{REQUEST}_chat_{n}.jpg" for n in range(3)])


@spec("Images", 18)
@spec("Messages offload", 8)
@pytest.mark.parametrize("offloaded", [False, True])
def test_each_image_is_an_object_whether_or_not_the_messages_are(offloaded: bool) -> None:
    objects = attached().objects(REQUEST, Kept(3, offloaded))

    assert [each.key for each in objects][:3] == [image_key(REQUEST, n) for n in range(3)]
    assert [each.body for each in objects][:3] == list(JPEGS)
    assert [each.key for each in objects][3:] == [BODY] * offloaded


@spec("Messages offload", 3, 6)
def test_an_offloaded_body_has_the_images_inlined_and_is_as_large_as_was_told() -> None:
    own = attached(offload=True)

    body = own.objects(REQUEST, own.kept)[-1]

    urls = ["data:image/jpeg;base64," + base64.b64encode(each).decode() for each in JPEGS]
    assert json.loads(body.body) == shown_at(urls)
    assert body.encoding == ""
    assert len(body.body) == own.inline_bytes()
    compact = json.dumps(json.loads(body.body), ensure_ascii=False, separators=(",", ":"))
    assert len(compact.encode()) == len(body.body)


@spec("Messages offload", 4)
@pytest.mark.parametrize(
    ("own", "most"),
    [
        (attached([shows(image(), {"type": "text", "text": "word " * 2000})], (b"\xff",)), 0.1),
        (attached([shows(image())], (random.Random(6).randbytes(100_000),)), 0.76),
        (attached([{"role": "user", "content": "word " * 2000}], ()), 0.1),
    ],
    ids=["text", "image", "text alone"],
)
def test_a_body_is_compressed_where_that_is_smaller(own: Attached, most: float) -> None:
    kept = Kept(len(own.images), True)
    small, again = (own._replace(compress=True).objects(REQUEST, kept)[-1] for _ in range(2))
    plain = own.objects(REQUEST, kept)[-1]

    assert (plain.encoding, small.encoding) == ("", "gzip")
    assert gzip.decompress(small.body) == plain.body
    assert len(small.body) < most * len(plain.body)
    assert again == small


def test_of_messages_that_are_mostly_images_no_repetitions_are_looked_for() -> None:
    """It takes five times as long, and in the base64 of a JPEG there are none. Each character is a
    bit at least then."""
    own = attached([shows(image())], (bytes(90_000),), compress=True)

    (_, body) = own.objects(REQUEST, Kept(1, True))

    assert len(body.body) > 120_000 / 8


@spec("Messages offload", 4)
def test_a_body_that_would_grow_stays_plain() -> None:
    own = attached([{"role": "user", "content": "!"}], (), compress=True, offload=True)

    assert own.objects(REQUEST, own.kept) == [
        (BODY, b'[{"role":"user","content":"!"}]', ""),
    ]
