"""Images of a body, counted and measured before anything is fetched or decoded."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.chat import images
from handlers.errors import (
    BadRequest,
    SourceImageSizeExceeded,
    SourceImageUnreadable,
    TooManyExtraSourceImages,
    UnsupportedChatParameter,
)
from tests.handlers.chat.bodies import (
    USER,
    answer,
    called,
    image,
    raw,
    read,
    refusal,
    refused_at,
    shows,
)
from tests.spec import spec

MIB = 1024 * 1024
TEXT = {"type": "text", "text": "a"}
URL = "messages[0].content[0].image_url.url"


def data(decoded: int) -> str:
    """A data URL that decodes to so many bytes."""
    whole, rest = divmod(decoded, 3)
    return "data:image/png;base64," + "A" * (4 * whole) + ("", "AA==", "AAA=")[rest]


@spec("Request body", 16)
def test_images_are_found_by_their_place() -> None:
    messages = [
        USER,
        shows(TEXT, image("http://x.test/1"), image(data(3), detail="low")),
        {"role": "assistant", "content": [TEXT]},
        shows(image("HTTPS://x.test/2")),
    ]

    found = list(images.placed(read(messages=messages).messages))

    assert [(path, part.image_url.url) for path, part in found] == [
        ("messages[1].content[1].image_url.url", "http://x.test/1"),
        ("messages[1].content[2].image_url.url", data(3)),
        ("messages[3].content[0].image_url.url", "HTTPS://x.test/2"),
    ]
    assert read(messages=messages).images == 3


@spec("Images", 16)
def test_images_of_kept_messages_are_found_by_their_place_in_the_whole() -> None:
    first, *others = read(messages=[shows(image(f"http://x.test/{n}")) for n in "123"]).messages
    whole = [first, *others]

    found = list(images.placed(whole, others))

    assert [(each.path, each.url) for each in found] == [
        ("messages[1].content[0].image_url.url", "http://x.test/2"),
        ("messages[2].content[0].image_url.url", "http://x.test/3"),
    ]
    assert list(images.placed(whole, whole)) == list(images.placed(whole))
    assert list(images.placed(whole, [])) == []


def test_messages_are_rid_of_their_urls_and_keep_all_else() -> None:
    messages = [USER, shows(image(data(3), detail="low"), TEXT), called("a")]
    messages += [answer("a"), shows(image())]
    own = read(messages=messages).messages

    bare = images.without_urls(own)

    assert [each.url for each in images.placed(bare)] == ["", ""]
    assert images.with_urls(bare, [data(3), "https://x.test/a.png"]) == own
    assert images.without_urls(own[:1]) == own[:1]


@spec("Images", 5)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 299, 300, 301])
def test_what_a_data_url_decodes_to_is_told_by_its_length(size: int) -> None:
    (found,) = images.placed(read(messages=[shows(image(data(size)))]).messages)

    assert (found.held, found.data_bytes) == (True, size)


def test_what_is_fetched_has_a_size_that_only_the_fetch_tells() -> None:
    (found,) = images.placed(read(messages=[shows(image("http://x.test/,=="))]).messages)

    assert (found.held, found.data_bytes) == (False, 0)


@spec("Images", 1)
def test_twenty_images_are_the_most_of_all_messages_together() -> None:
    ten = shows(*[image()] * 10)

    assert read(messages=[ten, ten]).images == 20
    refused = refusal(TooManyExtraSourceImages, raw(messages=[ten, USER, ten, shows(image())]))
    assert "20" in refused.message
    assert "21" in refused.message


@spec("Images", 2)
@pytest.mark.parametrize("size", [5 * MIB - 2, 5 * MIB - 1, 5 * MIB])
def test_a_data_url_is_measured_by_what_it_decodes_to(size: int) -> None:
    assert read(messages=[shows(image(data(size)))]).images == 1


@spec("Images", 2)
def test_a_data_url_of_more_than_five_mebibytes_is_refused() -> None:
    refused = refusal(
        SourceImageSizeExceeded, raw(messages=[shows(TEXT, image(data(5 * MIB + 1)))])
    )

    assert refused.message.startswith("messages[0].content[1].image_url.url: ")
    assert str(5 * MIB + 1) in refused.message


@spec("Images", 3)
def test_twenty_five_mebibytes_are_the_most_of_all_data_urls_together() -> None:
    largest = image(data(5 * MIB))

    assert read(messages=[shows(*[largest] * 5, image())]).images == 6
    refused = refusal(
        SourceImageSizeExceeded, raw(messages=[shows(*[largest] * 5), shows(image(data(7)))])
    )
    assert str(25 * MIB + 7) in refused.message
    assert str(25 * MIB) in refused.message


@spec("Images", 8, 9)
@pytest.mark.parametrize(
    "url",
    [
        "data:,x",
        "data:text/plain;base64,AAAA",
        "data:image/png,AAAA",
        "data:image/png;base64",
        "data:image/" + "x" * 200 + ";base64,AAAA",
        "DATA:x",
    ],
)
def test_a_data_url_that_is_no_image_cannot_be_read(url: str) -> None:
    refused = refusal(SourceImageUnreadable, raw(messages=[shows(image(url))]))

    assert refused.message.startswith(URL)


def test_how_a_data_url_is_spelled_does_not_matter() -> None:
    assert read(messages=[shows(image("DATA:IMAGE/JPEG;x=1;BASE64,AAAA"))]).images == 1


@spec("Images", 9)
@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "http://", "https://", "ftp://x.test/a", "file:///etc/passwd", "//x.test/a"),
        "https://x.test/" + "a" * 8192,
    ],
)
def test_any_other_url_is_refused_by_its_path(url: str) -> None:
    assert refused_at(BadRequest, raw(messages=[shows(image(url))]))[0] == URL


@spec("Images", 9)
@spec("Refused keys and values", 4)
@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_only_a_user_shows_images(role: str) -> None:
    told, _ = refused_at(UnsupportedChatParameter, raw(messages=[shows(image()) | {"role": role}]))

    assert told == "messages[0].content[0].type"


@spec("Refused keys and values", 4)
def test_a_tool_answers_without_images() -> None:
    history: list[Any] = [called("1"), answer("1", [TEXT, image()])]

    assert refused_at(UnsupportedChatParameter, raw(messages=history))[0] == (
        "messages[1].content[1].type"
    )
