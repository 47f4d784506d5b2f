"""Reading the samples of a mixture: each by its own part's reader, put together in the order asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from stoker.cache import Objects
from stoker.dataset.copying import Int64Array
from stoker.dataset.dataset import Dataset
from stoker.dataset.gather import Gatherer, Located, Shape
from stoker.dataset.read import RawSamples, SampleReader
from stoker.index import ObjectRef

NEEDS_AT_ONCE = 256
"""Samples whose objects are looked up together: the order of first use is exact to so many."""


class MixtureReader(SampleReader):
    """Reads samples by their numbers in a mixture. Thread-safe."""

    def __init__(self, parts: Sequence[Dataset], readers: Sequence[SampleReader], offsets: Int64Array) -> None:
        self._parts = parts
        self._readers = readers
        self._offsets = offsets

    def read(self, samples: Sequence[int]) -> RawSamples:
        """Raw values of *samples*, in order."""
        asked = np.asarray(samples, np.int64)
        owners = np.searchsorted(self._offsets, asked, side="right") - 1
        keys, missed = [""] * len(asked), False
        values: list[dict[str, Any]] = [{}] * len(asked)
        present: list[tuple[str, ...]] = [()] * len(asked)
        for part in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == part)
            raw = self._readers[part].read(self._mapped_numbers(part, asked[rows]))
            missed |= raw.missed
            for at, row in enumerate(rows.tolist()):
                keys[row], present[row] = raw.keys[at], raw.present[at]
                values[row] = self._valued(part, raw, at, int(asked[row]))
        return RawSamples(keys, values, present, missed=missed)

    def _mapped_numbers(self, part: int, samples: Int64Array) -> list[int]:
        numbers: list[int] = (samples - self._offsets[part]).tolist()
        return numbers

    def _valued(self, part: int, raw: RawSamples, at: int, sample: int) -> dict[str, Any]:
        """The values of one sample after its part's own maps."""
        dataset = self._parts[part]
        if not dataset.maps:
            return raw.sample(at)
        return dataset.mapped({**raw.sample(at), "__key__": raw.keys[at], "__index__": sample})

    def cached_stores(self) -> list[Objects]:
        return [store for reader in self._readers for store in reader.cached_stores()]

    def needs(self, samples: Int64Array) -> Iterator[tuple[Objects, ObjectRef]]:
        """A few samples at a time, so that no part's objects come long before those of the others."""
        for first in range(0, len(samples), NEEDS_AT_ONCE):
            some = samples[first : first + NEEDS_AT_ONCE]
            owners = np.searchsorted(self._offsets, some, side="right") - 1
            for part in dict.fromkeys(owners.tolist()):
                if self._readers[part].cached_stores():
                    yield from self._readers[part].needs(some[owners == part] - self._offsets[part])

    def gatherer(self, names: tuple[str, ...]) -> Gatherer | None:
        """What copies the fields where every part can, and all have the same shapes."""
        if any(part.maps for part in self._parts):
            return None
        found = [reader.gatherer(names) for reader in self._readers]
        each = [one for one in found if one is not None]
        shapes = [{name: one.shapes.get(name) for name in names} for one in each]
        if len(each) < len(found) or any(shape != shapes[0] for shape in shapes):
            return None
        return _MixtureGatherer(each, self._offsets, names)


class _MixtureGatherer:
    def __init__(self, each: Sequence[Gatherer], offsets: Int64Array, names: tuple[str, ...]) -> None:
        self.shapes: Mapping[str, Shape] = {name: each[0].shapes[name] for name in names}
        self._each = each
        self._offsets = offsets

    def locate(self, samples: Int64Array) -> Located | None:
        owners = np.searchsorted(self._offsets, samples, side="right") - 1
        found = []
        for part in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == part)
            located = self._each[part].locate(samples[rows] - self._offsets[part])
            if located is None:
                return None
            found.append((rows, located))
        return _Parts(found)


class _Parts:
    """Rows of a batch by the part that they come from."""

    def __init__(self, parts: Sequence[tuple[Int64Array, Located]]) -> None:
        self._parts = parts

    def fill(self, outs: Mapping[str, np.ndarray[Any, Any]]) -> None:
        if len(self._parts) == 1:
            self._parts[0][1].fill(outs)
            return
        for rows, located in self._parts:
            own = {name: np.empty((len(rows), *out.shape[1:]), out.dtype) for name, out in outs.items()}
            located.fill(own)
            for name, out in outs.items():
                out[rows] = own[name]
