"""Rows of fixed-shape arrays, copied from mapped shards straight to where a batch wants them.

Where every field of every sample has one shape and lies at a place that its number tells, reading a sample is an
address and a copy: no bytes objects, no decoding, no Python a sample. What is not on this machine yet is left to the
ordinary reader. Pages that are not in memory are asked for all at once as soon as copying turns out slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stoker.cache import Mapped, Objects
from stoker.clock import SYSTEM
from stoker.dataset.copying import CELL_BYTES_MIN, Cells, Int64Array, copy_rows
from stoker.dataset.shard_maps import Maps, ShardMaps
from stoker.events import SILENT, Recorder
from stoker.format.arrays import fixed_shape
from stoker.index import Index

Shape = tuple[tuple[int, ...], str]
"""Shape of one sample's value, and its dtype."""


class Located(Protocol):
    """Samples whose bytes lie in mapped memory."""

    def fill(self, outs: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Copy the fields to *outs*: C-contiguous, [samples, *shape]."""
        ...


class Gatherer(Protocol):
    """Copies samples whose fields have fixed shapes."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Every field that it gives."""
        ...

    def locate(self, samples: Int64Array) -> Located | None:
        """Where *samples* int64 [n] lie; None when some are not on this machine. Thread-safe."""
        ...


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    """Bytes from the row's first."""
    codec: str


class RowGatherer:
    """Samples of a dataset of arrays (`format.arrays`): rows of one length, back to back."""

    def __init__(
        self, index: Index, objects: Objects, fields: tuple[_Field, ...], row_bytes: int, recorder: Recorder
    ) -> None:
        self.shapes = {one.name: (one.shape, str(one.dtype)) for one in fields}
        self._index = index
        self._fields = fields
        self._row_bytes = row_bytes
        self._starts = index.shard_starts
        self._shards = ShardMaps(index, objects, self._first_row, recorder)
        self._known = _Layout(Maps(0), (), 1, self._starts)

    def locate(self, samples: Int64Array) -> _Rows | None:
        shards = np.searchsorted(self._starts, samples, side="right") - 1
        maps = self._shards.hold(shards)
        if maps is None:
            return None
        rows = samples - self._starts[shards]
        if self._shards.cold:
            addresses = maps.first[shards] + rows * self._row_bytes
            self._shards.will_need(maps, shards, addresses, np.full(len(shards), self._row_bytes))
        return _Rows(self, maps, shards, rows)

    def _first_row(self, shard: int, mapped: Mapped) -> tuple[int, None] | None:
        """Where a shard's first row begins; None when its rows are not those of the first shard."""
        first, last = int(self._starts[shard]), int(self._starts[shard + 1]) - 1
        for field in self._fields:
            places = [self._index.place(sample, field.name) for sample in (first, last)]
            starts = [place.start - field.offset for place in places if place and place.codec == field.codec]
            if len(starts) < 2 or starts[0] < 0 or starts[1] - starts[0] != (last - first) * self._row_bytes:
                return None
        return mapped.address + starts[0], None

    def fill(self, maps: Maps, shards: Int64Array, rows: Int64Array, outs: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Copy *rows* of *shards*, which *maps* holds."""
        began_s = SYSTEM.monotonic()
        known = self._known
        if known.maps is not maps or known.held < len(maps.held):
            known = self._known = _Layout(maps, self._fields, self._row_bytes, self._starts)
        for field, cells, first in zip(self._fields, known.cells, known.first, strict=True):
            if cells is None:
                copy_rows(maps.first[shards] + rows * self._row_bytes + field.offset, outs[field.name])
            else:
                cells.copy(first[shards] + rows * (self._row_bytes // cells.cell), outs[field.name])
        self._shards.copied(len(rows) * self._row_bytes, began_s)


class _Layout:
    """The mapped shards as cells, field by field: computed when a shard is mapped, not for each batch."""

    def __init__(self, maps: Maps, fields: tuple[_Field, ...], row_bytes: int, starts: Int64Array) -> None:
        self.maps = maps
        self.held = len(maps.held)
        firsts = maps.first.copy()
        mapped = np.flatnonzero(firsts)
        self.cells: list[Cells | None] = []
        self.first: list[Int64Array] = []
        """By field, and by shard: the number of the cell where its first row's value begins."""
        for field in fields:
            begins = firsts[mapped] + field.offset
            origin, nbytes = int(begins.min(initial=1 << 62)), math.prod(field.shape) * field.dtype.itemsize
            cell = int(np.gcd(np.gcd.reduce(begins - origin), math.gcd(nbytes, row_bytes))) if len(mapped) else 0
            if cell < CELL_BYTES_MIN:
                self.cells.append(None)
                self.first.append(firsts)
                continue
            end = int((begins + (np.diff(starts)[mapped] - 1) * row_bytes + nbytes).max())
            first = np.zeros_like(firsts)
            first[mapped] = (begins - origin) // cell
            self.cells.append(Cells(origin, origin + -(-(end - origin) // cell) * cell, cell))
            self.first.append(first)


class _Rows:
    """Rows of mapped shards."""

    def __init__(self, owner: RowGatherer, maps: Maps, shards: Int64Array, rows: Int64Array) -> None:
        self._owner = owner
        self._maps = maps  # keeps them mapped
        self._shards = shards
        self._rows = rows

    def fill(self, outs: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._owner.fill(self._maps, self._shards, self._rows, outs)


def row_gatherer(
    index: Index, objects: Objects, names: tuple[str, ...], recorder: Recorder = SILENT
) -> RowGatherer | None:
    """A gatherer of the fields *names*; None where the dataset's samples are no rows of fixed arrays."""
    if index.format != "arrays" or not len(index):
        return None
    places = {name: index.place(0, name) for name in index.fields}
    fields, row = [], 0
    first = min(place.start for place in places.values() if place is not None)
    for name, place in places.items():
        known = None if place is None else fixed_shape(place.codec)
        if place is None or known is None:
            return None
        shape, dtype = known
        row += place.stop - place.start
        if name in names:
            fields.append(_Field(name, shape, dtype, place.start - first, place.codec))
    if len(fields) < len(names) or not row:
        return None
    return RowGatherer(index, objects, tuple(fields), row, recorder)
