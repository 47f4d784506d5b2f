"""From sample numbers to raw values: where the index says that a field lies, as bytes, or a metadata column's value.

The ranges of neighbouring samples that lie in one object go to it in one call, so that a reader can merge them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.cache import Objects, Read, WrongDigestError, prefetch
from stoker.dataset.copying import Int64Array
from stoker.dataset.gather import Gatherer, row_gatherer
from stoker.dataset.rows import RowFiles
from stoker.errors import SampleError
from stoker.events import SILENT, Recorder
from stoker.format.values import decode_value
from stoker.index import Index, ObjectRef, Place
from stoker.store import ByteRange

MISSING: Any = object()
"""Stands for the value of a field that a sample does not have."""


class QuarantinedError(SampleError):
    """The sample lies in a shard whose bytes are not those that were packed: fetched twice, not kept, not used."""

    reason = "quarantined shard"


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


Asked = tuple[Place, int, str]
"""A place, for which sample and field."""
Wanted = dict[ObjectRef, list[Asked]]
"""By object."""


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
        self._rows = RowFiles(index.format, objects)

    def read(self, samples: Sequence[int]) -> RawSamples:
        """Raw values of *samples*, in order. What a codec cannot make a value of is a SampleError in its place."""
        values: list[dict[str, Any]] = [{} for _ in samples]
        wanted: Wanted = {}
        for at, sample in enumerate(samples):
            self._locate(sample, at, values[at], wanted)
        cached_bytes = stored_bytes = 0
        for places, read in self._answers(wanted, values):
            if isinstance(read, WrongDigestError):  # its samples are bad, those of other shards are not
                quarantined = QuarantinedError(read.message, read.hint)
                for _, at, field in places:
                    values[at][field] = quarantined
                continue
            cached_bytes += read.cached_bytes
            stored_bytes += read.stored_bytes
            for (place, at, field), data in zip(places, read.data, strict=True):
                values[at][field] = data if not place.codec else _valued(place.codec, data)
        self._recorder.count("read.cache_bytes", cached_bytes)
        self._recorder.count("read.store_bytes", stored_bytes)
        return RawSamples(
            [self._index.key(sample) for sample in samples],
            values,
            [self._names(sample, value) for sample, value in zip(samples, values, strict=True)]
            if self._short(values)
            else [()] * len(samples),
            missed=self._cached and stored_bytes > 0,
        )

    def _answers(
        self, wanted: Wanted, values: list[dict[str, Any]]
    ) -> Iterator[tuple[list[Asked], Read | WrongDigestError]]:
        """What comes of each object's byte ranges. Rows of files are put into *values* here."""
        by_range: list[tuple[ObjectRef, list[Asked]]] = []
        for ref, places in wanted.items():
            if places[0][0].row < 0:
                by_range.append((ref, places))
                continue
            try:
                self._rows.read(ref, places, values)
            except WrongDigestError as error:
                yield places, error
        asked = [(ref, [ByteRange(p.start, p.stop) for p, _, _ in places]) for ref, places in by_range]
        if asked:
            yield from zip((places for _, places in by_range), self._objects.read_all(asked), strict=True)

    def gatherer(self, names: tuple[str, ...]) -> Gatherer | None:
        """What copies the fields *names* straight from mapped shards; None where samples are no rows of arrays."""
        return row_gatherer(self._index, self._objects, names, self._recorder)

    def prefetch(self, samples: Iterable[Int64Array]) -> None:
        """Bring what *samples* need, array by array, into the cache, where there is one, in the background."""
        stores = self.cached_stores()
        if stores:
            prefetch((one for some in samples for one in self.needs(some)), stores)

    def cached_stores(self) -> list[Objects]:
        """The stores before which a cache stands."""
        return [self._objects] if self._cached else []

    def needs(self, samples: Int64Array) -> Iterator[tuple[Objects, ObjectRef]]:
        """The objects that *samples* need, in order of first use."""
        for ref in self._index.objects(samples):
            yield self._objects, ref

    def _short(self, values: list[dict[str, Any]]) -> bool:
        """Whether a sample lacks a wanted field: only then are the names of all fields worth looking up."""
        return self._fields is not None and any(len(value) < len(self._fields) for value in values)

    def _names(self, sample: int, value: dict[str, Any]) -> tuple[str, ...]:
        """The stored fields that a sample has: a column whose cell is empty is none."""
        wanted = self._fields or ()
        return tuple(name for name in self._index.field_names(sample) if name in value or name not in wanted)

    def _locate(self, sample: int, at: int, values: dict[str, Any], wanted: Wanted) -> None:
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
            if place.start == place.stop and place.row < 0:
                values[field] = b"" if not place.codec else _valued(place.codec, b"")
                continue
            wanted.setdefault(place.object, []).append((place, at, field))


def _valued(codec: str, data: bytes | memoryview) -> object:
    """The value, or the SampleError that stands for it: whether it matters is decided where the sample is used."""
    try:
        return decode_value(codec, data)
    except SampleError as error:
        return error
