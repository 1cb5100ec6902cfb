"""Loading a request's images: held to the account's total, to a time and to a share of memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from handlers.accounts import Account
from handlers.chat.attached import Attached
from handlers.chat.body import ImagePart, ImageUrl
from handlers.chat.images import (
    MAX_IMAGES,
    MAX_TOTAL_BYTES,
    MAX_URL_CHARACTERS,
    Placed,
    placed,
    without_urls,
)
from handlers.chat.pictures import Offload, Pictures, check_total, share_of
from handlers.errors import (
    ChatImageStorageUnavailable,
    Refused,
    SourceImageSizeExceeded,
    SourceImageUnreadable,
    SourceImageUrlInvalid,
    SourceImageUrlRefused,
)
from handlers.fetch.fetcher import Fetcher
from handlers.images.pool import ImagePool
from handlers.processes.killable import NOBODY
from handlers.store import Place, Store
from hordechat import settings
from tests.handlers.chat.bodies import USER, image, read, shows
from tests.handlers.chat.test_images import data
from tests.spec import spec

MIB = 2**20
UNTRUSTED = Account(3, "somebody", trusted=False, moderator=False, digest="")
TRUSTED = Account(4, "trusted", trusted=True, moderator=False, digest="")
PATRON = Account(
    5, "patron", trusted=False, moderator=False, digest="", roles=frozenset({"patron"})
)
NEVER = Offload(enabled=False, most=0, compress=False)


class Fetching(Fetcher):
    """Fetches nothing: a URL says how many bytes there are, or what happens."""

    def __init__(self) -> None:
        super().__init__(seconds=1, ports=frozenset())
        self.fetched: list[str] = []
        self.meanwhile: dict[str, Callable[[], Awaitable[object]]] = {}
        self.cancelled = False

    async def fetch(self, url: str, *, most: int) -> bytes:
        assert most == 5 * MIB
        self.fetched.append(url)
        said = url.removeprefix("http://x.test/")
        if said == "refused":
            raise SourceImageUrlRefused("images are not fetched from there.")
        try:
            await self.meanwhile.get(said, _nothing)()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return bytes(int(said) if said.isdecimal() else 0)


async def _nothing() -> None:
    pass


class Made(ImagePool):
    """Makes JPEGs of a size, or refuses."""

    def __init__(self) -> None:
        super().__init__(seconds=1, processes=1)
        self.size = 1000
        self.refusal: Refused | None = None
        self.hangs = False
        self.asked: list[tuple[int, Set[int], bool]] = []

    async def normalise(
        self, source: bytes, parties: Set[int] = NOBODY, *, encoded: bool = False
    ) -> bytes:
        self.asked.append((len(source), parties, encoded))
        if self.refusal is not None:
            raise self.refusal
        if self.hangs:
            await asyncio.Event().wait()
        return bytes(self.size)


class Studio:
    """Pictures of which everything can be told to fail."""

    def __init__(self) -> None:
        self.fetcher = Fetching()
        self.pool = Made()
        self.store: Store | None = Store(
            Place("http://127.0.0.1:1", "http://127.0.0.1:1", "", "", "", "a", "b")
        )

    def opened(
        self, *, at_once: int = 128 * MIB, offload: Offload = NEVER, **more: float
    ) -> Pictures:
        return Pictures(
            self.store,
            self.fetcher,
            self.pool,
            at_once=at_once,
            offload=offload,
            **({"fetch_seconds": 5.0} | more),
        )

    async def load(
        self, *urls: str, account: Account = UNTRUSTED, text: str = "", **more: Any
    ) -> Attached | None:
        """What is attached to a request that shows these."""
        async with loading(self.opened(**more), *urls, account=account, text=text) as attached:
            return attached

    async def refused(self, kind: type[Refused], *urls: str, **more: Any) -> str:
        with pytest.raises(kind) as refused:
            await self.load(*urls, **more)
        assert type(refused.value) is kind
        return refused.value.message


def loading(
    pictures: Pictures, *urls: str, account: Account = UNTRUSTED, text: str = ""
) -> AbstractAsyncContextManager[Attached | None]:
    messages = read(
        messages=[USER, shows({"type": "text", "text": text}, *map(image, urls))]
    ).messages
    return pictures.loaded(account, without_urls(messages), deque(placed(messages)))


@pytest.fixture
def studio() -> Iterator[Studio]:
    made = Studio()
    yield made
    if made.store is not None:
        made.store.close()


def url(what: object) -> str:
    return f"http://x.test/{what}"


def path(at: int) -> str:
    """Of an image part, behind the text."""
    return f"messages[1].content[{at + 1}].image_url.url: "


async def test_images_are_normalised_one_after_the_other_for_their_account(studio: Studio) -> None:
    attached = await studio.load(data(300), url(70), data(1))

    assert attached is not None
    assert attached.images == (bytes(1000),) * 3
    assert studio.pool.asked == [(400, {3}, True), (70, {3}, False), (4, {3}, True)]
    assert not attached.offload


async def test_what_is_loaded_is_let_go_of_as_it_is_worked_off(studio: Studio) -> None:
    messages = read(messages=[shows(*map(image, [data(300)] * 3))]).messages
    sources = deque(placed(messages))
    left: list[int] = []

    class Counts(Made):
        async def normalise(self, source: bytes, *_: Any, **__: Any) -> bytes:
            left.append(len(sources))
            return source

    studio.pool = Counts()
    async with studio.opened().loaded(UNTRUSTED, without_urls(messages), sources) as attached:
        assert attached is not None
        assert not any(each.url for each in placed(attached.messages))
    assert left == [2, 1, 0]


# The totals


@spec("Images", 4, 5)
async def test_data_urls_are_held_to_the_accounts_total_before_anything_is_fetched(
    studio: Studio,
) -> None:
    parts = url(1), data(3 * MIB), data(2 * MIB)

    said = await studio.refused(SourceImageSizeExceeded, *parts, data(1))

    assert str(5 * MIB + 1) in said
    assert str(5 * MIB) in said
    assert (studio.fetcher.fetched, studio.pool.asked) == ([], [])
    assert await studio.load(*parts[1:])
    assert await studio.load(*parts, data(1), account=TRUSTED)


@spec("Images", 4, 5)
@pytest.mark.parametrize("account", [TRUSTED, PATRON])
async def test_trusted_users_and_patrons_have_five_times_as_much(
    studio: Studio, account: Account
) -> None:
    most = [url(5 * MIB)] * 5

    said = await studio.refused(SourceImageSizeExceeded, *most, data(1), account=account)

    assert said.startswith(path(4))
    assert str(25 * MIB + 1) in said
    assert str(25 * MIB) in said
    assert await studio.load(*most, account=account)


@spec("Images", 17)
def test_a_dry_run_can_hold_data_urls_to_the_same_total() -> None:
    sources = list(placed(read(messages=[shows(*map(image, [data(3 * MIB)] * 2))]).messages))

    check_total(TRUSTED, sources)
    with pytest.raises(SourceImageSizeExceeded, match=f"{6 * MIB}.*{5 * MIB}"):
        check_total(UNTRUSTED, sources)


@spec("Images", 5)
async def test_the_running_total_is_checked_after_each_fetch_and_before_the_next(
    studio: Studio,
) -> None:
    said = await studio.refused(
        SourceImageSizeExceeded, url(2 * MIB), data(MIB), url(MIB), url(MIB + 1), url(0)
    )

    assert said.startswith(path(3))
    assert str(5 * MIB + 1) in said
    assert str(5 * MIB) in said
    assert len(studio.fetcher.fetched) == 3
    assert await studio.load(url(2 * MIB), data(MIB), url(MIB), url(MIB), url(0))


@spec("Images", 6)
async def test_the_jpegs_are_held_to_the_same_total(studio: Studio) -> None:
    studio.pool.size = 2 * MIB

    said = await studio.refused(SourceImageSizeExceeded, *[data(9)] * 4)

    assert said.startswith(path(2) + "encoded as JPEG")
    assert str(6 * MIB) in said
    assert str(5 * MIB) in said
    assert len(studio.pool.asked) == 3
    assert await studio.load(*[data(9)] * 12, account=TRUSTED)


# What is wrong with an image


async def test_what_is_wrong_with_an_image_is_told_with_its_place(studio: Studio) -> None:
    said = await studio.refused(SourceImageUrlRefused, data(3), url("refused"))
    assert said == path(1) + "images are not fetched from there."

    studio.pool.refusal = SourceImageUnreadable("no image.")
    assert await studio.refused(SourceImageUnreadable, url(1)) == path(0) + "no image."


async def test_that_no_process_is_free_is_no_fault_of_an_image(studio: Studio) -> None:
    studio.pool.refusal = ChatImageStorageUnavailable("Busy.")

    assert await studio.refused(ChatImageStorageUnavailable, data(3)) == "Busy."


async def test_all_images_have_to_arrive_within_one_time(studio: Studio) -> None:
    """The first takes all of it, and nothing is left for the second."""
    loop = asyncio.get_running_loop()

    async def dawdles() -> None:
        end = loop.time() + 0.01
        while loop.time() < end:
            pass

    async def breathes() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    studio.fetcher.meanwhile = {"1": dawdles, "2": breathes}

    said = await studio.refused(
        SourceImageUrlInvalid, url(1), data(3), url(2), url(3), fetch_seconds=0.01
    )

    assert said == path(2) + "the images did not all arrive within 0.01 seconds."
    assert studio.fetcher.cancelled
    assert len(studio.fetcher.fetched) == 2


# The store


@spec("Images", 21)
async def test_nothing_is_fetched_without_a_store(studio: Studio) -> None:
    studio.store = None

    await studio.refused(ChatImageStorageUnavailable, url(1))
    assert studio.fetcher.fetched == []
    always = Offload(enabled=True, most=0, compress=False)
    assert await studio.load(text="long", offload=always) is None


@spec("Images", 21)
async def test_nothing_is_fetched_while_the_store_is_known_to_be_away(studio: Studio) -> None:
    assert studio.store is not None
    with pytest.raises(ChatImageStorageUnavailable):
        await studio.store.get("anything")

    await studio.refused(ChatImageStorageUnavailable, url(1))

    assert studio.fetcher.fetched == []
    assert await studio.load() is None


# The offload


@spec("Messages offload", 1, 2, 3)
@pytest.mark.parametrize("urls", [(), (data(900),), (data(3), url(4))], ids=len)
async def test_messages_are_offloaded_above_the_size_that_stays_inline(
    studio: Studio, urls: Sequence[str]
) -> None:
    at = len(USER["content"])
    messages = read(messages=[USER, shows({"type": "text", "text": "x" * at}, *map(image, urls))])
    size = Attached(without_urls(messages.messages), (bytes(1000),) * len(urls)).inline_bytes()
    above = Offload(enabled=True, most=size - 1, compress=True)

    attached = await studio.load(*urls, text="x" * at, offload=above)
    assert attached is not None
    assert (attached.offload, attached.compress) == (True, True)
    assert attached.inline_bytes() == size

    for inline in (above._replace(most=size), above._replace(enabled=False)):
        attached = await studio.load(*urls, text="x" * at, offload=inline)
        assert attached is None if not urls else attached is not None and not attached.offload


# The memory


async def test_requests_share_the_memory_in_turn_and_no_account_takes_more_than_half(
    studio: Studio,
) -> None:
    share = share_of(sources_of(data(300)), 5 * MIB, 0)
    pictures = studio.opened(at_once=4 * share)
    inside: list[Account] = []
    told = asyncio.Event()

    async def one(account: Account) -> None:
        async with loading(pictures, data(300), account=account):
            inside.append(account)
            await told.wait()

    tasks = [asyncio.create_task(one(account)) for account in [UNTRUSTED] * 3 + [PATRON]]
    for _ in range(5):
        await asyncio.sleep(0)
    assert inside == [UNTRUSTED, UNTRUSTED, PATRON]

    told.set()
    await asyncio.gather(*tasks)
    assert inside == [UNTRUSTED, UNTRUSTED, PATRON, UNTRUSTED]


async def test_small_requests_of_one_account_wait_for_each_other(studio: Studio) -> None:
    """What each may come to takes most of the memory; what waits is small."""
    pictures = studio.opened(offload=Offload(enabled=True, most=10**9, compress=False))

    async def one() -> int:
        async with loading(pictures, *[data(300)] * 3, account=PATRON) as attached:
            assert attached is not None
            await asyncio.sleep(0)
            return len(attached.images)

    assert await asyncio.gather(*(one() for _ in range(30))) == [3] * 30


async def test_who_waits_too_long_for_memory_is_told_so(studio: Studio) -> None:
    pictures = studio.opened(at_once=MIB, wait_seconds=0)
    async with loading(pictures, data(3)):
        with pytest.raises(ChatImageStorageUnavailable, match="Too many images"):
            async with loading(pictures, data(3), account=PATRON):
                pass
    assert len(studio.pool.asked) == 1

    async with loading(pictures, data(3), account=PATRON) as attached:  # larger than all there is
        assert attached is not None


async def test_images_that_take_too_long_in_all_give_their_memory_back(studio: Studio) -> None:
    pictures = studio.opened(at_once=MIB, wait_seconds=0, fetch_seconds=0, more_seconds=0)
    studio.pool.hangs = True
    with pytest.raises(ChatImageStorageUnavailable, match="within 0 seconds"):
        async with loading(pictures, data(3)):
            pass
    studio.pool.hangs = False

    async with loading(pictures, data(3)) as attached:
        assert attached is not None


async def test_who_goes_while_images_are_fetched_leaves_its_memory(studio: Studio) -> None:
    pictures = studio.opened(at_once=MIB, wait_seconds=0)
    studio.fetcher.meanwhile = {"1": asyncio.Event().wait}

    async def load() -> None:
        async with loading(pictures, url(1)):
            pass

    gone = asyncio.create_task(load())
    while not studio.fetcher.fetched:
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)

    assert studio.fetcher.cancelled
    async with loading(pictures, data(3)) as attached:
        assert attached is not None


def sources_of(*urls: str) -> list[Any]:
    return list(placed(read(messages=[shows(*map(image, urls))]).messages))


def test_the_largest_request_fits_the_least_memory_that_may_be_set() -> None:
    held = "data:image/png;base64," + "A" * (5 * MIB * 4 // 3)
    fetched = url("x" * (MAX_URL_CHARACTERS - len(url(""))))
    urls = [held] * 5 + [fetched] * (MAX_IMAGES - 5)
    sources = [Placed("", ImagePart(ImageUrl(each))) for each in urls]

    assert share_of(sources, MAX_TOTAL_BYTES, 2 * MIB) <= 64 * MIB
    with pytest.raises(settings.SettingsError, match="HORDE_IMAGES_AT_ONCE_BYTES"):
        settings.load({"HORDE_IMAGES_AT_ONCE_BYTES": str(64 * MIB - 1)})


def test_what_is_fetched_needs_memory_for_one_at_a_time() -> None:
    held, fetched = sources_of(data(300)), sources_of(*[url(n) for n in range(3)])

    assert share_of(held, 25 * MIB, 0) == 5 * MIB + len(data(300))
    assert share_of(fetched, 25 * MIB, 0) == (15 + 5) * MIB + 3 * len(url(0))
    assert share_of(fetched, 5 * MIB, 0) == (5 + 5) * MIB + 3 * len(url(0))


def test_messages_alone_need_the_memory_of_their_own_object() -> None:
    assert share_of([], MAX_TOTAL_BYTES, 5000) == 5000
