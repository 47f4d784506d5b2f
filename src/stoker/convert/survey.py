"""The first pass: look at every sample, and find out whether the other format can hold all, before a byte is written.

1. Where a shard is a stream of samples, every sample is written to memory and read back: what comes back must be the
   same. No rule of a format is told here a second time.
2. Where a library writes whole columns, samples are sorted by their kind (fields, element types, shapes, edges such as
   emptiness); one sample of each kind is written to a scratch file and read back.
The cut into shards is made on the way, by the bytes of the values. A key that comes twice begins a new shard, because
keys are unique in a shard only: the row numbers of several source shards would meet otherwise.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from pyarrow import DataType

from stoker.convert.same import said, same, size_of
from stoker.convert.target import Shape, ShardFile, Target, Values, library, tried
from stoker.decode import default_for
from stoker.errors import MissingExtraError, SampleError, StokerError, StoreError, UsageError
from stoker.format.mds import Columns, MDSWriter
from stoker.format.mds_values import encoding_for
from stoker.format.table_types import joined, storable, type_of
from stoker.format.values import decode_value
from stoker.store.atomic import temporary_name

KINDS_MAX = 256
"""Kinds of samples that a library's format is tried with; honest data has one, or a few with optional fields."""
SHARDS_MAX = 100_000
PLACES_MAX = 1_000_000
"""Fields of all samples in a shard: far below what any format's reader takes."""
_LARGE_BYTES = 64 << 20
ELSEWHERE = "convert to a format that can, or leave the field out with --field"


class Survey:
    """What is known of the samples so far."""

    def __init__(
        self, target: Target, *, shard_bytes: int, scratch: Path, encodings: Mapping[str, str], advice: str = ELSEWHERE
    ) -> None:
        self._target = target
        self._encodings = encodings
        self._advice = advice
        self._shard_bytes = shard_bytes
        self._scratch = scratch
        self._shape = Shape()
        self._keys: set[str] = set()
        self._open_bytes = self._open_places = 0
        self._samples = 0
        self._layout: frozenset[tuple[str, str]] | None = None
        self._kinds: dict[tuple[object, ...], tuple[str, Values]] = {}
        self._lengths: dict[str, set[int]] = {}
        self._types: dict[str, DataType] = {}
        self.bounds = array("q", [0])
        """The first sample of each shard so far."""

    def add(self, key: str, values: Values) -> None:
        """Look at one sample more. UsageError names the field that the target cannot hold."""
        self._cut(key, values)
        try:
            if self._target.stream is not None:
                self._try_stream(key, values)
            else:
                self._sort(key, values)
        except MissingExtraError:
            raise
        except (UsageError, SampleError) as error:
            raise UsageError(
                f"sample {self._samples} ({key}): {self._target.name} cannot hold it: {error.message}",
                error.hint or self._advice,
            ) from error
        self._samples += 1

    def finish(self) -> Shape:
        """After the last sample: what the writers must know. UsageError as above."""
        self.bounds.append(self._samples)
        if self._target.stream is None:
            self._try_library()
        return self._shape

    def _cut(self, key: str, values: Values) -> None:
        """Begin a new shard where this sample does not go into the open one."""
        count_bytes = sum(size_of(value) for value in values.values())
        full = self._open_bytes + count_bytes > self._shard_bytes or self._open_places + len(values) > PLACES_MAX
        if self._keys and (full or key in self._keys):
            self.bounds.append(self._samples)
            self._keys.clear()
            self._open_bytes = self._open_places = 0
            if len(self.bounds) > SHARDS_MAX:
                raise UsageError(
                    f"more than {SHARDS_MAX} shards after {self._samples} samples",
                    "choose larger shards (--shard-size)",
                )
        self._keys.add(key)
        self._open_bytes += count_bytes
        self._open_places += len(values)

    def _try_stream(self, key: str, values: Values) -> None:
        if self._target.name == "mds" and self._shape.columns is None:
            self._shape = Shape(columns=self._mds_columns(key, values))
        _, places, data = tried(self._target, self._shape, key, values)
        back: dict[str, object] = {}
        for place in places:
            piece = data[place.offset : place.offset + place.length]
            back[place.name] = decode_value(place.codec, piece) if place.codec else piece
        if self._target.name == "webdataset":
            for name, value in values.items():
                if not isinstance(value, bytes) and name in back:
                    back[name] = _read_by_name(name, value, back[name])
        _compare(values, back)
        if self._target.name == "arrays":
            layout = frozenset((place.name, place.codec) for place in places)
            if self._layout not in (None, layout):
                raise UsageError("its fields, types or shapes are not those of the samples before it")
            self._layout = layout

    def _mds_columns(self, key: str, values: Values) -> Columns | None:
        """The encodings that MDS had before, and those that keep the values of this first sample."""
        told = {name: self._encodings.get(name) or encoding_for(value) for name, value in values.items()}
        known = {name: encoding for name, encoding in told.items() if encoding is not None}
        writer = MDSWriter(io.BytesIO(), columns=known if len(known) == len(told) else None)
        if writer.columns is None:
            writer.add(key, values)  # says which value has no encoding
        return writer.columns

    def _sort(self, key: str, values: Values) -> None:
        table = self._target.name == "table"
        kinds = ((name, *(self._cell(name, one) if table else self._kind(name, one))) for name, one in values.items())
        kind = ("\0" in key, *sorted(kinds, key=lambda one: str(one[0])))
        if kind not in self._kinds:
            if len(self._kinds) == KINDS_MAX:
                raise UsageError(f"the samples are of more than {KINDS_MAX} kinds (fields, types and shapes)")
            self._kinds[kind] = key, values

    def _cell(self, name: str, value: object) -> tuple[object, ...]:
        """What decides how a table holds the value; the column's type grows to hold it."""
        stored = storable(name, value)
        found = type_of(name, stored)
        known = self._types.get(name, found)
        column = joined(known, found)
        if column is None:
            raise UsageError(f"field {name!r} is {found}, before it was {known}: a column has one type")
        self._types[name] = column
        return type(value), str(found), isinstance(value, bytes | str) and not value

    def _kind(self, name: str, value: object) -> tuple[object, ...]:
        """What decides whether HDF5 can hold the value."""
        if isinstance(value, bytes | str):
            return type(value), not value, isinstance(value, str) and "\0" in value, len(value) > _LARGE_BYTES
        try:
            found = np.asarray(value)
        except ValueError:
            return type(value), "ragged"
        if found.dtype.kind in "US":  # as wide as the longest text
            return type(value), found.dtype.kind
        if found.ndim != 1:
            return type(value), found.dtype.str, found.shape
        self._lengths.setdefault(name, set()).add(len(found))
        return type(value), found.dtype.str, not found.size, found.nbytes > _LARGE_BYTES

    def _try_library(self) -> None:
        ragged = frozenset(name for name, lengths in self._lengths.items() if len(lengths) > 1)
        self._shape = Shape(ragged=ragged, types=self._types)
        path = self._scratch / f"{temporary_name()}{self._target.suffix}"
        examples = list(self._kinds.values())
        try:
            shard = ShardFile(self._target, path, self._shape, where=f"{self._scratch} (set TMPDIR)")
            try:
                self._each(examples, shard.add)
                shard.close()
            finally:
                shard.abandon()
            file = library(self._target.name)(path)
            rows = iter(range(len(examples)))

            def read_back(key: str, values: Values) -> None:
                row = next(rows)
                read = {name: file.read([row], name)[0] for name in values}
                _compare(values, {name: value for name, value in read.items() if value is not None})

            self._each(examples, read_back)
            file.close()
        finally:
            path.unlink(missing_ok=True)

    def _each(self, examples: Iterable[tuple[str, Values]], work: Callable[[str, Values], object]) -> None:
        for key, values in examples:
            try:
                work(key, values)
            except (MissingExtraError, StoreError):
                raise
            except StokerError as error:
                raise UsageError(f"sample {key}: {error.message}", error.hint or self._advice) from error


def _read_by_name(name: str, value: object, data: object) -> object:
    """What a WebDataset field says to who reads it: its name alone tells how."""
    try:
        return default_for(name).decode(data, None, 0)  # type: ignore[arg-type]  # it is bytes
    except SampleError as error:
        advice = f"--rename {name}=npy keeps an array as what it is" if isinstance(value, np.ndarray) else None
        raise UsageError(f"field {name!r}: by its name this {said(value)} is read as something else", advice) from error


def _compare(before: Values, after: Values) -> None:
    """UsageError unless every value came back."""
    for name, value in before.items():
        if name not in after:
            raise UsageError(f"field {name!r}: this {said(value)} would be lost")
        if not same(value, after[name]):
            raise UsageError(f"field {name!r}: this {said(value)} would come back as {said(after[name])}")
    if not before:
        raise UsageError("it has no fields")
