"""From the image that somebody sent to the JPEG that is stored (spec, Images): pure, and slow.

JPEG, PNG, WebP and GIF are read, of what moves the first frame. What comes out is always RGB,
upright (EXIF orientation), at most `LONGEST` on its longest side, white where it was transparent,
without any metadata. A colour profile is followed, not kept: colours are converted to sRGB.

Nothing is decoded before the header has told how many pixels there are. Time and memory are not
bounded here: it runs in a process that can be killed (`image_process`).
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from PIL import Image, ImageCms
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from handlers.images.verdicts import MAX_PIXELS

FORMATS = tuple(kind.format for kind in (JpegImageFile, PngImageFile, WebPImageFile, GifImageFile))
LONGEST = 2048
"""Pixels."""
QUALITY = 90
_GAP = 3.0
"""An image more than so many times as large as it will be is first reduced by whole steps. Without
it a row of nine million pixels takes half a GiB of coefficients."""
_MAX_PROFILE_BYTES = 2**20
_ORIENTATION = 0x0112  # EXIF
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes an orientation."""
_JPEG = b"\xff\xd8"
_SCAN = b"\xff\xda"
_MAX_SCANS = 200
"""Of a JPEG, each of which goes over all pixels and may be a few bytes; pictures have a dozen. Some
marks may be of no scan: a film of five MiB behind a picture has 80, give or take ten."""
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_PIXELS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
"""Chunks that make the picture. The others are none of a decoder's business: some are compressed,
and huge."""


class Unreadable(Exception):
    """It is no image of these formats, or a broken one."""


class TooManyPixels(Exception):
    """The header tells of more than MAX_PIXELS."""


class _Source(NamedTuple):
    """A file, not decoded yet."""

    image: Image.Image
    exif: bytes
    profile: bytes


def normalise(source: bytes) -> bytes:
    """The JPEG of an image file. Raise Unreadable, TooManyPixels, or MemoryError."""
    try:
        return _encoded(_normal(_opened(source)))
    except Image.DecompressionBombError:
        raise TooManyPixels from None
    except (TooManyPixels, MemoryError):
        raise
    except Exception as error:  # whatever a decoder makes of a stranger's file
        raise Unreadable from error


def _opened(source: bytes) -> _Source:
    _check_pixels(*_declared(source))
    if source.startswith(_JPEG) and source.count(_SCAN) > _MAX_SCANS:
        raise Unreadable
    if source.startswith(_PNG):
        source, exif, profile = _bare_png(source)
        image: Image.Image = Image.open(io.BytesIO(source), formats=("PNG",))
        transparent = _eight_bits(image.info.get("transparency"), source[24])
    else:
        image = Image.open(io.BytesIO(source), formats=FORMATS)
        exif, profile = image.info.get("exif", b""), image.info.get("icc_profile") or b""
        transparent = image.info.get("transparency")
    _check_pixels(*image.size)
    # The rest would find its way into the JPEG: a comment does.
    image.info = {} if transparent is None else {"transparency": transparent}
    return _Source(image, exif, profile)


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise TooManyPixels


def _declared(source: bytes) -> tuple[int, int]:
    """Width and height by the header, of formats whose decoder would do more than read it; (0, 0)
    of others."""
    if source.startswith(_PNG):
        return _big(source[16:20]), _big(source[20:24])
    if source[:4] != b"RIFF" or source[8:12] != b"WEBP":
        return 0, 0
    match source[12:16]:
        case b"VP8X":
            return _little(source[24:27]) + 1, _little(source[27:30]) + 1
        case b"VP8L":
            bits = _little(source[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            return _little(source[26:28]) & 0x3FFF, _little(source[28:30]) & 0x3FFF


def _big(number: bytes | memoryview) -> int:
    return int.from_bytes(number, "big")


def _little(number: bytes) -> int:
    return int.from_bytes(number, "little")


def _bare_png(source: bytes) -> tuple[bytes, bytes, bytes]:
    """The file with nothing but pixels in it, its EXIF and its colour profile."""
    kept: list[bytes | memoryview] = [_PNG]
    exif, profile = b"", b""
    for name, chunk in _chunks(source):
        if name in _PNG_PIXELS:
            kept.append(chunk)
        elif name == b"eXIf":
            exif = bytes(chunk[8:-4])
        elif name == b"iCCP" and not profile:
            profile = _inflated(bytes(chunk[8:-4]).partition(b"\0")[2][1:])
    return b"".join(kept), exif, profile


def _chunks(source: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Names of chunks, and the whole of each: length, name, data, checksum; the last one may be cut
    short."""
    view, at, name = memoryview(source), len(_PNG), b""
    while at < len(source) and name != b"IEND":
        end = at + 12 + _big(view[at : at + 4])
        name = bytes(view[at + 4 : at + 8])
        yield name, view[at:end]
        at = end


def _inflated(profile: bytes) -> bytes:
    """Nothing, where it is broken or too large."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(profile, _MAX_PROFILE_BYTES)
    except zlib.error:
        return b""
    return b"" if inflater.unconsumed_tail else found


def _normal(source: _Source) -> Image.Image:
    """Decoded, and all that is said above."""
    image = _flat(source.image)
    scale = LONGEST / max(image.size)
    if scale < 1:
        width, height = (max(1, round(each * scale)) for each in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=_GAP)
    turned = _UPRIGHT.get(_orientation(source.exif))
    if turned is not None:
        image = image.transpose(turned)
    return _standard(image, source.profile)


def _flat(image: Image.Image) -> Image.Image:
    """Decode it. In a mode that can be scaled, and on white."""
    image.load()
    if image.mode == "I;16":  # its conversion would cut off what is above 255
        image = image.point(lambda grey: grey / 256).convert("L")
    if image.has_transparency_data:
        return _on_white(image if image.mode == "RGBA" else image.convert("RGBA"))
    if image.mode in ("L", "RGB", "CMYK"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _on_white(image: Image.Image) -> Image.Image:
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _orientation(exif: bytes) -> int:
    """As the tag tells; 1 without one, or without sense."""
    tags = Image.Exif()
    try:
        tags.load(exif)
        value = tags.get(_ORIENTATION)
    except Exception:  # noqa: BLE001 - a camera that writes nonsense there took a picture still
        return 1
    return value if isinstance(value, int) else 1


def _standard(image: Image.Image, profile: bytes) -> Image.Image:
    """In sRGB: by the profile, where that tells of colours like these."""
    if profile and image.mode in ("RGB", "CMYK"):
        with contextlib.suppress(OSError, TypeError, ValueError, ImageCms.PyCMSError):
            return _by_profile(image, profile)
    return _rgb(image)


def _by_profile(image: Image.Image, profile: bytes) -> Image.Image:
    followed = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    if "sRGB" in (followed.profile.profile_description or ""):
        return _rgb(image)
    standard = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    return ImageCms.ImageCmsTransform(followed, standard, image.mode, "RGB").apply(image)


def _rgb(image: Image.Image) -> Image.Image:
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(transparent: Any, depth: int) -> Any:
    """The transparent colour of a PNG in the eight bits that each sample is decoded to."""
    match transparent, depth:
        case int(), 16:
            return transparent >> 8
        case int(), 2 | 4:
            return transparent * 255 // (2**depth - 1)
        case tuple(), 16:
            return tuple(each >> 8 for each in transparent)
        case _:
            return transparent


def _encoded(image: Image.Image) -> bytes:
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=QUALITY)
    return jpeg.getvalue()
