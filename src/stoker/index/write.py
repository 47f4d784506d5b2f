"""Writing an index: samples come shard by shard, in order; memory stays bounded; the manifest comes last and commits.

The output depends on the input only, byte for byte: a packer that was killed and goes on ends with the same files. Its
parts (one small index a shard) are joined by `merge`.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from blake3 import blake3

from stoker.errors import ShardError, UsageError
from stoker.format import STOKER_FOLDER, ColumnValue, FieldPlace, SampleEntry
from stoker.index.entry import ObjectRef
from stoker.index.layout import (
    BATCH,
    COLUMN_TYPES,
    FIELD_NAMES_MAX,
    INDEX_FILE,
    KEY_BYTES_PER_BATCH_MAX,
    MANIFEST_FILE,
    OBJECT_SCHEMA,
    OBJECTS_FILE,
    SHARD_SCHEMA,
    SHARDS_FILE,
    FileRecord,
    Manifest,
    index_schema,
    place_type,
)
from stoker.index.read import Index
from stoker.machine import scratch_folder
from stoker.store.atomic import named
from stoker.store.base import Store
from stoker.store.digest import TreeDigest


def _key_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


class _Numbers:
    """Gives texts their numbers, in the order of their coming, and counts how often each came."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._number: dict[str, int] = {}
        self._counts: list[int] = []

    def take(self, text: str) -> int:
        number = self._number.get(text)
        if number is None:
            number = len(self._counts)
            if number == FIELD_NAMES_MAX:
                raise ShardError(
                    f"more than {FIELD_NAMES_MAX} different {self._what}, the last is {text!r}",
                    "dots in the keys make every file's name a field name: pack with keys that have none",
                )
            self._number[text] = number
            self._counts.append(0)
        self._counts[number] += 1
        return number

    def counts(self) -> dict[str, int]:
        return dict(zip(self._number, self._counts, strict=True))


class _ArrowFile:
    """An Arrow file in the making, in an unnamed temporary file: killed at any time it leaves nothing behind."""

    def __init__(self, schema: pa.Schema, scratch: Path | None) -> None:
        self.schema = schema
        folder = scratch or scratch_folder()
        self._where = f"{folder}: cannot keep an index here"
        with self._said():
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed by close()
            self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), schema)

    def _said(self) -> contextlib.AbstractContextManager[None]:
        return named(self._where, "make room on the disk, or set TMPDIR, XDG_CACHE_HOME or a cache on a larger one")

    def write(self, batch: pa.RecordBatch) -> None:
        with self._said():
            self._writer.write_batch(batch)

    def put(self, store: Store, key: str) -> FileRecord:
        """End the file and put it into the store."""
        with self._said():
            self._writer.close()
            self._file.flush()
        digest = TreeDigest()
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            digest.update(view)
            store.put(key, view)
            return FileRecord(len(view), digest.hexdigest())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what is left in a buffer may find no room
            self._file.close()


class _Objects:
    """Rows of a table of objects (shards, or raw files) on their way to its file."""

    def __init__(self, file: _ArrowFile) -> None:
        self.file = file
        self.count = 0
        self._rows: list[tuple[Any, ...]] = []

    def add(self, ref: ObjectRef, *more: int) -> int:
        """The number that the object has from now on."""
        texts = [text.encode() for text in (ref.version or "", ref.digest or "", ref.compression)]
        self._rows.append((_key_bytes(ref.key), ref.size, *texts, ref.expanded_size or ref.size, *more))
        self.count += 1
        if len(self._rows) == BATCH:
            self.flush()
        return self.count - 1

    def flush(self) -> None:
        if self._rows:
            columns = [
                pa.array(values, kind)
                for values, kind in zip(zip(*self._rows, strict=True), self.file.schema.types, strict=True)
            ]
            self.file.write(pa.record_batch(columns, schema=self.file.schema))
            self._rows = []


class IndexWriter:
    """Writes the index of a dataset into *target* under *prefix*. Use it in a `with`; nothing appears before `commit`.

    *columns* are the metadata columns and their types; *parts* those of "codec", "row", "object" that fields use.
    """

    def __init__(
        self,
        target: Store,
        prefix: str = STOKER_FOLDER,
        *,
        format: str,  # noqa: A002  # the word of the house
        columns: Mapping[str, type] | None = None,
        parts: Sequence[str] = (),
        scratch: Path | None = None,
    ) -> None:
        self._target = target
        self._prefix = prefix
        self._format = format
        self._columns = dict(columns or {})
        self._parts = tuple(parts)
        self._names = _Numbers("field names")
        self._codecs = _Numbers("codecs")
        self._samples = self._bytes = 0
        self._plan = blake3(f"{format}\0".encode())
        self._index = _ArrowFile(index_schema(self._parts, self._columns), scratch)
        self._shards = _Objects(_ArrowFile(SHARD_SCHEMA, scratch))
        self._objects = _Objects(_ArrowFile(OBJECT_SCHEMA, scratch)) if "object" in self._parts else None
        self._begin_batch()

    def __enter__(self) -> IndexWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._index, self._shards.file, *([self._objects.file] if self._objects else [])):
            file.close()

    def add_shard(
        self, shard: ObjectRef, samples: Iterable[SampleEntry], *, objects: Mapping[str, ObjectRef] | None = None
    ) -> int:
        """Append a shard's samples; gives their number. *objects*: what the fields' `object` keys are (raw files)."""
        start = self._samples
        numbers: dict[str, int] = {}
        for sample in samples:
            self._keys.append(sample.key)
            for place in sample.fields:
                self._add_place(place, objects or {}, numbers)
            self._ends.append(len(self._place_names))
            for name, values in self._values.items():
                values.append(sample.columns.get(name))
            if not sample.columns.keys() <= self._columns.keys():
                unknown = sorted(sample.columns.keys() - self._columns.keys())
                raise UsageError(f"{shard.key}: {sample.key}: undeclared columns {unknown}")
            self._samples += 1
            if len(self._keys) == BATCH:
                self._flush()
        count = self._samples - start
        self._shards.add(shard, start, count)
        self._bytes += shard.size
        key = _key_bytes(shard.key)
        for number in (len(key), shard.size, count):
            self._plan.update(number.to_bytes(8, "little"))
        self._plan.update(key)
        return count

    def commit(self, *, classes: Sequence[str] | None = None, extra: Mapping[str, Any] | None = None) -> Manifest:
        """Put everything in place, the manifest last. An older index is void from the first write on."""
        self._flush()
        manifest_key = f"{self._prefix}/{MANIFEST_FILE}"
        tables = {SHARDS_FILE: self._shards} | ({OBJECTS_FILE: self._objects} if self._objects else {})
        self._target.delete(manifest_key)
        files = {}
        for name, table in tables.items():
            table.flush()
            files[name] = table.file.put(self._target, f"{self._prefix}/{name}")
        files[INDEX_FILE] = self._index.put(self._target, f"{self._prefix}/{INDEX_FILE}")
        manifest = Manifest(
            self._format, self._samples, self._shards.count, self._bytes, self._plan.hexdigest(),
            self._names.counts(), files, tuple(self._codecs.counts()) or ("",),
            {name: kind.__name__ for name, kind in self._columns.items()},
            None if classes is None else tuple(classes), dict(extra or {}),
        )  # fmt: skip
        self._target.put(manifest_key, manifest.to_json())
        return manifest

    def _begin_batch(self) -> None:
        self._keys: list[str] = []
        self._ends = array("i", [0])
        self._place_names = array("H")
        self._numbers = {name: array("q") for name in ("offset", "length", *self._parts) if name != "codec"}
        self._place_codecs = array("H")
        self._values: dict[str, list[ColumnValue]] = {name: [] for name in self._columns}

    def _add_place(self, place: FieldPlace, objects: Mapping[str, ObjectRef], numbers: dict[str, int]) -> None:
        self._place_names.append(self._names.take(place.name))
        self._numbers["offset"].append(place.offset)
        self._numbers["length"].append(place.length)
        if "codec" in self._parts:
            self._place_codecs.append(self._codecs.take(place.codec))
        if "row" in self._parts:
            self._numbers["row"].append(place.row)
        if self._objects is not None:
            number = numbers.get(place.object)
            if number is None:
                number = numbers[place.object] = self._objects.add(objects[place.object])
            self._numbers["object"].append(number)
        elif (
            place.object
            or (place.codec and "codec" not in self._parts)
            or (place.row >= 0 and "row" not in self._parts)
        ):
            raise UsageError(f"{place} has parts that this index was not declared to keep (it keeps {self._parts})")

    def _flush(self) -> None:
        if not self._keys:
            return
        count = len(self._place_names)
        children = []
        for part in place_type(self._parts):
            held = {"name": self._place_names, "codec": self._place_codecs}.get(part.name)
            values = held if held is not None else self._numbers[part.name]
            children.append(pa.Array.from_buffers(part.type, count, [None, pa.py_buffer(values)]))
        places = pa.StructArray.from_arrays(children, fields=list(place_type(self._parts)))
        ends = pa.Array.from_buffers(pa.int32(), len(self._ends), [None, pa.py_buffer(self._ends)])
        columns = [_texts("keys", self._keys), pa.ListArray.from_arrays(ends, places)]
        if self._columns:
            arrays = [_column(name, self._values[name], kind) for name, kind in self._columns.items()]
            columns.append(pa.StructArray.from_arrays(arrays, fields=list(self._index.schema.field("columns").type)))
        self._index.write(pa.record_batch(columns, schema=self._index.schema))
        self._begin_batch()


def _texts(what: str, values: Sequence[str | None]) -> pa.Array:
    """Texts as an Arrow array; bytes that were no UTF-8 are written as \\xNN."""
    if sum(len(value) for value in values if value is not None) > KEY_BYTES_PER_BATCH_MAX // 4:
        raise ShardError(f"{what} of {BATCH} samples take more than {KEY_BYTES_PER_BATCH_MAX // 4} characters")
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        readable = [
            None if value is None else value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            for value in values
        ]
        return pa.array(readable, pa.string())


def _column(name: str, values: Sequence[ColumnValue], kind: type) -> pa.Array:
    if kind is str:
        return _texts(f"column {name!r}", [value if value is None else str(value) for value in values])
    try:
        return pa.array(values, COLUMN_TYPES[kind])
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise ShardError(f"column {name!r}: a value is no {kind.__name__}: {error}") from error


def merge(
    parts: Iterable[Index],
    writer: IndexWriter,
    *,
    classes: Sequence[str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Manifest:
    """Join part indexes, whose fields are in the shards themselves, in the order given, and commit."""
    for part in parts:
        for number in range(len(part.shard_starts) - 1):
            start, stop = int(part.shard_starts[number]), int(part.shard_starts[number + 1])
            writer.add_shard(part.shard_object(number), part.entries(start, stop))
    return writer.commit(classes=classes, extra=extra)
