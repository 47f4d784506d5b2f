"""Bytes of an image → RGB pixels of the part that is wanted, upright. All that can be wrong with them is a SampleError.

Of a JPEG the part that is wanted is decoded (region.py), or all of it by simplejpeg (libjpeg-turbo): strictly, without
the GIL, into a buffer that each thread keeps. What that refuses, and every other format, goes to Pillow, whose verdict
counts. Pixels that a format keeps as an array (arrays, HDF5, MDS `pil`) are cut like those of a file. Alpha is dropped,
not composited; 16 bits become 8 by `value >> 8`; of an animation the first frame is taken.
"""

from __future__ import annotations

import contextlib
import io
import logging
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageCms
import simplejpeg

from stoker.decode.augment import FLIPS, Box, aligned, stored_box
from stoker.decode.header import PNG_MAGIC, Header, check_png_sums, exif_orientation, read_header
from stoker.decode.region import jpeg_part
from stoker.errors import SampleError, reason_of

Pixels = npt.NDArray[np.uint8]
Picture = bytes | memoryview | npt.NDArray[Any]
"""An encoded image, or its pixels: uint8 or uint16 [height, width] or [height, width, 1, 3 or 4 channels]."""
Choice = Callable[[int, int], tuple[Box, tuple[int, int] | None]]
"""(height, width) of the upright image → the box wanted of it, and the target that it will be resized to, if any."""

PIXELS_MAX = 178_956_970
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "JPEG2000", "AVIF", "TGA")
"""What Pillow may open. Others of its readers start programs (EPS) or are no images of a dataset."""
SCRATCH_BYTES_MAX = 64 << 20  # a thread keeps no larger buffer than this

_HOSTILE = (
    OSError, ValueError, TypeError, SyntaxError, LookupError, EOFError, ArithmeticError, AttributeError, AssertionError,
    RuntimeError, MemoryError, struct.error, zlib.error, PIL.Image.DecompressionBombError, PIL.ImageCms.PyCMSError,
    Warning,
)  # fmt: skip
"""What Pillow raises on hostile bytes. `Warning` is there for those who turn warnings into errors."""

_thread = threading.local()


def quiet_pillow() -> None:
    """Keep Pillow's words about odd files off stderr, in a process of stoker's own: faults come as SampleError."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)


def cut(raw: Picture, choose: Choice, *, pixels_max: int = PIXELS_MAX) -> tuple[Pixels, tuple[int, int] | None]:
    """The chosen part of an image, RGB uint8 [height, width, 3], upright, and the target that *choose* named.

    The array may lie in this thread's scratch buffer: use it before the next call, or copy it.
    """
    if isinstance(raw, np.ndarray):
        pixels = rgb_of(raw)
        _check_size(pixels.shape[0], pixels.shape[1], pixels_max)
        box, _, target = _place(Header(pixels.shape[0], pixels.shape[1], 1), choose)
        return _upright(pixels, box, 1, 1), target
    header = read_header(raw)
    if header is not None:
        _check_size(header.height, header.width, pixels_max)
        if header.fast_jpeg:
            box, denominator, target = _place(header, choose)
            size = (header.height, header.width)
            part = jpeg_part(raw, box, size, denominator, _scratch) if target is not None else None
            if part is not None:
                return _turned(part, header.orientation), target
            scaled = _simplejpeg(raw, header, denominator)
            if scaled is not None:
                return _upright(scaled, box, denominator, header.orientation), target
    whole, orientation = _pillow(raw, pixels_max)
    box, _, target = _place(Header(whole.shape[0], whole.shape[1], orientation), choose)
    return _upright(whole, box, 1, orientation), target


def rgb_of(pixels: npt.NDArray[Any]) -> Pixels:
    """Pixels of any usual kind as RGB uint8 [height, width, 3]; themselves where they are that already."""
    if pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3:
        return pixels
    whole = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.dtype not in (np.uint8, np.uint16) or whole.ndim != 3 or whole.shape[2] not in (1, 3, 4):
        raise SampleError(
            f"image: expected pixels uint8 [height, width, 3], found {pixels.dtype} {pixels.shape}",
            "turn it with dataset.map, as pixels.transpose(1, 2, 0) where the channels come first",
        )
    if whole.dtype == np.uint16:
        whole = (whole >> 8).astype(np.uint8)
    return np.repeat(whole, 3, axis=2) if whole.shape[2] == 1 else whole[..., :3]


def _check_size(height: int, width: int, pixels_max: int) -> None:
    if height * width > pixels_max:
        raise SampleError(
            f"image: the header says {width} x {height} = {height * width} pixels, allowed are {pixels_max}",
            "raise pixels_max of the decoder if such images are expected",
        )
    if height < 1 or width < 1:
        raise SampleError(f"image: the header says {width} x {height} pixels")


def _place(header: Header, choose: Choice) -> tuple[Box, int, tuple[int, int] | None]:
    """The box in the image as stored, aligned to the denominator that it may be decoded at."""
    turned = header.orientation >= 5
    height, width = (header.width, header.height) if turned else (header.height, header.width)
    box, target = choose(height, width)
    box = stored_box(box, header.orientation, height, width)
    if target is None:
        return box, 1, None
    box, denominator = aligned(box, target[::-1] if turned else target)
    return box, denominator, target


def _scratch(count_bytes: int) -> Pixels:
    """This thread's buffer of at least *count_bytes*."""
    buffer: Pixels | None = getattr(_thread, "buffer", None)
    if buffer is None or buffer.nbytes < count_bytes:
        buffer = np.empty(count_bytes, np.uint8)
        if count_bytes <= SCRATCH_BYTES_MAX:
            _thread.buffer = buffer
    return buffer


def _simplejpeg(raw: bytes | memoryview, header: Header, denominator: int) -> Pixels | None:
    """The whole JPEG at exactly 1/denominator, or None where simplejpeg refuses it."""
    height, width = -(-header.height // denominator), -(-header.width // denominator)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            raw, "RGB", min_height=height, min_width=width, min_factor=denominator, buffer=_scratch(height * width * 3)
        )
    except ValueError:
        return None
    return pixels if pixels.shape == (height, width, 3) else None


def size_of(raw: bytes | memoryview, *, pixels_max: int = PIXELS_MAX) -> tuple[int, int]:
    """Height and width of the upright image, by its header alone."""
    header = read_header(raw)
    if header is not None:
        _check_size(header.height, header.width, pixels_max)
    if header is None or not header.fast_jpeg:
        with _opened(raw, pixels_max) as image:
            header = Header(image.height, image.width, _orientation(image))
    return (header.width, header.height) if header.orientation >= 5 else (header.height, header.width)


def _orientation(image: PIL.Image.Image) -> int:
    """EXIF orientation of an opened image; 1 for TIFF, which Pillow turns itself."""
    exif = image.info.get("exif")
    return exif_orientation(exif) if isinstance(exif, bytes) and image.format != "TIFF" else 1


@contextlib.contextmanager
def _opened(raw: bytes | memoryview, pixels_max: int) -> Iterator[PIL.Image.Image]:
    """The image opened by Pillow, its size checked; whatever Pillow raises in the block is a SampleError."""
    try:
        with PIL.Image.open(io.BytesIO(raw), formats=FORMATS) as image:
            _check_size(image.height, image.width, pixels_max)
            yield image
    except SampleError:
        raise
    except _HOSTILE as error:
        found = "no bytes" if len(raw) == 0 else f"{len(raw)} bytes that begin with {bytes(raw[:12])!r}"
        raise SampleError(f"image: cannot be decoded ({reason_of(error)}); found {found}") from None


def _pillow(raw: bytes | memoryview, pixels_max: int) -> tuple[Pixels, int]:
    """RGB pixels of any image as stored, and its orientation; strict: what is cut off or damaged is refused."""
    if bytes(raw[:8]) == PNG_MAGIC:
        check_png_sums(raw)
    with _opened(raw, pixels_max) as image:
        image.load()
        orientation = _orientation(image)
        if image.mode.startswith("I;16"):
            return np.repeat((np.array(image) >> 8).astype(np.uint8)[..., None], 3, axis=2), orientation
        return np.array(image.convert("RGB")), orientation


def _upright(pixels: Pixels, box: Box, denominator: int, orientation: int) -> Pixels:
    """The box of *pixels* (which are stored at 1/denominator), turned as EXIF says."""
    top, left = box.top // denominator, box.left // denominator
    height, width = box.height // denominator, box.width // denominator
    return _turned(pixels[top : top + height, left : left + width], orientation)


def _turned(part: Pixels, orientation: int) -> Pixels:
    """What was cut out of a stored picture, upright."""
    if orientation == 1:
        return part
    if orientation >= 5:
        part = part.transpose(1, 0, 2)
    vertical, horizontal = FLIPS[orientation]
    return np.ascontiguousarray(part[:: -1 if vertical else 1, :: -1 if horizontal else 1])
