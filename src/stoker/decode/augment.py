"""Which part of an image is taken: pure arithmetic on its size and a 64-bit draw. Touches no pixels.

A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for less time. That is done when the crop is at least so many times
the target, and then the crop's edges are moved to multiples of the denominator: a crop that is not aligned to it loses
8 dB. So alignment belongs to the definition of the crop, and holds for every format alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MASK = 2**64 - 1
DENOMINATORS = (8, 4, 2)
TRIES = 10


@dataclass(frozen=True, slots=True)
class Box:
    """Pixels [top, top + height) × [left, left + width) of an image."""

    top: int
    left: int
    height: int
    width: int


class Draws:
    """A stream of random numbers from a 64-bit seed: SplitMix64 (Steele, Lea, Flood 2014), the same everywhere."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def next(self) -> int:
        """64 random bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        value = self._state
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return value ^ (value >> 31)

    def uniform(self, low: float, high: float) -> float:
        """A float of [low, high)."""
        return low + (high - low) * ((self.next() >> 11) * 2.0**-53)

    def below(self, bound: int) -> int:
        """An integer of [0, bound); the bias of the multiplication is below bound / 2^64."""
        return self.next() * bound >> 64


def random_box(height: int, width: int, draws: Draws, *, scale: tuple[float, float], ratio: tuple[float, float]) -> Box:
    """The crop of torchvision's RandomResizedCrop: a share *scale* of the area, an aspect (width / height) of *ratio*.

    Ten tries; then the largest central box whose aspect lies in *ratio*.
    """
    area, low, high = height * width, math.log(ratio[0]), math.log(ratio[1])
    for _ in range(TRIES):
        wanted = area * draws.uniform(*scale)
        aspect = math.exp(draws.uniform(low, high))
        box_width, box_height = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = draws.below(height - box_height + 1), draws.below(width - box_width + 1)
            return Box(top, left, box_height, box_width)
    return central_box(height, width, min(max(width / height, ratio[0]), ratio[1]))


def central_box(height: int, width: int, aspect: float, *, height_max: float = math.inf) -> Box:
    """The largest central box of *aspect* (width / height) that fits, at most *height_max* high, at least a pixel."""
    box_height = min(height, width / aspect, height_max)
    rows, columns = max(1, round(box_height)), min(width, max(1, round(box_height * aspect)))
    return Box((height - rows) // 2, (width - columns) // 2, rows, columns)


def short_side(height: int, width: int, size: int) -> tuple[int, int]:
    """Height and width once the shorter side is *size*, the aspect kept."""
    if height <= width:
        return size, max(1, round(width * size / height))
    return max(1, round(height * size / width)), size


def aligned(box: Box, target: tuple[int, int]) -> tuple[Box, int]:
    """*box* moved to multiples of the denominator at which it may be decoded for a *target* (height, width)."""
    for denominator in DENOMINATORS:
        if box.height >= denominator * target[0] and box.width >= denominator * target[1]:
            top, left, height, width = (
                side - side % denominator for side in (box.top, box.left, box.height, box.width)
            )
            return Box(top, left, height, width), denominator
    return box, 1


FLIPS = {1: (0, 0), 2: (0, 1), 3: (1, 1), 4: (1, 0), 5: (0, 0), 6: (0, 1), 7: (1, 1), 8: (1, 0)}
"""EXIF orientation → (upside down, mirrored), applied after the transposition that 5 … 8 begin with."""


def stored_box(box: Box, orientation: int, height: int, width: int) -> Box:
    """Where a box of the upright image (*height* × *width*) lies in the image as it is stored."""
    vertical, horizontal = FLIPS[orientation]
    top = height - box.top - box.height if vertical else box.top
    left = width - box.left - box.width if horizontal else box.left
    return Box(left, top, box.width, box.height) if orientation >= 5 else Box(top, left, box.height, box.width)
