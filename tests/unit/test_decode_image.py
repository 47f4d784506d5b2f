"""Picture decoders: the right part, upright, in the right size, the same for every thread and way of asking."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

import support_decode as support
from stoker import image
from stoker.decode import augment
from stoker.decode.augment import Box, Draws, aligned, central_box, random_box, short_side, stored_box
from stoker.decode.header import read_header
from stoker.decode.pixels import cut, size_of
from stoker.decode.resize import pillow_kernel, resize
from stoker.errors import SampleError, UsageError

LAW = settings(deadline=None, derandomize=True)
SIDES = st.integers(1, 3000)


def psnr(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Peak signal to noise ratio in dB: 10·log10(255² / mean squared difference)."""
    error = float(np.mean((found.astype(np.float64) - expected) ** 2))
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


def jpeg(pixels: np.ndarray[Any, Any], orientation: int | None = None, **options: Any) -> bytes:
    """A JPEG, with an EXIF orientation if wanted."""
    if orientation is not None:
        exif = PIL.Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif.tobytes()
    return support.encode(pixels, "JPEG", **{"quality": 95, **options})


ALL = [
    image.Image(),
    image.Resize((30, 40)),
    image.Resize(50),
    image.CenterCrop(32, resize=40),
    image.RandomResizedCrop(24, flip=True),
]


@pytest.mark.parametrize("decoder", ALL, ids=lambda decoder: type(decoder).__name__)
def test_every_way_of_asking_gives_the_same(decoder: Any) -> None:
    """Bytes or memoryview, into a slot or not, before or after a pickle, in many threads: the same pixels."""
    pictures = [jpeg(support.photo(70 + 9 * n, 90, n)) for n in range(12)]
    expected = [decoder.decode(raw, None, n) for n, raw in enumerate(pictures)]
    again = pickle.loads(pickle.dumps(decoder))
    assert again == decoder
    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(lambda n: again.decode(memoryview(pictures[n % 12]), None, n % 12), range(48)))
    for number, pixels in enumerate(threaded):
        assert np.array_equal(pixels, expected[number % 12])
    if decoder.shape is not None:
        slots = np.zeros((12, *decoder.shape), decoder.dtype)
        for number, raw in enumerate(pictures):
            assert decoder.decode(raw, slots[number], number) is None
        assert np.array_equal(slots, np.stack(expected))


def test_a_whole_jpeg_is_what_libjpeg_gives() -> None:
    """Image() gives every pixel of the decoder, in an array of its own."""
    raw = jpeg(support.photo(61, 83, 5))
    first = image.Image().decode(raw, None, 0)
    image.Image().decode(jpeg(support.photo(61, 83, 6)), None, 0)
    assert np.array_equal(first, simplejpeg.decode_jpeg(raw, "RGB"))


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_pictures_are_turned_upright(orientation: int, kind: str) -> None:
    """Orientations 1 to 8 are applied in every format that has them, others are ignored."""
    picture = support.photo(48, 80, 2)
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    raw = support.encode(picture, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    turns: dict[int, Any] = {
        2: picture[:, ::-1], 3: picture[::-1, ::-1], 4: picture[::-1], 5: picture.transpose(1, 0, 2),
        6: np.rot90(picture, -1), 7: np.rot90(picture, 2).transpose(1, 0, 2), 8: np.rot90(picture),
    }  # fmt: skip
    found, expected = image.Image().decode(raw, None, 0), turns.get(orientation, picture)
    assert found.shape == expected.shape
    assert size_of(raw) == expected.shape[:2]
    assert psnr(found, expected) > 32


@pytest.mark.parametrize("orientation", range(1, 9))
def test_crops_of_turned_jpegs_are_decoded_small_and_right(orientation: int) -> None:
    """A part of a turned picture, decoded at 1/4, is that part of the upright picture to 35 dB."""
    raw = jpeg(support.photo(640, 970, 4), orientation, subsampling=0)
    upright = image.Image().decode(raw, None, 0)
    wanted = Box(17, 33, 500, 410)
    seen: list[tuple[int, int]] = []

    def choose(height: int, width: int) -> tuple[Box, tuple[int, int]]:
        seen.append((height, width))
        return wanted, (100, 100)

    part = cut(raw, choose)[0].copy()
    found, expected = np.empty((100, 100, 3), np.uint8), np.empty((100, 100, 3), np.uint8)
    resize(part, found)
    turned = orientation >= 5
    height, width = upright.shape[:2]
    stored = aligned(stored_box(wanted, orientation, height, width), (100, 100))[0]
    back = next(
        Box(top, left, stored.width if turned else stored.height, stored.height if turned else stored.width)
        for top in range(wanted.top - 8, wanted.top + 9)
        for left in range(wanted.left - 8, wanted.left + 9)
        if stored_box(
            Box(top, left, stored.width if turned else stored.height, stored.height if turned else stored.width),
            orientation, height, width,
        ) == stored
    )  # fmt: skip
    pillow_kernel(upright[back.top : back.top + back.height, back.left : back.left + back.width], expected)
    assert seen == [(height, width)]
    assert part.shape[0] < 150
    assert psnr(found, expected) > 35


def test_real_crops_match_pillow(shared_data: Path) -> None:
    """On real photos the 5th percentile of PSNR against Pillow's resize of the same crop is 35 dB or more."""
    values, scaled = [], 0
    files = sorted((shared_data / "images/dali-cc0").rglob("*.jpg"))[:60]
    files += sorted((shared_data / "images/imagenet-sample").rglob("*.JPEG"))[:120]
    for draw, path in enumerate(files):
        raw, target = path.read_bytes(), (224, 224) if draw % 2 else (96, 96)
        found = image.RandomResizedCrop(target, scale=(0.3, 1)).decode(raw, None, draw)
        whole = image.Image().decode(raw, None, 0)
        part = Draws(Draws(draw).next())
        box = random_box(whole.shape[0], whole.shape[1], part, scale=(0.3, 1), ratio=(3 / 4, 4 / 3))
        box, denominator = aligned(box, target)
        scaled += denominator > 1
        expected = np.empty((*target, 3), np.uint8)
        pillow_kernel(whole[box.top : box.top + box.height, box.left : box.left + box.width], expected)
        values.append(psnr(found, expected))
    assert len(values) > 100 and scaled > 20
    assert np.percentile(values, 5) >= 35


def test_large_crops_are_decoded_at_a_fraction() -> None:
    """The denominator is the largest whose multiple of the target the crop reaches; all edges are multiples of it."""
    for side, expected in ((100, 1), (447, 1), (448, 2), (895, 2), (896, 4), (1791, 4), (1792, 8), (9000, 8)):
        box, denominator = aligned(Box(13, 29, side, side + 3), (224, 224))
        assert denominator == expected
        assert {side % denominator for side in (box.top, box.left, box.height, box.width)} == {0}
        assert min(box.height, box.width) >= 224 * denominator or denominator == 1


@LAW
@given(height=SIDES, width=SIDES, draw=st.integers(0, 2**64 - 1))
def test_random_boxes_lie_inside(height: int, width: int, draw: int) -> None:
    """Every crop has at least one pixel and lies in its picture, before and after alignment."""
    box = random_box(height, width, Draws(draw), scale=(0.08, 1), ratio=(3 / 4, 4 / 3))
    for part in (box, aligned(box, (7, 9))[0]):
        assert part.height >= 1 and part.width >= 1
        assert 0 <= part.top <= height - part.height and 0 <= part.left <= width - part.width


def test_random_boxes_are_distributed_as_asked() -> None:
    """Areas are uniform in `scale`, aspects log-uniform in `ratio`, places uniform."""
    boxes = [random_box(1000, 1000, Draws(n), scale=(0.1, 0.5), ratio=(1 / 2, 2)) for n in range(4000)]
    areas = np.array([box.height * box.width / 1e6 for box in boxes])
    aspects = np.array([np.log(box.width / box.height) / np.log(2) for box in boxes])
    places = np.array([box.top / (1000 - box.height) for box in boxes])
    for values, low, high in ((areas, 0.1, 0.5), (aspects, -1, 1), (places, 0, 1)):
        assert values.min() >= low - 0.01 and values.max() <= high + 0.01
        counts = np.histogram(values, bins=10, range=(low, high))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 30


def test_draws_are_golden() -> None:
    """The random stream and the crops made of it never change."""
    draws = Draws(42)
    assert [draws.next() for _ in range(3)] == [13679457532755275413, 2949826092126892291, 5139283748462763858]
    assert random_box(480, 640, Draws(7), scale=(0.08, 1), ratio=(3 / 4, 4 / 3)) == Box(
        top=53, left=187, height=422, width=319
    )


def test_flips_come_half_of_the_time_and_mirror() -> None:
    """With flip=True about every second draw gives the mirrored picture, exactly."""
    raw = jpeg(support.photo(40, 40, 1))
    plain = image.Resize((20, 20)).decode(raw, None, 0)
    found = [image.Resize((20, 20), flip=True).decode(raw, None, draw) for draw in range(200)]
    kinds = Counter(
        "plain" if np.array_equal(p, plain) else "flipped" if np.array_equal(p, plain[:, ::-1]) else "?" for p in found
    )
    assert kinds["?"] == 0 and 70 < kinds["flipped"] < 130


@pytest.mark.parametrize(
    ("decoder", "size", "expected"),
    [
        (image.Resize((30, 40)), (100, 200), (30, 40)), (image.Resize(50), (100, 200), (50, 100)),
        (image.Resize(50), (200, 100), (100, 50)), (image.Resize(300), (101, 200), (300, 594)),
        (image.CenterCrop(64), (100, 200), (64, 64)), (image.CenterCrop(64), (10, 20), (64, 64)),
        (image.CenterCrop((20, 60), resize=64), (100, 200), (20, 60)),
        (image.RandomResizedCrop((5, 9)), (1, 1), (5, 9)),
    ],
)  # fmt: skip
def test_outputs_have_the_size_asked_for(decoder: Any, size: tuple[int, int], expected: tuple[int, int]) -> None:
    """Also from pictures that are smaller than the target."""
    found = decoder.decode(support.encode(support.photo(*size, 1), "PNG"), None, 3)
    assert found.shape == (*expected, 3)
    assert decoder.shape in (None, found.shape) and found.dtype == decoder.dtype == np.uint8


def test_a_centre_crop_without_resize_is_the_middle_as_it_is() -> None:
    """CenterCrop(size) of a larger picture takes its pixels unchanged."""
    picture = support.photo(101, 200, 8)
    found = image.CenterCrop((31, 60)).decode(support.encode(picture, "PNG"), None, 0)
    assert np.array_equal(found, picture[35:66, 70:130])


def test_a_centre_crop_with_resize_is_the_middle_of_the_resized() -> None:
    """CenterCrop(64, resize=80) shows what resizing the shorter side to 80 and cutting 64 shows."""
    picture = support.photo(200, 320, 8)
    found = image.CenterCrop(64, resize=80).decode(support.encode(picture, "PNG"), None, 0)
    small = np.array(PIL.Image.fromarray(picture).resize((128, 80), PIL.Image.Resampling.BILINEAR))
    assert psnr(found, small[8:72, 32:96]) > 35


def test_colours_become_rgb() -> None:
    """Grayscale, palette, alpha, CMYK and 16 bits all give the RGB that they mean; alpha is dropped, not composited."""
    gray = support.photo(32, 40, 1)[..., 0]
    wide = (gray.astype(np.uint16) << 8) + 77
    rgba = np.dstack([support.photo(32, 40, 2), np.zeros((32, 40), np.uint8)])
    three = np.repeat(gray[..., None], 3, axis=2)
    assert np.array_equal(image.Image().decode(support.encode(gray, "PNG"), None, 0), three)
    assert np.array_equal(image.Image().decode(support.encode(wide, "PNG"), None, 0), three)
    assert np.array_equal(image.Image().decode(support.encode(wide, "TIFF"), None, 0), three)
    assert np.array_equal(image.Image().decode(support.encode(rgba, "PNG"), None, 0), rgba[..., :3])
    assert psnr(image.Image().decode(support.encode(gray, "JPEG", quality=98), None, 0), three) > 40
    ink = np.asarray(PIL.Image.fromarray(support.photo(32, 40, 2)).convert("CMYK"))
    file = support.io.BytesIO()
    PIL.Image.fromarray(ink, "CMYK").save(file, "JPEG", quality=98)
    assert psnr(image.Image().decode(file.getvalue(), None, 0), support.photo(32, 40, 2)) > 35


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF"])
def test_too_many_pixels_are_refused_by_the_header(kind: str) -> None:
    """pixels_max holds for every format, and the message tells both numbers."""
    raw = support.encode(support.photo(50, 41, 1), kind)
    assert image.Image(pixels_max=2050).decode(raw, None, 0).shape == (50, 41, 3)
    with pytest.raises(SampleError, match=r"41 x 50 = 2050 pixels, allowed are 2049"):
        image.Image(pixels_max=2049).decode(raw, None, 0)


def test_webp_sizes_are_read_from_every_kind() -> None:
    """Lossy, lossless and extended WebP headers all give the size."""
    picture, alpha = support.photo(50, 41, 1), np.dstack([support.photo(50, 41, 1), np.full((50, 41), 7, np.uint8)])
    for raw in (
        support.encode(picture, "WEBP"),
        support.encode(picture, "WEBP", lossless=True),
        support.encode(alpha, "WEBP"),
    ):
        header = read_header(raw)
        assert header is not None and (header.height, header.width) == (50, 41)


def test_a_progressive_jpeg_of_countless_scans_is_refused() -> None:
    """A small file cannot keep a decoder busy for hours by repeating a scan; an honest progressive one is decoded."""
    honest = support.encode(support.photo(64, 64, 1), "JPEG", progressive=True)
    assert image.Image().decode(honest, None, 0).shape == (64, 64, 3)
    last = honest[honest.rindex(b"\xff\xda") : -2]
    with pytest.raises(SampleError, match="scans, allowed are 500"):
        image.Image().decode(honest[:-2] + last * 1000 + honest[-2:], None, 0)


def test_damage_to_a_png_is_named() -> None:
    """A flipped bit in the pixel data, and pixel data with a wrong Adler sum, are told apart from a good file."""
    raw = bytearray(support.encode(support.photo(50, 41, 1), "PNG"))
    raw[len(raw) // 2] ^= 4
    with pytest.raises(SampleError, match="wrong checksum of the b'IDAT' chunk"):
        image.Image().decode(bytes(raw), None, 0)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff\xd8", b"\xff\xd8\xff", b"<html>", b"\x89PNG\r\n\x1a\n", b"RIFF____WEBPVP8X", bytes(5000)]
)
def test_what_is_no_picture_is_refused(raw: bytes) -> None:
    """The message names the length and the first bytes."""
    with pytest.raises(SampleError, match="cannot be decoded"):
        image.RandomResizedCrop(8).decode(raw, np.zeros((8, 8, 3), np.uint8), 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: image.Resize(0), lambda: image.Resize((3,)), lambda: image.CenterCrop("7"),
        lambda: image.CenterCrop((4, -1)),
        lambda: image.CenterCrop(224, resize=100), lambda: image.RandomResizedCrop(4, scale=(0.5, 0.1)),
        lambda: image.RandomResizedCrop(4, ratio=(0, 1)),
    ],
)  # fmt: skip
def test_wrong_sizes_are_usage_errors(call: Any) -> None:
    """Arguments are checked when the decoder is made."""
    with pytest.raises(UsageError):
        call()


def test_without_torch_pillow_resizes_alike() -> None:
    """Where torch cannot be imported the same crops come out within 45 dB, and torch is not needed to import stoker."""
    script = (
        "import sys; sys.modules['torch'] = None\n"
        f"sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "import support_decode as s; from stoker import image\n"
        "raw = s.encode(s.photo(120, 150, 3), 'JPEG', quality=95)\n"
        "crops = (image.RandomResizedCrop(40, flip=True).decode(raw, None, n).tobytes() for n in range(8))\n"
        "sys.stdout.buffer.write(b''.join(crops))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    found = np.frombuffer(done.stdout, np.uint8).reshape(8, 40, 40, 3)
    raw = support.encode(support.photo(120, 150, 3), "JPEG", quality=95)
    expected = np.stack([image.RandomResizedCrop(40, flip=True).decode(raw, None, n) for n in range(8)])
    assert psnr(found, expected) > 45


def test_importing_the_decoders_does_not_import_torch() -> None:
    """torch is loaded at the first resize, not before."""
    script = "import sys, stoker.image, stoker.decode; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_pure_boxes() -> None:
    """Central boxes keep their aspect, short sides theirs, and orientation tables are complete."""
    assert central_box(100, 200, 1.0) == Box(0, 50, 100, 100)
    assert central_box(100, 200, 1.0, height_max=50) == Box(25, 75, 50, 50)
    assert central_box(1, 1000, 0.001).height == 1
    assert short_side(100, 300, 50) == (50, 150) and short_side(300, 100, 50) == (150, 50)
    assert set(augment.FLIPS) == set(range(1, 9))


@pytest.mark.parametrize("kind", [image.Resize, image.CenterCrop, image.RandomResizedCrop])
@pytest.mark.parametrize("flip", [0.1, 1, "maybe", None])
def test_a_flip_is_yes_or_no(kind: Any, flip: object) -> None:
    """A probability would be taken for True."""
    with pytest.raises(UsageError, match="flip is True or False"):
        kind(32, flip=flip)
