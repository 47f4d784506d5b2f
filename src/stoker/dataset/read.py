"""From sample numbers to raw values: where the index says that a field lies, as bytes, or a metadata column's value.

The ranges of neighbouring samples that lie in one object go to it in one call, so that a reader can merge them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stoker.cache import Objects
from stoker.events import SILENT, Recorder
from stoker.index import Index, ObjectRef
from stoker.store import ByteRange

MISSING: Any = object()
"""Stands for the value of a field that a sample does not have."""


@dataclass(frozen=True, slots=True)
class RawSamples:
    """What was read of a few samples."""

    keys: list[str]
    values: list[dict[str, Any]]
    """By sample: field → bytes, or a column's value. A field that the sample lacks is absent."""
    present: list[tuple[str, ...]]
    """By sample: the names of all its stored fields, for messages."""
    missed: bool
    """Whether any byte came from the store although a cache stands before it."""

    def sample(self, at: int) -> dict[str, Any]:
        """Raw values of one sample by field."""
        return self.values[at]

    def names(self, at: int) -> tuple[str, ...]:
        """Names of the fields that the sample has."""
        return self.present[at]


class SampleReader:
    """Reads raw fields of samples through a dataset's objects. Thread-safe."""

    def __init__(
        self,
        index: Index,
        objects: Objects,
        *,
        fields: Sequence[str] | None,
        cached: bool,
        recorder: Recorder = SILENT,
    ) -> None:
        """Read *fields* (None: all that a sample has, and its columns); *cached* says that a cache stands before."""
        self._index = index
        self._objects = objects
        self._fields = tuple(fields) if fields is not None else None
        self._columns = set(index.columns)
        self._cached = cached
        self._recorder = recorder

    def read(self, samples: Sequence[int]) -> RawSamples:
        """Raw values of *samples*, in their order."""
        values: list[dict[str, Any]] = [{} for _ in samples]
        wanted: dict[ObjectRef, list[tuple[ByteRange, int, str]]] = {}
        for at, sample in enumerate(samples):
            self._locate(sample, at, values[at], wanted)
        cached_bytes = stored_bytes = 0
        for ref, places in wanted.items():
            read = self._objects.read(ref, [place[0] for place in places])
            cached_bytes += read.cached_bytes
            stored_bytes += read.stored_bytes
            for (_, at, field), data in zip(places, read.data, strict=True):
                values[at][field] = data
        self._recorder.count("read.cache_bytes", cached_bytes)
        self._recorder.count("read.store_bytes", stored_bytes)
        return RawSamples(
            [self._index.key(sample) for sample in samples],
            values,
            [self._index.field_names(sample) for sample in samples] if self._short(values) else [()] * len(samples),
            missed=self._cached and stored_bytes > 0,
        )

    def _short(self, values: list[dict[str, Any]]) -> bool:
        """Whether a sample lacks a wanted field: only then are the names of all fields worth looking up."""
        return self._fields is not None and any(len(value) < len(self._fields) for value in values)

    def _locate(
        self, sample: int, at: int, values: dict[str, Any], wanted: dict[ObjectRef, list[tuple[ByteRange, int, str]]]
    ) -> None:
        fields = self._fields
        if fields is None:
            fields = (*self._index.field_names(sample), *self._index.columns)
        for field in fields:
            if field in self._columns:
                value = self._index.value(sample, field)
                if value is not None:
                    values[field] = value
                    continue
            place = self._index.place(sample, field)
            if place is None:
                continue
            if place.start == place.stop:
                values[field] = b""
                continue
            wanted.setdefault(place.object, []).append((ByteRange(place.start, place.stop), at, field))
