"""Images of strangers are normalised in processes of their own, bounded in time and memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from PIL import Image

from handlers import errors
from handlers.images import pool as image_pool
from handlers.images.pool import ImagePool
from tests.handlers.images.imagery import (
    MOST,
    chunk,
    drawn,
    endless,
    inflating,
    plain,
    png,
    read,
    saved,
    webp,
)
from tests.spec import spec

SECONDS = 0.2
MIB = 2**20
ENDLESS = b"\xff\xd8" + b"\xff\xe1\0\2" * MIB
"""Seconds of CPU: a million pieces of metadata, each of which is empty."""


@pytest.fixture
async def pool() -> AsyncIterator[ImagePool]:
    """One process."""
    opened = ImagePool(seconds=5, processes=1)
    yield opened
    await opened.close()


@pytest.fixture
async def hasty() -> AsyncIterator[ImagePool]:
    """One process, which is there, and may take SECONDS of CPU for an image."""
    opened = ImagePool(seconds=SECONDS, processes=1, patience=300)
    await opened.normalise(drawn(8, 8))
    yield opened
    await opened.close()


def pid(pool: ImagePool) -> int:
    """Of the one process, while it is idle."""
    (process,) = pool._processes._idle
    return process.pid


async def test_an_image_comes_back_as_a_jpeg(pool: ImagePool) -> None:
    found = await pool.normalise(drawn(30, 20))
    same = await pool.normalise(base64.b64encode(drawn(30, 20)), encoded=True)

    image = read(found)
    assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (30, 20))
    assert same == found


async def test_base64_is_read_strictly(pool: ImagePool) -> None:
    payload = base64.b64encode(drawn(30, 20) + b"x" * (-len(drawn(30, 20)) % 3 + 1))
    assert payload.endswith(b"==")

    for broken in (payload[:-1], payload[:-2], payload + b"=", payload[:40] + b"\n" + payload[40:]):
        with pytest.raises(errors.SourceImageUnreadable):
            await pool.normalise(broken, encoded=True)

    assert await pool.normalise(payload, encoded=True)


@spec("Images", 2)
async def test_an_image_of_5_mib_is_taken_and_one_of_a_byte_more_is_not(pool: ImagePool) -> None:
    largest = drawn(8, 8, "JPEG").ljust(5 * MIB, b"\0")

    for source, encoded in ((largest, False), (base64.b64encode(largest), True)):
        assert await pool.normalise(source, encoded=encoded)
    larger = largest + b"\0"
    for source, encoded in ((larger, False), (base64.b64encode(larger), True)):
        with pytest.raises(errors.SourceImageSizeExceeded, match="5242881"):
            await pool.normalise(source, encoded=encoded)


@spec("Images", 7, 8)
async def test_an_image_that_is_refused_costs_no_process(pool: ImagePool) -> None:
    await pool.normalise(drawn(8, 8))
    process = pid(pool)

    with pytest.raises(errors.SourceImageResolutionExceeded, match="3072"):
        await pool.normalise(png(30_000, 30_000, b"\0" * 1000))
    with pytest.raises(errors.SourceImageUnreadable, match="JPEG, PNG, WebP or GIF"):
        await pool.normalise(b"GIF89a")

    assert pid(pool) == process


async def test_an_image_without_end_is_refused_in_time(hasty: ImagePool) -> None:
    """Two seconds of CPU it would take."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    with pytest.raises(errors.SourceImageUnreadable, match="time or memory"):
        await hasty.normalise(ENDLESS)

    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < SECONDS + 0.5
    assert await hasty.normalise(drawn(8, 8))


async def test_an_image_that_needs_more_memory_than_there_is_is_refused() -> None:
    pool = ImagePool(seconds=5, processes=1, memory=64 * MIB)
    assert await pool.normalise(drawn(8, 8))

    with pytest.raises(errors.SourceImageUnreadable, match="time or memory"):
        await pool.normalise(plain(MOST, MOST, colours=3))

    assert await pool.normalise(drawn(8, 8))
    await pool.close()


async def test_a_machine_that_stands_still_is_not_the_image_s_fault() -> None:
    pool = ImagePool(seconds=30, processes=1, patience=0.1)
    await pool.normalise(drawn(8, 8))
    os.kill(pid(pool), signal.SIGSTOP)

    with pytest.raises(errors.ChatImageStorageUnavailable, match="right now"):
        await pool.normalise(drawn(8, 8))

    assert await pool.normalise(drawn(8, 8))
    await pool.close()


async def test_a_process_that_dies_over_an_image_is_replaced(hasty: ImagePool) -> None:
    process = pid(hasty)
    image = asyncio.create_task(hasty.normalise(ENDLESS))
    await asyncio.sleep(0)  # it is asked

    os.kill(process, signal.SIGKILL)

    with pytest.raises(errors.SourceImageUnreadable, match="time or memory"):
        await image
    assert await hasty.normalise(drawn(8, 8))
    assert pid(hasty) != process


async def test_a_caller_that_goes_away_takes_its_image_along(pool: ImagePool) -> None:
    await pool.normalise(drawn(8, 8))
    process = pid(pool)
    for source in (ENDLESS, b"\xff\xd8\xff" * MIB):  # in the middle of working, and of being sent
        image = asyncio.create_task(pool.normalise(source))
        await asyncio.wait([image], timeout=0.02)

        image.cancel()

        with pytest.raises(asyncio.CancelledError):
            await image
    assert not Path(f"/proc/{process}").exists()
    assert await pool.normalise(drawn(8, 8))


def moving() -> bytes:
    """Two small frames on a canvas as large as it may be: what costs most."""
    frames = [Image.new("RGBA", (16, 16), (red, 0, 0, 128)) for red in (255, 0)]
    file = saved(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    assert file[12:16] == b"VP8X"
    return file[:24] + (MOST - 1).to_bytes(3, "little") * 2 + file[30:]


MANY = inflating(64)
BOMBS = {
    "header": png(30_000, 30_000, b"\0" * 1000),
    "canvas": webp((b"VP8X", b"\x10\0\0\0" + b"\xff\xff\xff" * 2)),
    "lossless": webp((b"VP8L", b"\x2f" + (0x0FFFFFFF).to_bytes(4, "little") + b"\0" * 20)),
    "profile": png(8, 8, bytes(25 * 8), extra=chunk(b"iCCP", b"x\0\0" + MANY)),
    "text": png(8, 8, bytes(25 * 8), extra=chunk(b"zTXt", b"x\0\0" + MANY)),
    "rows that are none": png(8, 8, bytes(25 * 8), extra=chunk(b"IDAT", MANY)),
    "screen": b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\2\2\x4c\1\0;",
}


async def test_what_is_small_and_decodes_to_much_stays_within_bounds(pool: ImagePool) -> None:
    """Measured: the most that the process ever had in memory, and what is left of it in ours."""
    ours = _memory("self", "VmRSS")

    for bomb in BOMBS.values():
        with contextlib.suppress(errors.Refused):
            await pool.normalise(bomb)

    assert _memory(pid(pool), "VmHWM") < 48 * MIB
    assert _memory("self", "VmRSS") - ours < 16 * MIB


@pytest.mark.parametrize("dearest", [moving, lambda: plain(MOST * MOST, 1)], ids=["webp", "row"])
async def test_the_dearest_image_that_is_accepted_takes_less_than_its_process_may(
    pool: ImagePool, dearest: Callable[[], bytes]
) -> None:
    assert await pool.normalise(dearest())

    assert _memory(pid(pool), "VmPeak") < 0.8 * image_pool.MEMORY_BYTES


async def test_what_a_process_needed_it_gives_back(pool: ImagePool) -> None:
    await pool.normalise(drawn(8, 8))
    before = _memory(pid(pool), "VmRSS")

    await pool.normalise(plain(MOST, MOST))

    assert _memory(pid(pool), "VmRSS") - before < 24 * MIB


async def test_images_of_one_account_do_not_keep_another_s_from_coming(pool: ImagePool) -> None:
    slow, one, other = endless(21_000), frozenset({1}), frozenset({2})
    most = 1 + image_pool.WAITING // 2
    many = [asyncio.create_task(pool.normalise(slow, one)) for _ in range(most + 1)]
    done, _ = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
    assert [type(each.exception()) for each in done] == [errors.ChatImageStorageUnavailable]

    assert await pool.normalise(drawn(8, 8), other)

    assert sum(each.done() for each in many) == len(done) + 1
    for each in many:
        each.cancel()
    await asyncio.gather(*many, return_exceptions=True)


async def test_the_queue_is_not_endless(pool: ImagePool) -> None:
    images = [
        asyncio.create_task(pool.normalise(drawn(8, 8))) for _ in range(image_pool.WAITING + 1)
    ]
    await asyncio.sleep(0)

    with pytest.raises(errors.ChatImageStorageUnavailable, match="Nothing was queued or charged"):
        await pool.normalise(drawn(8, 8))

    assert all(await asyncio.gather(*images))


async def test_images_come_after_everything_else(pool: ImagePool) -> None:
    await pool.normalise(drawn(8, 8))

    assert os.getpriority(os.PRIO_PROCESS, pid(pool)) >= os.getpriority(os.PRIO_PROCESS, 0) + 9


def _memory(process: int | str, what: str) -> int:
    """Bytes, as the kernel tells them of a process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(what)
