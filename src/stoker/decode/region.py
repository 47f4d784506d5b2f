"""The part of a JPEG that a crop needs, and no more, where the compiled module is there: a quarter less time a photo.

The same pixels as of the whole picture: colour is smoothed over block borders, so a margin is decoded and cut off
again (without it some hundredths of a per cent of the values differ). What was cut off at its end is left to the way
that decodes all of it and says so: damage below the crop would not be seen otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stoker.decode.augment import Box

try:
    from stoker.decode._region import decode_region
except ImportError:  # built without a compiler or libjpeg
    decode_region = None  # type: ignore[assignment]  # its absence is asked for where it is used

Pixels = npt.NDArray[np.uint8]

MARGIN = 8
"""Pixels on every side: twice what was found necessary with photos of all subsamplings."""
SHARE_MAX = 0.85
"""A larger part of the picture is decoded whole: there is nothing left to save."""
END = b"\xff\xd9"


def jpeg_part(
    raw: bytes | memoryview, box: Box, size: tuple[int, int], denominator: int, scratch: Callable[[int], Pixels]
) -> Pixels | None:
    """The pixels RGB uint8 [height, width, 3] of *box* at 1/denominator of a picture of *size* (height, width).

    They lie in what *scratch* gives for a number of bytes. None where the whole picture should be decoded instead.
    """
    if decode_region is None or bytes(raw[-2:]) != END or box.height * box.width > SHARE_MAX * size[0] * size[1]:
        return None
    rows, columns = -(-size[0] // denominator), -(-size[1] // denominator)
    top, left = box.top // denominator, box.left // denominator
    height, width = box.height // denominator, box.width // denominator
    first, begin = max(0, top - MARGIN), max(0, left - MARGIN)
    count, wide = min(rows, top + height + MARGIN) - first, min(columns, left + width + MARGIN) - begin
    out = scratch(count * columns * 3)
    found = decode_region(raw, denominator, (begin, first, wide, count), out.data)
    if found is None:
        return None
    begin, wide = found
    pixels = out[: count * wide * 3].reshape(count, wide, 3)
    return pixels[top - first : top - first + height, left - begin : left - begin + width]
