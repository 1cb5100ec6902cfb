"""What it costs to normalise images in processes that can be killed, beside plain Pillow.

Plain Pillow does the same steps on the same files, in the process that has them. Both take turns in
one process of the benchmark, file by file, so that whatever else the machine does weighs on both;
the CPU is that of the process and of its children. The files look like what is sent: photographs
and screenshots of a few sizes up to the largest.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from PIL import Image, ImageChops, ImageOps

from bench import cpu
from bench.rig import Result
from handlers.images.pool import ImagePool

POOL, PLAIN = "image, normalised", "image, plain Pillow"
_SIZES = ((800, 600), (1920, 1080), (3072, 3072))
_LONGEST = 2048
_QUALITY = 90
_SECONDS = 60.0
"""Of CPU for one image: none of these comes near."""


class Run(msgspec.Struct):
    """What one way to normalise took."""

    times: list[float] = []  # seconds of each image
    cpu: float = 0.0  # seconds
    megapixels: float = 0.0  # of what was sent


def files() -> list[tuple[float, bytes]]:
    """Images as they are sent, and the megapixels of each."""
    return [
        (width * height / 1e6, file)
        for width, height in _SIZES
        for file in (
            _saved(_photo(width, height), "JPEG", quality=85, exif=_sideways()),
            _saved(_photo(width, height), "WEBP", quality=80, method=2),
            _saved(_screen(width, height), "PNG", compress_level=6),
        )
    ]


def _photo(width: int, height: int) -> Image.Image:
    """Noise over colours that run into each other."""
    noise = Image.effect_noise((width, height), 12)
    return ImageChops.add(_colours(width, height), Image.merge("RGB", [noise] * 3), 1, -128)


def _screen(width: int, height: int) -> Image.Image:
    """Colours that run into each other, in front of nothing."""
    image = _colours(width, height)
    image.putalpha(Image.radial_gradient("L").resize((width, height)))
    return image


def _colours(width: int, height: int) -> Image.Image:
    down, round_ = Image.linear_gradient("L"), Image.radial_gradient("L")
    return Image.merge(
        "RGB", [each.resize((width, height)) for each in (down.rotate(90), down, round_)]
    )


def _sideways() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def _saved(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def plain(source: bytes) -> bytes:
    """The same steps, as few lines as Pillow takes."""
    image: Image.Image = Image.open(io.BytesIO(source))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image)
        image = white
    image.thumbnail((_LONGEST, _LONGEST), Image.Resampling.LANCZOS)
    return _saved(ImageOps.exif_transpose(image).convert("RGB"), "JPEG", quality=_QUALITY)


async def measure(seconds: float) -> tuple[Run, Run]:
    """Of the pool, and of plain Pillow, for about so many seconds each."""
    sent, pooled, alone = files(), Run(), Run()
    pool = ImagePool(seconds=_SECONDS, processes=1)
    for _, source in sent:
        await pool.normalise(source)
    until = time.monotonic() + 2 * seconds
    while time.monotonic() < until or not alone.times:
        for megapixels, source in sent:
            with _measured(pooled, megapixels):
                await pool.normalise(source)
            with _measured(alone, megapixels):
                plain(source)
    await pool.close()
    return pooled, alone


@contextlib.contextmanager
def _measured(run: Run, megapixels: float) -> Iterator[None]:
    here = {"web": os.getpid()}
    before, started = cpu.read(here), time.monotonic()
    yield
    run.times.append(time.monotonic() - started)
    run.cpu += cpu.between(before, cpu.read(here))["web"]
    run.megapixels += megapixels


def run(seconds: float) -> dict[str, Result]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-P", "-m", "bench.images", str(seconds)]
    root = Path(__file__).parent.parent
    told = subprocess.run(
        command, cwd=root, env={"PYTHONPATH": str(root)}, check=True, capture_output=True
    )
    found = msgspec.json.decode(told.stdout, type=tuple[Run, Run])
    return {
        name: Result(
            sum(each.times), each.times, {"web": each.cpu}, {"megapixels": each.megapixels}
        )
        for name, each in zip((POOL, PLAIN), found, strict=True)
    }


if __name__ == "__main__":
    print(msgspec.json.encode(asyncio.run(measure(float(sys.argv[1])))).decode())
