"""Whether saved pieces cover every element that training wants to load: pure arithmetic on boxes.

A box is where a piece lies in its tensor: offsets and sizes, one a dimension. torch's loader reads what it finds and
leaves the rest of a tensor untouched, without a word (seen with rank-local metadata: half a tensor kept its random
values); so the elements that no piece covers are computed before anything is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """The elements [offset, offset + size) along each dimension; a scalar has no dimensions and one element."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements it holds."""
        return math.prod(self.sizes)


def minus(box: Box, other: Box) -> list[Box]:
    """The parts of *box* outside *other*: at most two a dimension, apart from each other."""
    low = [max(a, b) for a, b in zip(box.offsets, other.offsets, strict=True)]
    high = [min(a + n, b + m) for a, n, b, m in zip(box.offsets, box.sizes, other.offsets, other.sizes, strict=True)]
    if any(start >= stop for start, stop in zip(low, high, strict=True)):
        return [box]
    parts = []
    offsets, sizes = list(box.offsets), list(box.sizes)
    for axis, (start, stop) in enumerate(zip(low, high, strict=True)):
        end = offsets[axis] + sizes[axis]
        for first, last in ((offsets[axis], start), (stop, end)):
            if first < last:
                parts.append(
                    Box(
                        (*offsets[:axis], first, *offsets[axis + 1 :]),
                        (*sizes[:axis], last - first, *sizes[axis + 1 :]),
                    )
                )
        offsets[axis], sizes[axis] = start, stop - start
    return parts


def uncovered(wanted: Box, saved: Iterable[Box]) -> int:
    """How many elements of *wanted* no saved box holds; 0 means that loading it is safe."""
    left = [wanted] if wanted.elements else []
    for piece in saved:
        if not left:
            return 0
        left = [rest for part in left for rest in minus(part, piece)]
    return sum(part.elements for part in left)
