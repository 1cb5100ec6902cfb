"""What becomes of an image file, whatever is in it (cases C-087, C-089)."""

from __future__ import annotations

import base64
import random
import struct
import time
import zlib
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageCms, ImageStat
from PIL.JpegImagePlugin import JpegImageFile

from handlers.images.normalise import TooManyPixels, Unreadable, normalise
from tests.handlers.images.imagery import (
    MOST,
    chunk,
    drawn,
    endless,
    inflating,
    photo,
    plain,
    png,
    read,
    saved,
    segments,
    webp,
)
from tests.spec import spec

FORMS = ("JPEG", "PNG", "WEBP", "GIF")
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
GREY = (128, 128, 128)
SCREEN = struct.pack("<HH", 65535, 65535)

pytestmark = pytest.mark.filterwarnings("ignore")  # of Pillow; the process ignores them, too


def near(image: Image.Image, at: tuple[int, int], colour: tuple[int, ...]) -> bool:
    """Whether the pixel has about this colour: JPEG tells no other."""
    found = image.getpixel(at)
    assert isinstance(found, tuple)
    return all(abs(one - other) <= 6 for one, other in zip(found, colour, strict=True))


@spec("Images", 15)
@pytest.mark.parametrize("form", FORMS)
def test_any_form_becomes_an_rgb_jpeg_that_looks_the_same(form: str) -> None:
    image = photo(64, 48)

    found = read(normalise(saved(image, form, quality=95)))

    assert (found.format, found.mode, found.size) == ("JPEG", "RGB", (64, 48))
    for at in ((5, 5), (60, 5), (5, 40), (32, 24)):
        looks, seen = image.getpixel(at), found.getpixel(at)
        assert isinstance(looks, tuple)
        assert isinstance(seen, tuple)
        assert all(abs(a - b) < 16 for a, b in zip(looks, seen, strict=True))


@spec("Images", 15)
def test_the_quality_is_90() -> None:
    found = read(normalise(drawn(8, 8)))
    wanted = read(drawn(8, 8, "JPEG", quality=90))

    assert isinstance(found, JpegImageFile)
    assert isinstance(wanted, JpegImageFile)
    assert found.quantization == wanted.quantization


@spec("Images", 7, 15)
@pytest.mark.parametrize(
    ("size", "becomes"),
    [
        ((MOST, MOST), (2048, 2048)),  # C-087
        ((2048, 2048), (2048, 2048)),
        ((2049, 100), (2048, 100)),
        ((100, 4096), (50, 2048)),
        ((1, 1), (1, 1)),
        ((3000, 1), (2048, 1)),
        ((MOST * MOST, 1), (2048, 1)),
    ],
)
def test_the_longest_side_is_2048_at_most_and_the_aspect_is_kept(
    size: tuple[int, int], becomes: tuple[int, int]
) -> None:
    assert read(normalise(plain(*size))).size == becomes


BOMBS = {
    "png": png(30_000, 30_000, b"\0" * 1000),
    "png, junk behind the header": png(30_000, 30_000, b"")[:33] + b"\xa5" * 1000,
    "png, one column more": png(MOST + 1, MOST, b"\0" * 1000),
    "png, one pixel more": png(1, MOST * MOST + 1, b"\0" * 1000),
    "png, the largest": png(2**31 - 1, 2**31 - 1, b"\0"),
    "jpeg": drawn(8, 8, "JPEG").replace(
        struct.pack(">BHH", 8, 8, 8), struct.pack(">BHH", 8, 65500, 65500)
    ),
    "gif, its screen": drawn(8, 8, "GIF").replace(struct.pack("<HH", 8, 8), SCREEN, 1),
    "gif, its frame": b"GIF89a\x08\0\x08\0\0\0\0,\0\0\0\0" + SCREEN + b"\0\2\2\x4c\1\0;",
    "webp, lossy": webp((b"VP8 ", b"\x30\1\0\x9d\x01\x2a" + struct.pack("<HH", 16383, 16383))),
    "webp, lossless": webp((b"VP8L", b"\x2f" + struct.pack("<I", 0x0FFFFFFF) + b"\0" * 20)),
    "webp, its canvas": webp((b"VP8X", b"\x10\0\0\0" + b"\xff\xff\xff" * 2)),
}


@spec("Images", 7)
@pytest.mark.parametrize("bomb", BOMBS)
def test_pixels_are_counted_by_the_header(bomb: str) -> None:
    """None of these has any pixels to decode."""
    with pytest.raises(TooManyPixels):
        normalise(BOMBS[bomb])


OTHERS = {
    "nothing": b"",
    "text": b"Hello, I am a picture.",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"/>',
    "pdf": b"%PDF-1.7\n",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n",
    "heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "psd": b"8BPS\0\1" + b"\0" * 6 + b"\0\3" + b"\0\0\0\x08" * 2 + b"\0\x08\0\3" + b"\0" * 300,
    **{
        form.lower(): drawn(8, 8, form)
        for form in ("TIFF", "BMP", "ICO", "ICNS", "PPM", "TGA", "PCX", "JPEG2000", "AVIF", "DDS")
    },
}


@spec("Images", 8)
@pytest.mark.parametrize("other", OTHERS)
def test_other_forms_are_not_read(other: str) -> None:
    with pytest.raises(Unreadable):
        normalise(OTHERS[other])


@spec("Images", 8)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_cut_short_is_not_read(form: str) -> None:
    whole = saved(photo(64, 48), form)
    normalise(whole)

    for share in (0.02, 0.1, 0.5, 0.9):
        with pytest.raises(Unreadable):
            normalise(whole[: int(share * len(whole))])


def test_what_lies_is_not_read() -> None:
    good = png(2, 1, b"\0" + bytes(6))
    normalise(good)
    head = good[:33]
    pixels = good.index(b"IDAT")
    tail = chunk(b"IEND")

    for lie in (
        head + b"\xa5" * 1000,
        head + tail,
        head + chunk(b"IDAT", b"\xa5" * 100) + tail,
        head + chunk(b"IDAT", zlib.compress(b"\0" * 3)) + tail,  # half of a row
        good[: pixels + 8] + bytes([good[pixels + 8] ^ 1]) + good[pixels + 9 :],  # the checksum
        good[:29] + b"\0\0\0\0" + good[33:],  # that of the header
        png(0, 5, b""),
        png(2, 1, b"\0" + bytes(6), kind=5),
        png(2, 1, b"\x09" + bytes(6)),  # no such filter
        webp((b"VP8X", b"\0\0\0\0" + b"\7\0\0" * 2)),
        b"GIF89a\0\0\0\0\0\0\0;",
        b"\xff\xd8\xff\xd9",
    ):
        with pytest.raises(Unreadable):
            normalise(lie)


@pytest.mark.parametrize("files", [150, pytest.param(20_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("form", FORMS)
def test_a_file_with_any_bytes_changed_is_an_image_or_none(form: str, files: int) -> None:
    """Nothing else is ever raised."""
    random_ = random.Random(form)
    exif = Image.Exif()
    exif[0x0112] = 6
    options: dict[str, Any] = {} if form == "GIF" else {"exif": exif}
    whole = saved(photo(24, 16), form, **options)

    met = set()
    for _ in range(files):
        broken = bytearray(whole)
        for _ in range(random_.choice((1, 3, 20))):
            broken[random_.randrange(len(broken))] = random_.randrange(256)
        try:
            met.add(read(normalise(bytes(broken))).format)
        except (Unreadable, TooManyPixels):
            met.add(None)

    assert met == {"JPEG", None}


@spec("Images", 15)
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_it_is_turned_upright(form: str, orientation: int) -> None:
    """C-089. The corners of the upright one are red, green, blue and white, in reading order."""
    upright = Image.new("RGB", (64, 32))
    for at, colour in (((0, 0), RED), ((32, 0), GREEN), ((0, 16), BLUE), ((32, 16), WHITE)):
        upright.paste(colour, (*at, at[0] + 32, at[1] + 16))
    exif = Image.Exif()
    exif[0x0112] = orientation
    # How the camera held it, as EXIF counts: which row and column of the scene come first.
    how = (None, 0, 3, 1, 5, 2, 6, 4)[orientation - 1]
    held = upright if how is None else upright.transpose(Image.Transpose(how))
    exact = {"quality": 95, "subsampling": 0} if form == "JPEG" else {"lossless": True}

    found = read(normalise(saved(held, form, exif=exif, **(exact if form != "PNG" else {}))))

    assert found.size == (64, 32)
    for at, colour in (((8, 4), RED), ((56, 4), GREEN), ((8, 28), BLUE), ((56, 28), WHITE)):
        assert near(found, at, colour), (at, found.getpixel(at))


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_without_sense_turns_nothing(value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value

    assert read(normalise(drawn(40, 20, "JPEG", exif=exif))).size == (40, 20)


def test_a_picture_with_broken_exif_is_a_picture() -> None:
    for exif in (
        b"Exif\0\0",
        b"Exif\0\0MM\0*\0\0\xff\xff",
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff",
        b"x",
    ):
        assert read(normalise(drawn(40, 20, "JPEG", exif=exif))).size == (40, 20)
        assert read(normalise(drawn(40, 20, "WEBP", exif=exif))).size == (40, 20)
        rest = exif.removeprefix(b"Exif\0\0")
        file = png(40, 20, (b"\0" + bytes(120)) * 20, extra=chunk(b"eXIf", rest))
        assert read(normalise(file)).size == (40, 20)


@spec("Images", 15)
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_nothing_is_left_that_is_no_pixel(form: str) -> None:
    """C-089: no place where it was taken, nor anything else that was in the file."""
    exif = Image.Exif()
    exif[0x010E] = "SECRET"
    exif.get_ifd(0x8825)[1] = "N"
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    options: dict[str, Any] = {"exif": exif, "icc_profile": profile, "xmp": b"<x>SECRET</x>"}
    if form == "JPEG":
        options |= {"comment": b"SECRET", "dpi": (300, 300)}
    sent = drawn(16, 16, form, **options)
    if form == "PNG":
        sent = sent[:33] + chunk(b"tEXt", b"Comment\0SECRET") + sent[33:]
    assert b"SECRET" in sent

    found = normalise(sent)

    kinds = {marker for marker, _ in segments(found)}
    assert kinds == {0xE0, 0xDB, 0xC0, 0xC4}  # JFIF, and what decodes it
    assert b"SECRET" not in found
    assert found == normalise(drawn(16, 16, form))


def palette(*colours: tuple[int, int, int]) -> bytes:
    return chunk(b"PLTE", bytes(part for colour in colours for part in colour))


def transparency(*values: int) -> bytes:
    return chunk(b"tRNS", struct.pack(f">{len(values)}H", *values))


def rows(*row: int) -> bytes:
    """Four rows of a PNG."""
    return bytes([0, *row]) * 4


def in_palette(pixels: bytes) -> Image.Image:
    """Two columns of red (0) and grey (1)."""
    image = Image.frombytes("P", (2, len(pixels) // 2), pixels)
    image.putpalette([*RED, *GREY])
    return image


CLEAR_AND_GREY = {
    "rgba": png(2, 4, rows(1, 2, 3, 0, 128, 128, 128, 255), kind=6),
    "grey with alpha": png(2, 4, rows(1, 0, 128, 255), kind=4),
    "rgba of 16 bits": png(2, 4, rows(*[0] * 8, *[128] * 6, 255, 255), depth=16, kind=6),
    "grey with alpha of 16 bits": png(2, 4, rows(0, 0, 0, 0, 128, 0, 255, 255), depth=16, kind=4),
    "palette": png(
        2, 4, rows(0, 1), kind=3, extra=palette(RED, (128,) * 3) + chunk(b"tRNS", b"\0")
    ),
    "palette of 1 bit": png(
        2, 4, rows(0x40), depth=1, kind=3, extra=palette(RED, (128,) * 3) + chunk(b"tRNS", b"\0")
    ),
    "rgb": png(2, 4, rows(9, 8, 7, 128, 128, 128), extra=transparency(9, 8, 7)),
    "rgb of 16 bits": png(
        2,
        4,
        rows(9, 0, 8, 0, 7, 0, *[128] * 6),
        depth=16,
        extra=transparency(9 << 8, 8 << 8, 7 << 8),
    ),
    "grey": png(2, 4, rows(9, 128), kind=0, extra=transparency(9)),
    "grey of 4 bits": png(2, 4, rows(0x28), depth=4, kind=0, extra=transparency(2)),
    "grey of 16 bits": png(2, 4, rows(9, 0, 128, 0), depth=16, kind=0, extra=transparency(9 << 8)),
    "gif": saved(in_palette(b"\0\1" * 4), "GIF", transparency=0),
    "webp": saved(
        Image.frombytes("RGBA", (2, 4), bytes([1, 2, 3, 0, 128, 128, 128, 255]) * 4),
        "WEBP",
        lossless=True,
    ),
}


@spec("Images", 15)
@pytest.mark.parametrize("file", CLEAR_AND_GREY)
def test_what_is_transparent_becomes_white(file: str) -> None:
    """The left column is transparent, the right one grey."""
    found = read(normalise(CLEAR_AND_GREY[file]))

    assert near(found, (0, 2), WHITE)
    assert near(found, (1, 2), GREY if file != "grey of 4 bits" else (136, 136, 136))


def test_what_is_half_transparent_becomes_half_white() -> None:
    file = png(2, 4, rows(*[255, 0, 0, 128] * 2), kind=6)

    assert near(read(normalise(file)), (0, 2), (255, 127, 127))


@pytest.mark.parametrize("mode", ["1", "L", "I;16", "P", "LA", "RGBA"])
def test_modes_without_a_transparent_pixel_look_as_before(mode: str) -> None:
    steps = bytes(range(0, 256, 4)) * 8
    grey = Image.frombytes("L", (64, 8), steps)
    image = (
        grey.convert(mode)
        if mode != "I;16"
        else Image.frombytes("I;16", (64, 8), b"".join(bytes([0, value]) for value in steps))
    )

    found = read(normalise(saved(image, "PNG")))

    looks = image.convert("RGB") if mode != "I;16" else grey.convert("RGB")
    assert ImageStat.Stat(ImageChops.difference(found, looks)).extrema[0][1] < 16


def cmyk(*, transform: int | None = None) -> bytes:
    """A JPEG of four colours, of which no ink is yellow and half of it is black. With the marker of
    Adobe as Pillow writes it, with another transform in it, or without that marker."""
    image = Image.new("CMYK", (16, 16), (255, 0, 0, 128))
    file = saved(image, "JPEG", quality=100)
    at = file.index(b"\xff\xee")
    whole = file[at : at + 16]
    assert whole[4:9] == b"Adobe"
    return file.replace(whole, b"" if transform is None else whole[:-1] + bytes([transform]))


@pytest.mark.parametrize("transform", [0, None])
def test_four_colours_become_three(transform: int | None) -> None:
    """They are inverted by convention, whether or not Adobe's marker says so."""
    assert near(read(normalise(cmyk(transform=transform))), (8, 8), (0, 127, 127))


def test_four_colours_in_luma_and_chroma_become_three() -> None:
    """Y, Cb, Cr, K: of the bytes of the CMYK file, (0, 255, 255, 127)."""
    found = read(normalise(cmyk(transform=2)))

    expected = Image.new("YCbCr", (1, 1), (0, 255, 255)).convert("RGB").getpixel((0, 0))
    assert isinstance(expected, tuple)
    assert near(found, (8, 8), tuple((255 - each) * 127 // 255 for each in expected))


def swapped() -> bytes:
    """A profile in which red is green, and green red."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return (
        profile.replace("sRGB".encode("utf-16-be"), "Odd!".encode("utf-16-be"))
        .replace(b"rXYZ", b"TEMP")
        .replace(b"gXYZ", b"rXYZ")
        .replace(b"TEMP", b"gXYZ")
    )


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_colours_are_those_of_the_profile(form: str) -> None:
    image = Image.new("RGB", (16, 16), RED)

    found = read(normalise(saved(image, form, icc_profile=swapped())))

    assert near(found, (8, 8), GREEN)


def test_a_profile_that_does_not_fit_is_not_followed() -> None:
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    for profile in (b"", b"x" * 500, swapped()[:200], lab):
        assert near(read(normalise(drawn(16, 16, "JPEG", icc_profile=profile))), (8, 8), BLUE)
    found = normalise(saved(Image.new("CMYK", (16, 16)), "JPEG", icc_profile=swapped()))
    assert near(read(found), (8, 8), WHITE)


BOMB = inflating(20)
BLUE_ROWS = (b"\0" + b"\0\0\xff" * 8) * 8


def test_what_is_beside_the_pixels_of_a_png_cannot_keep_it_from_being_read() -> None:
    for extra in (
        chunk(b"iCCP", b"odd\0\0" + BOMB),
        chunk(b"iCCP", b"odd\0\0broken"),
        chunk(b"iCCP", b"odd"),
        chunk(b"zTXt", b"Comment\0\0" + BOMB),
        chunk(b"iTXt", b"Comment\0\1\0\0\0" + BOMB),
        chunk(b"zTXt", b"Comment\0\0" + inflating(1)) * 70,
        chunk(b"tEXt", b"Comment\0" + b"x" * 2**21),
        chunk(b"tEXt", b"Comment\0x")[:-4] + b"\0\0\0\0",
        chunk(b"eXIf", b"MM\0*\0\0\0\x08\xff\xff" + b"\1\x12" * 2**19),
        chunk(b"aaAa") * 10_000,
    ):
        assert near(read(normalise(png(8, 8, BLUE_ROWS, extra=extra))), (4, 4), BLUE)


@spec("Images", 15)
@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF"])
def test_of_what_moves_the_first_frame_is_taken(form: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (BLUE, RED, GREEN)]

    file = saved(frames[0], form, save_all=True, append_images=frames[1:])

    assert near(read(normalise(file)), (8, 8), BLUE)


def test_of_two_pictures_of_a_phone_the_first_is_taken() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (BLUE, RED)]
    file = saved(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert read(file).format == "MPO"

    assert near(read(normalise(file)), (8, 8), BLUE)


def test_thousands_of_frames_are_not_looked_at() -> None:
    file = drawn(16, 16, "GIF")
    frame = file[file.index(b",\0\0\0\0") : -1]

    started = time.process_time()
    found = read(normalise(file[:-1] + frame * 20_000 + b";"))

    assert near(found, (8, 8), BLUE)
    assert time.process_time() - started < 0.5


def test_a_jpeg_may_be_progressive_and_have_junk_behind_it() -> None:
    file = saved(photo(64, 48), "JPEG", progressive=True)
    whole = normalise(file)

    assert normalise(file + b"\xa5" * 1000) == whole


def test_a_jpeg_of_thousands_of_scans_is_not_read() -> None:
    """Nine million pixels are gone over for every twenty bytes."""
    started = time.process_time()

    with pytest.raises(Unreadable):
        normalise(endless(100_000))

    assert time.process_time() - started < 0.5


def test_a_jpeg_with_a_film_behind_it_is_read() -> None:
    film = random.Random(0).randbytes(4 * 2**20)

    assert normalise(saved(photo(64, 48), "JPEG") + film)


ARITHMETIC = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsL"
    "EBYQERMUFRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU"
    "FBQUFBQUFBQUFBQUFBQUFBQUFBT/yQARCAAIABADASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AOw3"
    "vFTAV+L/2Q=="
)
"""16x8 pixels, blue."""


def test_a_jpeg_may_be_coded_by_arithmetic() -> None:
    assert near(read(normalise(base64.b64decode(ARITHMETIC))), (8, 4), BLUE)
