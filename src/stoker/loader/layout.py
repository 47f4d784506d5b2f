"""Where each field of a batch lies in a slot: pure arithmetic.

A slot is one batch's memory: the sample numbers, the mask, then one C-contiguous array [batch, *shape] a field, each
at a multiple of 64 bytes (a cache line, and what vector loads like). The slab is a page of bookkeeping and then the
slots, each starting on a page, so that one can be page-locked or advised alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import UsageError

ALIGN_BYTES = 64
PAGE_BYTES = 4096
BOARD_THREADS_MAX = 256
"""Threads whose current sample the bookkeeping page can name (8 bytes each, after a 64-byte head)."""


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """One array inside a slot."""

    name: str
    shape: tuple[int, ...]
    """Shape with the batch dimension first."""
    dtype: np.dtype[Any]
    offset: int
    """Bytes from the start of the slot."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """How a batch's arrays lie in a slot."""

    arrays: tuple[ArrayPlace, ...]
    nbytes: int
    """Bytes of one slot, a multiple of the page."""

    @property
    def rows(self) -> int:
        """Samples that a slot holds."""
        return self.arrays[0].shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of one of a slot's rows, rounded up."""
        return -(-self.nbytes // self.rows)

    def slot_offset(self, slot: int) -> int:
        """Bytes from the start of the slab; the first page holds the board."""
        return PAGE_BYTES + slot * self.nbytes

    def slab_bytes(self, slots: int) -> int:
        """Bytes of a slab with that many slots."""
        return PAGE_BYTES + slots * self.nbytes

    def views(self, buffer: object, base: int = 0) -> dict[str, np.ndarray]:
        """The slot's arrays over *buffer*, whose byte *base* is the slot's first."""
        return {
            place.name: np.ndarray(place.shape, place.dtype, buffer, base + place.offset)  # type: ignore[arg-type]
            for place in self.arrays  # the stub wants a bytes-like type, any exporter of a buffer will do
        }


def lay_out(batch_size: int, fields: Mapping[str, tuple[tuple[int, ...], str]], *, mask: bool) -> SlotLayout:
    """The layout of a batch of *batch_size* samples whose *fields* have (shape without the batch dimension, dtype)."""
    wanted: dict[str, tuple[tuple[int, ...], str]] = {"__index__": ((), "int64")}
    if mask:
        wanted["__mask__"] = ((), "bool")
    wanted.update(fields)
    arrays, offset = [], 0
    for name, (shape, dtype) in wanted.items():
        if np.dtype(dtype).hasobject:
            raise UsageError(f"field {name!r}: arrays of Python objects cannot lie in shared memory (dtype {dtype})")
        kind, whole = np.dtype(dtype), (batch_size, *shape)
        place = ArrayPlace(name, whole, kind, offset, kind.itemsize * math.prod(whole))
        arrays.append(place)
        offset += -(-place.nbytes // ALIGN_BYTES) * ALIGN_BYTES
    return SlotLayout(tuple(arrays), max(PAGE_BYTES, -(-offset // PAGE_BYTES) * PAGE_BYTES))
