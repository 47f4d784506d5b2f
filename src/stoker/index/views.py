"""Typed views of mapped Arrow files, checked before use: what an index says is believed no more than what a shard says.

A view's numbers are memoryviews: one element of these costs 40 ns, of a NumPy array 100 ns, of an Arrow array 1 µs.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.errors import ShardError
from stoker.index.entry import ObjectRef
from stoker.index.layout import (
    BATCH,
    BATCH_SHIFT,
    COLUMN_TYPES,
    OBJECT_SCHEMA,
    PARTS,
    SHARD_SCHEMA,
    Manifest,
    index_schema,
)

_REBUILD = "delete the `_stoker` folder and index again"
REFS_MAX = 65_536
"""Objects held as values at once (about 300 B each)."""
_KINDS = {kind.__name__: kind for kind in COLUMN_TYPES}


def open_arrow(folder: Path, name: str, manifest: Manifest) -> pa.RecordBatchFileReader:
    """Map one file of an index. ShardError when it is not the file that the manifest names."""
    path = folder / name
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise ShardError(f"{path}: missing, but the manifest names it", _REBUILD) from None
    if found != manifest.files[name].size:
        raise ShardError(f"{path}: {found} bytes, the manifest says {manifest.files[name].size}", _REBUILD)
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        reader.schema.names  # noqa: B018  # decodes them
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ShardError(f"{path}: no Arrow file: {error}", _REBUILD) from error
    return reader


def _batch(
    reader: pa.RecordBatchFileReader, number: int, rows: int | None, schema: pa.Schema, path: Path
) -> pa.RecordBatch:
    """One record batch after every check that Arrow has."""
    try:
        batch = reader.get_batch(number)
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise ShardError(f"{path}: damaged batch {number}: {error}", _REBUILD) from error
    if batch.schema != schema or rows not in (None, batch.num_rows):
        found, wanted = (", ".join(f"{one.name}: {one.type}" for one in kind) for kind in (batch.schema, schema))
        raise ShardError(
            f"{path}: batch {number} has {batch.num_rows} rows of {found}; "
            f"expected {'any number of' if rows is None else rows} rows of {wanted}",
            _REBUILD,
        )
    return batch


def _numbers(values: pa.Array, path: Path) -> np.ndarray:
    """The values of an Arrow array of numbers, where they lie."""
    if values.null_count:
        raise ShardError(f"{path}: a number that is missing", _REBUILD)
    numbers: np.ndarray = values.to_numpy(zero_copy_only=True)
    return numbers


class Texts:
    """The values of an Arrow array of texts or bytes, where they lie."""

    def __init__(self, values: pa.Array) -> None:
        _, offsets, data = values.buffers()
        size = 4 * (len(values) + 1)  # a damaged file may have some bytes more
        self._offsets = memoryview(offsets).cast("B")[:size].cast("i") if offsets and len(values) else memoryview(b"")
        self._data = memoryview(data) if data else memoryview(b"")

    def __getitem__(self, row: int) -> bytes:
        return bytes(self._data[self._offsets[row] : self._offsets[row + 1]])


class SampleView:
    """The samples of one batch: field places as flat arrays, and where each sample's begin."""

    def __init__(
        self, reader: pa.RecordBatchFileReader, number: int, rows: int, manifest: Manifest, folder: Path
    ) -> None:
        parts = [part for part in PARTS if _has(reader.schema, part)]
        schema = index_schema(parts, {name: _KINDS.get(kind, str) for name, kind in manifest.columns.items()})
        batch = _batch(reader, number, rows, schema, folder)
        self._batch = batch
        self._keys = Texts(batch.column(0))
        places = batch.column(1).values
        columns = {part: _numbers(places.field(part), folder) for part in ("name", "offset", "length", *parts)}
        self._check(columns, manifest, folder)
        self._ends = _numbers(batch.column(1).offsets, folder).data
        self.names = columns["name"].data
        self.offsets = columns["offset"].data
        self.lengths = columns["length"].data
        self.codecs = columns["codec"].data if "codec" in columns else None
        self.rows = columns["row"].data if "row" in columns else None
        self.objects = columns["object"].data if "object" in columns else None

    @staticmethod
    def _check(columns: dict[str, np.ndarray], manifest: Manifest, folder: Path) -> None:
        """Numbers that lead elsewhere are checked once for the whole batch."""
        bounds = {"name": len(manifest.fields), "codec": len(manifest.codecs)}
        for part, bound in bounds.items():
            if part in columns and columns[part].size and columns[part].max() >= bound:
                raise ShardError(f"{folder}: a {part} numbered {columns[part].max()}, there are {bound}", _REBUILD)

    def key(self, row: int) -> str:
        return self._keys[row].decode("utf-8")

    def places(self, row: int) -> range:
        """Where the places of a sample's fields lie in the flat arrays."""
        return range(self._ends[row], self._ends[row + 1])

    def find(self, row: int, names: tuple[int, ...]) -> int:
        """Where the first of *names* that the sample has lies; -1 when it has none."""
        held = self.names
        places = range(self._ends[row], self._ends[row + 1])
        for name in names:
            for at in places:
                if held[at] == name:
                    return at
        return -1

    def field_numbers(self, row: int) -> list[int]:
        return [self.names[at] for at in self.places(row)]

    def field_lengths(self, numbers: tuple[int, ...]) -> tuple[np.ndarray, set[int]]:
        """By row: bytes of the first of the fields *numbers* that it has, 0 for none; and the codecs of these."""
        held, ends, lengths = np.asarray(self.names), np.asarray(self._ends), np.asarray(self.lengths)
        found = np.zeros(len(ends) - 1, np.int64)
        codecs: set[int] = set()
        for number in reversed(numbers):
            places = np.flatnonzero(held == number)[::-1]  # of a field that comes twice the first counts
            found[np.searchsorted(ends, places, side="right") - 1] = lengths[places]
            if self.codecs is not None:
                codecs.update(np.unique(np.asarray(self.codecs)[places]).tolist())
        return found, codecs

    def field_starts(self, numbers: tuple[int, ...]) -> np.ndarray:
        """By row: where the first of the fields *numbers* that it has begins; -1 for none."""
        held, ends, offsets = np.asarray(self.names), np.asarray(self._ends), np.asarray(self.offsets)
        found = np.full(len(ends) - 1, -1, np.int64)
        for number in reversed(numbers):
            places = np.flatnonzero(held == number)[::-1]  # of a field that comes twice the first counts
            found[np.searchsorted(ends, places, side="right") - 1] = offsets[places]
        return found

    def column(self, name: str) -> pa.Array:
        return self._batch.column(2).field(name)


def _has(schema: pa.Schema, part: str) -> bool:
    """Whether the places of this index have that part; a schema that is none of ours has none, and is refused later."""
    kind = schema.field("fields").type if "fields" in schema.names else None
    value = kind.value_type if isinstance(kind, pa.ListType) else None
    return isinstance(value, pa.StructType) and value.get_field_index(part) >= 0


class ObjectTable:
    """The table of shards or of raw files."""

    def __init__(self, reader: pa.RecordBatchFileReader, path: Path) -> None:
        self._reader = reader
        self._path = path
        self._lock = threading.Lock()
        self._schema = SHARD_SCHEMA if "start" in reader.schema.names else OBJECT_SCHEMA
        self._batches: dict[int, tuple[pa.RecordBatch, dict[str, Texts], dict[str, memoryview]]] = {}
        self._refs: dict[int, ObjectRef] = {}
        count = reader.num_record_batches
        self._rows = (count - 1) * BATCH + self._batch(count - 1)[0].num_rows if count else 0

    def __len__(self) -> int:
        return self._rows

    def numbers(self, column: str) -> np.ndarray:
        """A whole column of numbers."""
        count = self._reader.num_record_batches
        pieces = [_numbers(self._batch(number)[0].column(column), self._path) for number in range(count)]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)

    def ref(self, number: int) -> ObjectRef:
        """One object."""
        ref = self._refs.get(number)
        if ref is None:
            if len(self._refs) >= REFS_MAX:
                self._refs.clear()
            ref = self._refs[number] = self._read(number)
        return ref

    def _read(self, number: int) -> ObjectRef:
        if not 0 <= number < self._rows:
            raise ShardError(f"{self._path}: object {number} of {self._rows}", _REBUILD)
        _, texts, numbers = self._batch(number >> BATCH_SHIFT)
        row = number & (BATCH - 1)
        return ObjectRef(
            texts["key"][row].decode("utf-8", "surrogateescape"),
            numbers["size"][row],
            texts["version"][row].decode("utf-8", "replace") or None,
            texts["digest"][row].decode("utf-8", "replace") or None,
            texts["compression"][row].decode("utf-8", "replace"),
            numbers["expanded_size"][row],
        )

    def _batch(self, number: int) -> tuple[pa.RecordBatch, dict[str, Texts], dict[str, memoryview]]:
        found = self._batches.get(number)
        if found is not None:
            return found
        with self._lock:
            last = number == self._reader.num_record_batches - 1
            batch = _batch(self._reader, number, None if last else BATCH, self._schema, self._path)
            texts = {name: Texts(batch.column(name)) for name in ("key", "version", "digest", "compression")}
            numbers = {name: _numbers(batch.column(name), self._path).data for name in ("size", "expanded_size")}
            return self._batches.setdefault(number, (batch, texts, numbers))
