"""Tables (Parquet, Arrow IPC): rows are samples, columns are fields.

Of a row group only the wanted columns are decoded, and the last few are kept: rows that are read together should lie
together. A null is a field that the row has not. Values keep their type: NumPy scalars, `str`, bytes; lists of numbers
are arrays; of Hugging Face's struct {bytes, path} the bytes are the value (a bare path leads outside: it is no value);
timestamps are `numpy.datetime64`, in UTC.

Keys are row numbers within the shard, unless a column `__key__` says them (the writer here makes one).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stoker.errors import SampleError, ShardError, UsageError
from stoker.format.base import FieldPlace, Findings, ShardScan
from stoker.format.guard import look
from stoker.format.rows import KEY_FIELD, RowFormat, RowSamples, damaged, resolve
from stoker.format.table_guard import ARROW_FILE, FAILURES, PARQUET, Kind, open_parquet
from stoker.format.table_types import array_of, is_list, is_number, joined, size_of, storable, type_of

SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".arrows", ".ipc")
DECODED_BYTES_MAX = 512 << 20
"""Decoded columns of row groups that a process keeps, of all its open shards; the last is kept whatever its size."""
GROUP_BYTES = 16 << 20
"""What the writer makes a row group of."""


def owns(key: str) -> bool:
    return key.lower().endswith(SUFFIXES)


def scan_table(path: Path, key: str) -> ShardScan:
    """The samples of the shard *key* that lies at *path*, and what is wrong with it."""
    findings = Findings()
    try:
        found = look("table", path, key)
        names, rows = tuple(found["columns"]), sum(found["groups"])
        keys = None
        if KEY_FIELD in names:
            file = TableFile(path, found["kind"], found["groups"], names)
            keys = [str(value) for value in file.read(range(rows), KEY_FIELD)]
            file.close()
        return ShardScan(RowSamples([(rows, names)], keys), findings.all())
    except (ShardError, SampleError) as error:
        return damaged(error, key, findings)


def open_table(path: Path) -> TableFile:
    """Open a shard to read its rows. ShardError when its structure is damaged."""
    found = look("table", path, path.name)
    return TableFile(path, found["kind"], found["groups"], found["columns"])


class _Decoded:
    """The columns decoded last, of all open files of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: OrderedDict[tuple[int, int, str], pa.ChunkedArray] = OrderedDict()
        self._bytes = 0

    def get(self, name: tuple[int, int, str]) -> pa.ChunkedArray | None:
        with self._lock:
            if name in self._columns:
                self._columns.move_to_end(name)
            return self._columns.get(name)

    def put(self, name: tuple[int, int, str], column: pa.ChunkedArray) -> None:
        with self._lock:
            self._columns[name] = column
            self._bytes += column.nbytes
            while len(self._columns) > 1 and self._bytes > DECODED_BYTES_MAX:
                self._bytes -= self._columns.popitem(last=False)[1].nbytes

    def drop(self, number: int) -> None:
        """Forget the columns of a file; one that was never closed loses them when others need the room."""
        with self._lock:
            for name in [name for name in self._columns if name[0] == number]:
                self._bytes -= self._columns.pop(name).nbytes


_numbers = itertools.count()
_decoded: dict[int, _Decoded] = {}
"""By process: a forked child begins its own, with a lock that nobody holds."""


class TableFile:
    """The rows of one file. Safe in threads; each process opens its own."""

    def __init__(self, path: Path, kind: Kind, groups: Sequence[int], names: Sequence[str]) -> None:
        self._path = path
        self._number = next(_numbers)
        self._kind = kind
        self._starts = np.cumsum([0, *groups])
        self._names = tuple(names)
        self._lock = threading.Lock()
        self._pid = 0
        self._file: Any = None
        self._decoded: _Decoded | None = None

    def read(self, rows: Sequence[int], field: str) -> list[object]:
        """The values of *field* in these rows, in their order; None for nulls and unknown fields."""
        name = resolve(field, self._names)
        wanted = np.asarray(rows, np.int64)
        values: list[object] = [None] * len(wanted)
        if name is None or not len(wanted):
            return values
        if not 0 <= wanted.min() <= wanted.max() < self._starts[-1]:
            raise SampleError(f"{self._path.name}: row {wanted.max()} of {self._starts[-1]}")
        groups = np.searchsorted(self._starts, wanted, side="right") - 1
        for group in np.unique(groups).tolist():
            column = self._column(group, name)
            for at in np.flatnonzero(groups == group).tolist():
                row = int(wanted[at])
                try:
                    values[at] = _value(column[row - int(self._starts[group])])
                except FAILURES as error:
                    raise SampleError(f"{self._path.name}:{name}, row {row}: no value: {error}") from error
        return values

    def lengths(self, field: str) -> np.ndarray:
        """int64 [rows]: elements of each row's list, or its bytes; 0 where it is null."""
        name = resolve(field, self._names)
        counts = [np.zeros(0, np.int64)]
        for group in range(len(self._starts) - 1):
            rows = int(self._starts[group + 1] - self._starts[group])
            if name is None:
                counts.append(np.zeros(rows, np.int64))
                continue
            column = self._column(group, name)
            measure = pc.list_value_length if pa.types.is_nested(column.type) else pc.binary_length
            counts.append(np.asarray(pc.fill_null(measure(column), 0)).astype(np.int64))
        return np.concatenate(counts)

    def close(self) -> None:
        with self._lock:
            self._file = None
            if self._decoded is not None and self._pid == os.getpid():
                self._decoded.drop(self._number)

    def _column(self, group: int, name: str) -> pa.ChunkedArray:
        """One column of one group, decoded."""
        with self._lock:
            if self._pid != os.getpid() or self._decoded is None:
                self._file, self._pid = None, os.getpid()
                self._decoded = _decoded.setdefault(self._pid, _Decoded())
            found = self._decoded.get((self._number, group, name))
            if found is None:
                try:
                    found = self._decode(group, name)
                except FAILURES as error:
                    first, stop = (int(start) for start in self._starts[group : group + 2])
                    raise SampleError(
                        f"{self._path.name}:{name}, rows {first} to {stop - 1}: cannot be read: {error}"
                    ) from error
                self._decoded.put((self._number, group, name), found)
            return found

    def _decode(self, group: int, name: str) -> pa.ChunkedArray:
        if self._file is None:
            self._file = self._open()
        rows = int(self._starts[group + 1] - self._starts[group])
        if self._kind == "parquet":
            table = self._file.read_row_group(group, columns=[name], use_threads=False)
            column = table.column(name)
        elif self._kind == "file":
            column = pa.chunked_array([self._file.get_batch(group).column(name)])
        else:
            column = pa.chunked_array([self._file[group].column(name)])
        column.validate()
        if len(column) != rows:
            raise ShardError(f"expected {rows} rows, found {len(column)}")
        return column

    def _open(self) -> Any:
        if self._kind == "parquet":
            return open_parquet(self._path)
        source = pa.memory_map(str(self._path))
        return pa.ipc.open_file(source) if self._kind == "file" else list(pa.ipc.open_stream(source))


def _value(scalar: pa.Scalar) -> object:
    """What a cell holds."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return np.array(scalar.value.values.to_numpy(zero_copy_only=False)).reshape(kind.shape)
    if pa.types.is_dictionary(kind):
        return _value(scalar.value)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype()).type(scalar.as_py())
    if is_list(kind):
        inner = scalar.values
        if inner is None or inner.null_count or not is_number(kind.value_type):
            return scalar.as_py()
        return np.array(inner.to_numpy(zero_copy_only=False), kind.value_type.to_pandas_dtype())
    if pa.types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}:
        return _value(scalar["bytes"])
    if pa.types.is_timestamp(kind):  # Python's own stops at microseconds and the year 9999
        return np.datetime64(scalar.value, kind.unit)
    value: object = scalar.as_py()
    return value


class TableWriter:
    """Writes one shard of rows; a field that a sample lacks is a null.

    int → int64, float → float64, NumPy scalars as they are, str, bytes; 1-D arrays and lists of numbers → lists of any
    length, arrays of more dimensions → tensors of one shape; lists of text, nested lists, dicts, decimals and times →
    what Arrow infers. *columns* are the fields and their types (`table_types`); None: those of the first sample, which
    then has all the fields. *path* ends in .parquet, or in .arrow for an Arrow file. The output depends on the input
    only.
    """

    def __init__(
        self, path: Path, *, columns: Mapping[str, pa.DataType] | None = None, compression: str = "zstd"
    ) -> None:
        if not path.name.endswith((".parquet", ".arrow")):
            raise UsageError(f"{path.name}: a table is written as .parquet or .arrow")
        self._path = path
        self._compression = compression
        self._schema: pa.Schema | None = None
        self._writer: Any = None
        self._columns: dict[str, list[Any]] = {}
        self._rows = self._pending_bytes = 0
        self._alive = True
        if columns is not None:
            self._settle({KEY_FIELD: pa.string(), **columns})

    def _settle(self, columns: Mapping[str, pa.DataType]) -> pa.Schema:
        self._schema = pa.schema(list(columns.items()))
        self._columns = {name: [] for name in columns}
        return self._schema

    def add(self, key: str, values: Mapping[str, object]) -> tuple[FieldPlace, ...]:
        """Append a sample. UsageError names the field that the format cannot hold; nothing of the sample is written."""
        if not self._alive:
            raise UsageError("this shard is closed, or a write to it failed", "begin the shard again")
        if KEY_FIELD in values:
            raise UsageError(f"{key}: a field cannot be called {KEY_FIELD}: the key is kept there")
        given = {name: storable(name, value) for name, value in {KEY_FIELD: key, **values}.items()}
        kinds = {name: type_of(name, value) for name, value in given.items()}
        schema = self._schema or self._settle(kinds)
        for name, found in kinds.items():
            if name not in self._columns:
                raise UsageError(f"table: sample {key!r} has a field {name!r} that the first sample has not")
            kind = schema.field(name).type
            if joined(kind, found) != kind:
                raise UsageError(f"table: sample {key!r}: field {name!r} is {found}, before it was {kind}")
        for name, column in self._columns.items():
            column.append(given.get(name))
        self._rows += 1
        self._pending_bytes += sum(size_of(name, value) for name, value in given.items())
        if self._pending_bytes >= GROUP_BYTES:
            self._flush()
        return tuple(FieldPlace(name, 0, 0, row=self._rows - 1) for name in values)

    def close(self) -> int:
        """Write the end; gives the bytes of the shard. UsageError without a sample: nothing says the columns."""
        if self._alive:
            if self._schema is None:
                raise UsageError(f"{self._path.name}: a table without a row has no columns")
            self._flush()
            self._alive = False
            self._writer.close()
        return self._path.stat().st_size

    def abandon(self) -> None:
        """Close the file, whatever it holds."""
        self._alive = False
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()

    def _flush(self) -> None:
        """Write what is pending as one row group."""
        self._alive = False
        assert self._schema is not None
        if self._writer is None:
            self._writer = self._begin(self._schema)
        if self._columns[KEY_FIELD]:
            arrays = [array_of(column, self._schema.field(name).type) for name, column in self._columns.items()]
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
            self._columns = {name: [] for name in self._columns}
        self._pending_bytes = 0
        self._alive = True

    def _begin(self, schema: pa.Schema) -> Any:
        if self._path.suffix == ".arrow":
            options = pa.ipc.IpcWriteOptions(compression=None if self._compression == "none" else self._compression)
            return pa.ipc.new_file(str(self._path), schema, options=options)
        return pq.ParquetWriter(self._path, schema, compression=self._compression, write_page_checksum=True)


TABLE = RowFormat("table", owns, (PARQUET, ARROW_FILE), scan_table, open_table)
