"""Decoding the part of a JPEG that a crop needs: the pixels that the whole has there, and nothing that is cut off."""

from __future__ import annotations

import io
import os
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stoker.decode import CenterCrop, RandomResizedCrop, region
from stoker.decode import pixels as pixels_room
from stoker.decode.augment import Box
from stoker.errors import SampleError

needs_module = pytest.mark.skipif(
    region.decode_region is None and "CI" not in os.environ, reason="built without a compiler or libjpeg's headers"
)


def photo(height: int, width: int, *, seed: int = 1, mode: str = "RGB", **options: object) -> bytes:
    """A JPEG with detail everywhere."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 255, (height // 7 + 2, width // 7 + 2, 3)).astype(np.uint8)
    large = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.clip(np.asarray(large).astype(int) + random.integers(-20, 20, (height, width, 3)), 0, 255)
    out = io.BytesIO()
    Image.fromarray(noisy.astype(np.uint8)).convert(mode).save(out, "JPEG", **{"quality": 90, **options})
    return out.getvalue()


def scratch(count: int) -> np.ndarray:
    """Memory of its own, full of something."""
    return np.full(count, 77, np.uint8)


def whole(raw: bytes, size: tuple[int, int], denominator: int) -> np.ndarray:
    """The picture by the way that decodes all of it."""
    header = pixels_room.read_header(raw)
    assert header is not None
    found = pixels_room._simplejpeg(raw, header, denominator)
    assert found is not None and found.shape[:2] == tuple(-(-side // denominator) for side in size)
    return found.copy()


def cells(box: Box, denominator: int) -> tuple[slice, slice]:
    """Where *box* lies in a picture decoded at 1/denominator."""
    top, left, tall, wide = (side // denominator for side in (box.top, box.left, box.height, box.width))
    return slice(top, top + tall), slice(left, left + wide)


@needs_module
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("denominator", [1, 2, 4, 8])
@given(data=st.data())
def test_a_part_is_what_the_whole_holds_there(
    subsampling: str, progressive: bool, denominator: int, data: st.DataObject
) -> None:
    """Every value is equal, at every denominator and subsampling, wherever the part lies."""
    height, width = data.draw(st.integers(40, 200)), data.draw(st.integers(40, 200))
    quality = data.draw(st.sampled_from([30, 90, 96]))
    raw = photo(height, width, seed=height, quality=quality, subsampling=subsampling, progressive=progressive)
    cells = [side // denominator for side in (height, width)]
    top, left = (data.draw(st.integers(0, side - 1)) for side in cells)
    tall, wide = (data.draw(st.integers(1, side - at)) for side, at in zip(cells, (top, left), strict=True))
    box = Box(*(denominator * one for one in (top, left, tall, wide)))
    found = region.jpeg_part(raw, box, (height, width), denominator, scratch)
    if found is not None:  # a part that is nearly all is decoded whole
        assert np.array_equal(found, whole(raw, (height, width), denominator)[top : top + tall, left : left + wide])
    else:
        assert box.height * box.width > region.SHARE_MAX * height * width


@needs_module
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_decoders_give_the_same_without_it(mode: str, orientation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turned and grey pictures too: a crop is the same pixels whether its part was decoded or all of the picture."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = photo(300, 420, mode=mode, exif=exif.tobytes())
    decoders = [RandomResizedCrop(64, flip=True), CenterCrop(96)]
    draws = range(12)
    part = [decoder.decode(raw, None, draw) for decoder in decoders for draw in draws]
    monkeypatch.setattr(region, "decode_region", None)
    for one, (decoder, draw) in zip(part, ((decoder, draw) for decoder in decoders for draw in draws), strict=True):
        assert np.array_equal(one, decoder.decode(raw, None, draw))


@needs_module
def test_what_is_cut_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture without its end is a bad sample, though the crop lies in what is there."""
    raw = photo(300, 300)
    assert region.jpeg_part(raw, Box(0, 0, 40, 40), (300, 300), 1, scratch) is not None
    for cut in (raw[: len(raw) * 2 // 3], raw[:-2], raw[: len(raw) // 3] + raw[-2:]):
        assert region.jpeg_part(cut, Box(200, 0, 80, 80), (300, 300), 1, scratch) is None
    with pytest.raises(SampleError):
        RandomResizedCrop(32).decode(raw[: len(raw) * 2 // 3], None, 3)


def scans_of(raw: bytes) -> list[tuple[int, int]]:
    """Where each scan's coded data lie in a JPEG without restart markers."""
    found = []
    for head in re.finditer(rb"\xff\xda", raw):
        begin = head.end() + int.from_bytes(raw[head.end() : head.end() + 2], "big")
        end = re.compile(rb"\xff[^\x00]").search(raw, begin)
        assert end is not None
        found.append((begin, end.start()))
    return found


@needs_module
@pytest.mark.parametrize("options", [{"subsampling": "4:2:0"}, {"subsampling": "4:4:4"}, {"mode": "L"}])
@pytest.mark.parametrize("denominator", [1, 2, 4, 8])
def test_no_scan_is_read_below_the_part(options: dict[str, Any], denominator: int) -> None:
    """The end of every scan of a progressive picture can be noise: a part above it stays what it was."""
    size = (1200, 400)
    raw = photo(*size, progressive=True, **options)
    box = Box(200, 40, 160, 240)
    clean = region.jpeg_part(raw, box, size, denominator, scratch)
    noisy, random = bytearray(raw), np.random.default_rng(4)
    for begin, end in scans_of(raw):
        half = (begin + end) // 2
        noisy[half:end] = random.integers(0, 255, end - half).astype(np.uint8).tobytes()  # none is 255: no marker
    found = region.jpeg_part(bytes(noisy), box, size, denominator, scratch)
    assert clean is not None and found is not None and np.array_equal(found, clean)
    assert np.array_equal(clean, whole(raw, size, denominator)[cells(box, denominator)])
    assert region.jpeg_part(bytes(noisy), Box(1000, 40, 160, 240), size, denominator, scratch) is None


@needs_module
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_part_above_a_flat_end(mode: str) -> None:
    """Below the part a code of a few bits stands for all of the picture: the scan is at its end where it is left."""
    size, box = (900, 200), Box(100, 40, 100, 120)
    with Image.open(io.BytesIO(photo(*size))) as picture:
        pixels = np.array(picture)
    for flat in range(260, 420, 8):
        pixels[flat:] = 120
        out = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(out, "JPEG", quality=70, progressive=True)
        found = region.jpeg_part(out.getvalue(), box, size, 1, scratch)
        assert found is not None and np.array_equal(found, whole(out.getvalue(), size, 1)[cells(box, 1)])


@needs_module
def test_a_progressive_picture_without_all_its_scans_is_not_taken() -> None:
    """Cut off below the part in one of its scans, with an end marker behind: the part would lack what came later."""
    size, box = (1200, 400), Box(200, 40, 160, 240)
    raw = photo(*size, progressive=True)
    scans = scans_of(raw)
    assert len(scans) > 5
    for number, (begin, end) in enumerate(scans):
        cut = raw[: begin + (end - begin) * 9 // 10] + raw[-2:]
        found = region.jpeg_part(cut, box, size, 1, scratch)
        assert (found is None) == (number < len(scans) - 1)  # the last has nothing behind it that the part needs
    without = raw[: raw.rindex(b"\xff\xda")] + raw[-2:]
    assert region.jpeg_part(without, box, size, 1, scratch) is None


@needs_module
@pytest.mark.parametrize("damage", [b"", b"\x00\x00", b"\xff\xff"])
def test_a_scan_that_is_read_to_its_end_must_end_there(damage: bytes) -> None:
    """Where the part needs the last row: too few bytes are refused, and too many unless the whole lets them pass."""
    size, box = (300, 200), Box(200, 40, 100, 120)
    raw = photo(*size, progressive=True)
    for _, end in scans_of(raw):
        damaged = raw[: end - 6 * (not damage)] + damage + raw[end:]
        found = region.jpeg_part(damaged, box, size, 1, scratch)
        assert found is not None or damage != b"\xff\xff"  # which means nothing before a marker
        assert found is None or (damage and np.array_equal(found, whole(damaged, size, 1)[cells(box, 1)]))


@needs_module
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("rows", [1, 3])
def test_restart_markers_are_no_end_of_a_scan(mode: str, rows: int) -> None:
    """A progressive picture with restart markers gives the part that the whole holds."""
    size, box = (700, 300), Box(100, 40, 160, 200)
    raw = photo(*size, mode=mode, progressive=True, restart_marker_rows=rows)
    assert raw.count(b"\xff\xd1") > 5
    found = region.jpeg_part(raw, box, size, 1, scratch)
    assert found is not None and np.array_equal(found, whole(raw, size, 1)[cells(box, 1)])


@needs_module
@pytest.mark.parametrize("progressive", [False, True])
@given(data=st.data())
def test_hostile_bytes_crash_nothing(progressive: bool, data: st.DataObject) -> None:
    """Whatever bytes stand where a JPEG should: a part or None, within the buffer."""
    raw = bytearray(photo(64, 80, progressive=progressive))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(2, len(raw) - 3))] = data.draw(st.integers(0, 255))
    found = region.jpeg_part(bytes(raw), Box(10, 10, 20, 20), (64, 80), 1, scratch)
    assert found is None or found.shape == (20, 20, 3)


@needs_module
def test_an_area_outside_and_a_small_buffer() -> None:
    """The module believes nobody: what lies outside the picture is refused, what does not fit is an error."""
    assert region.decode_region is not None
    raw, out = photo(50, 60), bytearray(50 * 60 * 3)
    for area in ((0, 0, 61, 50), (1, 0, 60, 50), (0, 1, 60, 50), (0, 0, 0, 5), (2**32 - 1, 0, 2, 2)):
        assert region.decode_region(raw, 1, area, out) is None
    with pytest.raises(ValueError, match="too small"):
        region.decode_region(raw, 1, (0, 0, 60, 50), bytearray(10))
    with pytest.raises(TypeError, match="read-write"):
        region.decode_region(raw, 1, (0, 0, 60, 50), bytes(50 * 60 * 3))
    assert region.decode_region(raw, 1, (0, 0, 60, 50), out) == (0, 60)
