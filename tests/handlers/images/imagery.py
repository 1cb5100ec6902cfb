"""Image files of every kind, whole, odd and broken ones."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from PIL import Image

MOST = 3072
"""Width and height of the largest square that is accepted."""


def drawn(
    width: int, height: int, form: str = "PNG", *, mode: str = "RGB", **options: Any
) -> bytes:
    """A file with a blue image."""
    return saved(Image.new("RGB", (width, height), "blue").convert(mode), form, **options)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    """The file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def read(file: bytes) -> Image.Image:
    """The image, decoded."""
    image = Image.open(io.BytesIO(file))
    image.load()
    return image


def photo(width: int, height: int) -> Image.Image:
    """Colours that run into each other."""
    across, down = Image.linear_gradient("L").rotate(90), Image.linear_gradient("L")
    parts = (across, down, Image.radial_gradient("L"))
    return Image.merge("RGB", [each.resize((width, height)) for each in parts])


def chunk(name: bytes, data: bytes = b"") -> bytes:
    """One of a PNG."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    width: int, height: int, rows: bytes, *, depth: int = 8, kind: int = 2, extra: bytes = b""
) -> bytes:
    """A PNG of filtered rows: `kind` 0 is grey, 2 RGB, 3 palette, 4 grey with alpha, 6 RGBA;
    `extra` are the chunks in front of the pixels."""
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    body = chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND")
    return b"\x89PNG\r\n\x1a\n" + body


def plain(width: int, height: int, *, colours: int = 1) -> bytes:
    """A black PNG, quickly made: of 1 bit, or of three colours."""
    bits = 24 if colours == 3 else 1
    rows = bytes(1 + -(-bits * width // 8)) * height
    return png(width, height, rows, depth=8 if colours == 3 else 1, kind=2 if colours == 3 else 0)


def webp(*chunks: tuple[bytes, bytes]) -> bytes:
    """A RIFF container."""
    body = b"".join(
        name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
        for name, data in chunks
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def inflating(megabytes: int) -> bytes:
    """What is small, and decompresses to so many MiB."""
    return zlib.compress(bytes(megabytes * 2**20), 1)


def endless(bytes_: int) -> bytes:
    """A progressive JPEG of 3072x3072 pixels, as many scans as fit into so many bytes: one of them
    takes 20 bytes and milliseconds."""
    blocks = (MOST // 8) ** 2
    head = b"\xff\xd8" + _segment(0xDB, b"\0" + b"\1" * 64)
    head += _segment(0xC2, struct.pack(">BHHB", 8, MOST, MOST, 1) + b"\1\x11\0")
    # One code each, "0": of the first table no difference, of the second a run of 2^14 blocks.
    head += _segment(0xC4, b"\x00\1" + b"\0" * 15 + b"\0")
    head += _segment(0xC4, b"\x10\1" + b"\0" * 15 + b"\xe0")
    first = _segment(0xDA, b"\1\1\0" + b"\0\0\0") + b"\0" * (blocks // 8)
    longest = 2**15 - 1
    runs = [longest] * (blocks // longest) + [2**14] * (blocks % longest // 2**14)
    bits = "".join(f"0{run - 2**14:014b}" for run in runs)
    ran = int(bits.ljust(-(-len(bits) // 8) * 8, "1"), 2).to_bytes(-(-len(bits) // 8), "big")
    scan = _segment(0xDA, b"\1\1\0" + b"\1\x3f\0") + ran.replace(b"\xff", b"\xff\0")
    return head + first + scan * ((bytes_ - len(head) - len(first)) // len(scan)) + b"\xff\xd9"


def _segment(marker: int, data: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def segments(jpeg: bytes) -> Iterable[tuple[int, bytes]]:
    """Markers of a JPEG up to its first scan, and what goes with each."""
    at = 2
    while jpeg[at + 1] != 0xDA:
        length = int.from_bytes(jpeg[at + 2 : at + 4], "big")
        yield jpeg[at + 1], jpeg[at + 4 : at + 2 + length]
        at += 2 + length
