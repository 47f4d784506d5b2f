"""Rows of fixed-shape arrays, copied from mapped shards straight to where a batch wants them.

Where every field of every sample has one shape and lies at a place that its number tells, reading a sample is an
address and a copy: no bytes objects, no decoding, no Python a sample. What is not on this machine yet is left to the
ordinary reader. Pages that are not in memory are asked for all at once as soon as copying turns out slow.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stoker.cache import Mapped, Objects
from stoker.clock import SYSTEM
from stoker.dataset.copying import Int64Array, copy_rows
from stoker.errors import ShardError
from stoker.events import SILENT, Recorder
from stoker.format.arrays import fixed_shape
from stoker.index import Index

CHECK_EVERY_S = 0.5
"""Seconds between looks at whether the mapped files are still what they were."""
COLD_BYTES_PER_S = 1e9
"""Copying slower than this means waiting for a disk: memory gives several times as much."""
COLD_S_MIN = 200e-6
"""Shorter copies say nothing about the disk."""
FILES_SPARED = 512
"""Open files left to all others; a mapping holds two."""
MAPPED_MAX = 16_384

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


class _Maps:
    """The shards mapped so far. Whoever copies holds on to this, so that letting go of it never unmaps under them."""

    def __init__(self, shards: int) -> None:
        self.first = np.zeros(shards, np.int64)
        """Address of each shard's first row; 0 where it is not mapped."""
        self.held: dict[int, Mapped] = {}


def mapped_max() -> int:
    """How many shards may be mapped at once, by the limit of open files."""
    return max(16, min(MAPPED_MAX, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_SPARED) // 2))


class RowGatherer:
    """Samples of a dataset of arrays (`format.arrays`): rows of one length, back to back."""

    def __init__(
        self, index: Index, objects: Objects, fields: tuple[_Field, ...], row_bytes: int, recorder: Recorder
    ) -> None:
        self.shapes = {one.name: (one.shape, str(one.dtype)) for one in fields}
        self._index = index
        self._objects = objects
        self._fields = fields
        self._row_bytes = row_bytes
        self._recorder = recorder
        self._starts = index.shard_starts
        self._maps = _Maps(len(self._starts) - 1)
        self._lock = threading.Lock()
        self._checked_s = SYSTEM.monotonic()
        self.cold = False
        """Whether the last copying waited for a disk."""

    def locate(self, samples: Int64Array) -> _Rows | None:
        maps = self._maps
        shards = np.searchsorted(self._starts, samples, side="right") - 1
        first = maps.first[shards]
        if not first.all():
            for shard in np.unique(shards[first == 0]).tolist():
                if not self._map(maps, shard):
                    return None
            first = maps.first[shards]
        if SYSTEM.monotonic() > self._checked_s + CHECK_EVERY_S:
            self._check(maps)
        addresses = first + (samples - self._starts[shards]) * self._row_bytes
        if self.cold:
            for shard, address in zip(shards.tolist(), addresses.tolist(), strict=True):
                maps.held[shard].will_need(address, self._row_bytes)
        return _Rows(self, maps, addresses)

    def _map(self, maps: _Maps, shard: int) -> bool:
        """Map a shard, if it lies on this machine."""
        with self._lock:
            if maps.first[shard]:
                return True
            if len(maps.held) >= mapped_max():
                self._maps = _Maps(len(maps.first))  # the next samples begin anew
            found = self._objects.mapped(self._index.shard_object(shard))
            if found is None:
                return False
            maps.held[shard] = found
            maps.first[shard] = found.address + self._first_row(shard)
            return True

    def _first_row(self, shard: int) -> int:
        """Where a shard's first row begins. ShardError when its rows do not lie as the format says."""
        first, last = int(self._starts[shard]), int(self._starts[shard + 1]) - 1
        for field in self._fields:
            places = [self._index.place(sample, field.name) for sample in (first, last)]
            starts = [-1 if place is None else place.start - field.offset for place in places]
            if starts[0] < 0 or starts[1] - starts[0] != (last - first) * self._row_bytes:
                ref = self._index.shard_object(shard)
                raise ShardError(
                    f"{ref.key}: the index says that field {field.name!r} of its first and last sample begin at "
                    f"{starts[0] + field.offset} and {starts[1] + field.offset}: no rows of {self._row_bytes} bytes",
                    "index the dataset again",
                )
        return starts[0]

    def _check(self, maps: _Maps) -> None:
        self._checked_s = SYSTEM.monotonic()
        for mapped in list(maps.held.values()):
            mapped.check()

    def copied(self, rows: int, seconds: float) -> None:
        """Take note of a copy: how much, and whether it waited for a disk."""
        nbytes = rows * self._row_bytes
        self.cold = seconds > max(COLD_S_MIN, nbytes / COLD_BYTES_PER_S)
        self._recorder.count("read.mapped_bytes", nbytes)


class _Rows:
    """Rows at known addresses."""

    def __init__(self, owner: RowGatherer, maps: _Maps, addresses: Int64Array) -> None:
        self._owner = owner
        self._maps = maps  # keeps them mapped
        self._addresses = addresses

    def fill(self, outs: Mapping[str, np.ndarray[Any, Any]]) -> None:
        began_s = SYSTEM.monotonic()
        for field in self._owner._fields:
            copy_rows(self._addresses + field.offset if field.offset else self._addresses, outs[field.name])
        self._owner.copied(len(self._addresses), SYSTEM.monotonic() - began_s)


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
        row += len(range(place.start, place.stop))
        if name in names:
            fields.append(_Field(name, shape, dtype, place.start - first))
    if len(fields) < len(names) or not row:
        return None
    return RowGatherer(index, objects, tuple(fields), row, recorder)
