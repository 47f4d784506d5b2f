"""The image decoders: what part of the picture is taken, what size it gets. Output: RGB uint8 [height, width, 3].

They take encoded files, and pixels that a format keeps decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stoker.decode.augment import Box, Draws, central_box, random_box, short_side
from stoker.decode.pixels import PIXELS_MAX, Picture, Pixels, cut, rgb_of
from stoker.decode.resize import resize
from stoker.errors import UsageError

Size = tuple[int, int]
"""Height, width."""
UINT8: np.dtype[Any] = np.dtype(np.uint8)


def _pair(size: int | Size) -> Size:
    """(height, width) of one number or two."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or any(not isinstance(side, int) or side < 1 for side in pair):
        raise UsageError(f"a size is a number of pixels or (height, width), found {size!r}")
    return pair[0], pair[1]


def _into(pixels: Pixels, target: Size, out: Pixels | None, flip: bool) -> Pixels | None:
    """Resize to *target* into *out*, or into a new array that is returned."""
    if out is not None:
        resize(pixels, out, flip=flip)
        return None
    fresh = np.empty((*target, 3), np.uint8)
    resize(pixels, fresh, flip=flip)
    return fresh


def _check_flip(flip: object) -> None:
    if not isinstance(flip, bool):
        raise UsageError(f"flip is True or False, and mirrors one picture in two; found {flip!r}")


@dataclass(frozen=True)
class Image:
    """The whole picture in its own size."""

    pixels_max: int = PIXELS_MAX
    """Larger pictures are refused by their header, before anything is decoded."""
    shape: tuple[int, ...] | None = field(default=None, init=False)
    dtype: np.dtype[Any] | None = field(default=UINT8, init=False)

    def decode(self, raw: Picture, out: Pixels | None, draw: int) -> Pixels:
        """RGB uint8 [height, width, 3]: a new array, unless *raw* is one that needs no change."""
        if isinstance(raw, np.ndarray):
            return rgb_of(raw)
        pixels = cut(raw, lambda height, width: (Box(0, 0, height, width), None), pixels_max=self.pixels_max)[0]
        return pixels.copy()


@dataclass(frozen=True)
class Resize:
    """The whole picture resized: to (height, width), or with one number until its shorter side is that long."""

    size: int | Size
    flip: bool = False
    """Mirror left and right in every second epoch on average."""
    pixels_max: int = PIXELS_MAX
    shape: tuple[int, ...] | None = field(init=False)
    dtype: np.dtype[Any] | None = field(default=UINT8, init=False)

    def __post_init__(self) -> None:
        _check_flip(self.flip)
        pair = _pair(self.size)
        object.__setattr__(self, "shape", None if isinstance(self.size, int) else (*pair, 3))

    def decode(self, raw: Picture, out: Pixels | None, draw: int) -> Pixels | None:
        """RGB uint8 [height, width, 3]."""

        def choose(height: int, width: int) -> tuple[Box, Size]:
            size = self.size
            return Box(0, 0, height, width), short_side(height, width, size) if isinstance(size, int) else _pair(size)

        pixels, target = cut(raw, choose, pixels_max=self.pixels_max)
        return _into(pixels, target or _pair(self.size), out, self.flip and bool(Draws(draw).below(2)))


@dataclass(frozen=True)
class CenterCrop:
    """The middle of the picture: *size* pixels of it, or *size* of what it would be with its shorter side at *resize*.

    One number stands for a square. A picture that is too small is enlarged until it covers *size*.
    """

    size: int | Size
    resize: int | None = None
    flip: bool = False
    pixels_max: int = PIXELS_MAX
    shape: tuple[int, ...] | None = field(init=False)
    dtype: np.dtype[Any] | None = field(default=UINT8, init=False)

    def __post_init__(self) -> None:
        _check_flip(self.flip)
        pair = _pair(self.size)
        object.__setattr__(self, "shape", (*pair, 3))
        if self.resize is not None and self.resize < min(pair):
            raise UsageError(f"resize must be at least the shorter side of {pair}, found {self.resize}")

    def decode(self, raw: Picture, out: Pixels | None, draw: int) -> Pixels | None:
        """RGB uint8 [size, size, 3]."""
        target = _pair(self.size)

        def choose(height: int, width: int) -> tuple[Box, Size]:
            pixel = 1.0 if self.resize is None else min(height, width) / self.resize
            return central_box(height, width, target[1] / target[0], height_max=target[0] * pixel), target

        pixels, _ = cut(raw, choose, pixels_max=self.pixels_max)
        return _into(pixels, target, out, self.flip and bool(Draws(draw).below(2)))


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the picture in one size, as torchvision's of that name: the same draw gives the same part."""

    size: int | Size
    scale: tuple[float, float] = (0.08, 1.0)
    """Share of the picture's area that the part has, from … to."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width / height of the part, from … to."""
    flip: bool = False
    pixels_max: int = PIXELS_MAX
    shape: tuple[int, ...] | None = field(init=False)
    dtype: np.dtype[Any] | None = field(default=UINT8, init=False)

    def __post_init__(self) -> None:
        _check_flip(self.flip)
        object.__setattr__(self, "shape", (*_pair(self.size), 3))
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high:
                raise UsageError(f"{name} runs from a positive number to one not smaller, found {(low, high)}")

    def decode(self, raw: Picture, out: Pixels | None, draw: int) -> Pixels | None:
        """RGB uint8 [size, size, 3]."""
        draws, target = Draws(draw), _pair(self.size)
        part, flip = draws.next(), self.flip and bool(draws.below(2))

        def choose(height: int, width: int) -> tuple[Box, Size]:
            return random_box(height, width, Draws(part), scale=self.scale, ratio=self.ratio), target

        pixels, _ = cut(raw, choose, pixels_max=self.pixels_max)
        return _into(pixels, target, out, flip)
