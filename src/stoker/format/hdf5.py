"""HDF5: rows of the datasets that share a first dimension are samples (`hdf5_guard` says which those are).

The structure is looked at in a process that may die; rows are then read here, by the library, only the chunks of the
wanted ones. A value is what a row holds: NumPy scalars and arrays with their type, `str` for strings, bytes for
variable-length uint8 (encoded images) and opaque data, compounds as NumPy records.

Keys are row numbers within the shard, unless a dataset `__key__` of strings says them (the writer here makes one).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import MissingExtraError, SampleError, ShardError, UsageError
from stoker.format.base import FieldPlace, Findings, ShardScan
from stoker.format.guard import look
from stoker.format.hdf5_file import UnfailingFile
from stoker.format.hdf5_guard import FAILURES, Run, checked_runs, open_file, prepare
from stoker.format.limits import CHUNK_BYTES_MAX
from stoker.format.rows import KEY_FIELD, RowFormat, RowSamples, damaged, resolve

SUFFIXES = (".h5", ".hdf5", ".he5", ".h5ad")
SPAN_BYTES_MAX = 64 << 20
"""Neighbouring rows that are read at once; more are read in several goes."""
CHUNK_BYTES = 1 << 20
"""What the writer makes a chunk of: a read of one row expands no more, and a row of it is found in memory next."""
CHUNK_ROWS_MAX = 4_096
"""Of small values: a chunk takes its place in the file whole, however few rows there are, and a row is read by it."""
_FIXED_KINDS = "biufc"
_RAGGED = "ragged "
_ARRAY = "stoker_array"
"""Attribute of datasets of ours whose rows are arrays of any length: without it, those of uint8 are bytes."""


def owns(key: str) -> bool:
    return key.lower().endswith(SUFFIXES)


def _library() -> Any:
    try:
        return prepare()
    except ImportError as error:
        raise MissingExtraError(f"HDF5 needs h5py: {error}", "pip install 'stoker[hdf5]'") from error


def scan_hdf5(path: Path, key: str) -> ShardScan:
    """The samples of the shard *key* that lies at *path*, and what is wrong with it. MissingExtraError without h5py."""
    findings = Findings()
    try:
        found = look("hdf5", path, key)
        runs = list(checked_runs(found))
        for code, severity, place, message in found["findings"]:
            findings.add(code, severity, f"{key}:{place}", message)
        return ShardScan(RowSamples([(run.rows, tuple(run.fields)) for run in runs], _keys(path, runs)), findings.all())
    except (ShardError, SampleError) as error:
        return damaged(error, key, findings)


def _keys(path: Path, runs: list[Run]) -> list[str] | None:
    if not runs or not all(KEY_FIELD in run.fields for run in runs):
        return None
    file = Hdf5File(path, runs)
    try:
        return [str(key) for key in file.read(range(sum(run.rows for run in runs)), KEY_FIELD)]
    finally:
        file.close()


def open_hdf5(path: Path) -> Hdf5File:
    """Open a shard to read its rows. ShardError when its structure is damaged."""
    return Hdf5File(path, list(checked_runs(look("hdf5", path, path.name))))


class Hdf5File:
    """The rows of one file. Safe in threads (the library does one thing at a time); each process opens its own."""

    def __init__(self, path: Path, runs: Sequence[Run]) -> None:
        self._library = _library()
        self._path = path
        self._runs = list(runs)
        self._starts = np.cumsum([0, *(run.rows for run in runs)])
        self._names = tuple(dict.fromkeys(name for run in runs for name in run.fields))
        self._lock = threading.Lock()
        self._pid = 0
        self._file: Any = None
        self._inherited: list[Any] = []
        self._datasets: dict[str, Any] = {}

    def read(self, rows: Sequence[int], field: str) -> list[object]:
        """The values of *field* in these rows, in their order; None where a row's run has no such field."""
        name = resolve(field, self._names)
        wanted = np.asarray(rows, np.int64)
        if name is None or not len(wanted):
            return [None] * len(wanted)
        if not 0 <= wanted.min() <= wanted.max() < self._starts[-1]:
            raise SampleError(f"{self._path.name}: row {wanted.max()} of {self._starts[-1]}")
        values: list[object] = [None] * len(wanted)
        owners = np.searchsorted(self._starts, wanted, side="right") - 1
        for number in np.unique(owners).tolist():
            run, at = self._runs[number], np.flatnonzero(owners == number)
            if name in run.fields:
                local = wanted[at] - self._starts[number]
                for place, value in zip(at.tolist(), self._values(run.fields[name], local), strict=True):
                    values[place] = value
        return values

    def lengths(self, field: str) -> np.ndarray:
        """int64 [rows]: elements of each row of *field*."""
        counts = []
        name = resolve(field, self._names) or field
        for run in self._runs:
            if name not in run.fields:
                counts.append(np.zeros(run.rows, np.int64))
                continue
            dataset = self._dataset(run.fields[name])
            if self._library.check_vlen_dtype(dataset.dtype) is None:
                counts.append(np.full(run.rows, int(np.prod(dataset.shape[1:])), np.int64))
            else:
                pieces = (self._values(run.fields[name], np.arange(*piece)) for piece in _pieces(run.rows))
                # a value is typed as object; in a ragged field it is an array, which has a length
                counts.append(np.array([len(value) for piece in pieces for value in piece], np.int64))  # type: ignore[arg-type]
        return np.concatenate(counts) if counts else np.zeros(0, np.int64)

    def close(self) -> None:
        with self._lock:
            if self._file is not None and self._pid == os.getpid():
                self._file.close()
            self._file, self._datasets = None, {}

    def _values(self, path: str, rows: np.ndarray) -> list[object]:
        """Values of rows of one dataset, in the order asked."""
        dataset = self._dataset(path)
        sorted_rows, order = np.unique(rows, return_inverse=True)
        row_bytes = max(1, dataset.dtype.itemsize * int(np.prod(dataset.shape[1:])))
        chunk_rows = dataset.chunks[0] if dataset.chunks else 1
        arrays = dataset.dtype.hasobject and _ARRAY in dataset.attrs
        found: list[object] = []
        for start, stop in spans(sorted_rows, chunk_rows, max(1, SPAN_BYTES_MAX // row_bytes)):
            first, last = int(sorted_rows[start]), int(sorted_rows[stop - 1])
            try:
                block = dataset[first : last + 1]
            except FAILURES as error:
                raise SampleError(
                    f"{self._path.name}:{path}, rows {first} to {last}: cannot be read: {error}"
                ) from error
            wanted = (block[row - first] for row in sorted_rows[start:stop].tolist())
            found += [_value(self._library, dataset.dtype, raw, arrays) for raw in wanted]
        return [found[at] for at in order.tolist()]

    def _dataset(self, path: str) -> Any:
        with self._lock:
            if self._pid != os.getpid():  # a forked child opens its own and leaves its parent's untouched
                self._inherited.extend((self._file, self._datasets))
                self._file, self._datasets, self._pid = None, {}, os.getpid()
            try:
                if self._file is None:
                    self._file = open_file(self._library, self._path)
                if path not in self._datasets:
                    self._datasets[path] = self._file[path]
            except FAILURES as error:
                raise ShardError(f"{self._path}: {path}: cannot be opened: {error}") from error
            return self._datasets[path]


def _pieces(rows: int, step: int = 4096) -> Iterator[tuple[int, int]]:
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def spans(rows: np.ndarray, chunk_rows: int, rows_max: int) -> list[tuple[int, int]]:
    """Slices [start, stop) of sorted *rows* to be read by one call each: next to each other, or in the same chunk."""
    if not len(rows):
        return []
    near = (np.diff(rows) == 1) | (np.diff(rows // chunk_rows) == 0)
    cuts = [0, *(np.flatnonzero(~near) + 1).tolist(), len(rows)]
    found = []
    for start, stop in pairwise(cuts):
        while start < stop:
            end = int(np.searchsorted(rows[start:stop], rows[start] + rows_max)) + start
            found.append((start, end))
            start = end
    return found


def _value(library: Any, dtype: Any, raw: Any, arrays: bool) -> object:
    """What a row holds, as a value that shares no memory with its neighbours."""
    element = library.check_vlen_dtype(dtype)
    if library.check_string_dtype(dtype) is not None:
        return _texts(raw)
    if element is not None:
        if element == np.uint8 and isinstance(raw, np.ndarray) and raw.dtype == np.uint8 and not arrays:
            return raw.tobytes()
        return raw.tolist() if isinstance(raw, np.ndarray) and raw.dtype.hasobject else _native(np.asarray(raw))
    if dtype.kind == "V" and dtype.names is None and dtype.subdtype is None and not isinstance(raw, np.ndarray):
        return raw.tobytes()
    if isinstance(raw, np.ndarray):
        return _native(raw)
    return _native(np.asarray(raw))[()] if isinstance(raw, np.void) else raw


def _native(array: np.ndarray) -> np.ndarray:
    """A copy; of numbers in this machine's byte order, as tensors need it."""
    if array.dtype.kind in _FIXED_KINDS or array.dtype.hasobject:
        return np.array(array, array.dtype.newbyteorder("=") if array.dtype.kind in _FIXED_KINDS else array.dtype)
    # np.array would leave to chance what lies between the members of a compound
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


def _texts(raw: Any) -> object:
    if isinstance(raw, np.ndarray | list):
        return [_texts(one) for one in raw]
    data = bytes(raw)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


class Hdf5Writer:
    """Writes one shard of rows. Every sample has the fields of the first, of the same type and shape.

    int → int64, float → float64, NumPy scalars and arrays as they are, lists → arrays, str → UTF-8 strings, bytes and
    1-D arrays of differing lengths (said by *ragged*) → variable-length. The output depends on the input only.
    """

    def __init__(self, path: Path, *, compression: str | None = None, ragged: frozenset[str] = frozenset()) -> None:
        self._library = _library()
        if compression not in (None, "gzip", "lzf"):
            raise UsageError(f"HDF5 is written plain, with gzip or lzf, found compression {compression!r}")
        self._compression = compression
        self._ragged = ragged
        self._out = UnfailingFile(path)
        self._file = self._library.File(self._out, "w", libver=("earliest", "v110"))
        self._path = path
        self._datasets: dict[str, Any] = {}
        self._pending: dict[str, list[Any]] = {}
        self._kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._rows = self._flushed = self._pending_bytes = 0
        self._alive = True

    def add(self, key: str, values: Mapping[str, object]) -> tuple[FieldPlace, ...]:
        """Append a sample. UsageError names the field that the format cannot hold; nothing of the sample is written."""
        if not self._alive:
            raise UsageError("this shard is closed, or a write to it failed", "begin the shard again")
        if KEY_FIELD in values:
            raise UsageError(f"{key}: a field cannot be called {KEY_FIELD}: the key is kept there")
        given = {
            name: _storable(name, value, name in self._ragged) for name, value in {KEY_FIELD: key, **values}.items()
        }
        if self._rows == 0:
            _check_names(given)
            self._kinds = {name: _kind(value, name in self._ragged) for name, value in given.items()}
            self._pending = {name: [] for name in given}
        found = {name: _kind(value, name in self._ragged) for name, value in given.items()}
        if found != self._kinds:
            name = next(name for name in {**self._kinds, **found} if self._kinds.get(name) != found.get(name))
            raise UsageError(
                f"HDF5: sample {key!r}: field {name!r} is {_said(found.get(name))}, before it was "
                f"{_said(self._kinds.get(name))}: all rows of a dataset are alike"
            )
        for name, value in given.items():
            self._pending[name].append(value)
        self._rows += 1
        self._pending_bytes += sum(_size(value) for value in given.values())
        if self._pending_bytes >= 8 * CHUNK_BYTES:
            self._flush()
        return tuple(FieldPlace(name, 0, 0, row=self._rows - 1) for name in values)

    def close(self) -> int:
        """Write the end; gives the bytes of the shard."""
        if self._alive:
            self._flush()
            self._alive = False
            self._file.close()
            self._out.close()
            self._out.check()
        return self._path.stat().st_size

    def abandon(self) -> None:
        """Close the file, whatever it holds."""
        self._alive = False
        self._out.give_up()
        self._file.close()
        self._out.close()

    def _flush(self) -> None:
        self._alive = False
        for name, values in self._pending.items():
            if values:
                dataset = self._datasets.get(name)
                if dataset is None:
                    dataset = self._datasets[name] = self._create(name, values[0])
                dataset.resize(self._rows, axis=0)
                _fill(dataset, self._flushed, values)
                self._pending[name] = []
        self._out.check()
        self._flushed, self._pending_bytes = self._rows, 0
        self._alive = True

    def _create(self, name: str, first: Any) -> Any:
        stored, shape = self._kinds[name]
        if stored == "text":
            dtype = self._library.string_dtype("utf-8")
        elif stored == "bytes" or stored.startswith(_RAGGED):
            dtype = self._library.vlen_dtype(np.dtype(np.uint8 if stored == "bytes" else stored[len(_RAGGED) :]))
        else:
            dtype = np.dtype(stored)
        rows = min(CHUNK_ROWS_MAX, max(1, CHUNK_BYTES // max(16, _size(first))))
        made = self._file.create_dataset(
            name, (0, *shape), dtype, maxshape=(None, *shape), chunks=(rows, *shape), compression=self._compression,
            track_times=False,
        )  # fmt: skip
        if stored.startswith(_RAGGED):
            made.attrs[_ARRAY] = True
        return made


def _check_names(names: Mapping[str, object]) -> None:
    for name in names:
        parts = name.split("/")
        if not all(parts) or "." in parts or ".." in parts or "\0" in name:
            raise UsageError(f"field {name!r} cannot be the path of an HDF5 dataset")
        if any(other.startswith(f"{name}/") for other in names):
            raise UsageError(f"field {name!r} cannot be a dataset and a group: another field lies below it")


def _storable(name: str, value: object, ragged: bool) -> Any:
    """The value as it will be stored. UsageError for what HDF5 cannot hold."""
    if isinstance(value, str):
        if "\0" in value:
            raise UsageError(f"field {name!r}: a text with a NUL cannot be an HDF5 string")
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in _FIXED_KINDS or (ragged and array.ndim != 1) or not (array.size or ragged):
        said = f"{array.dtype} {array.shape or ''}".rstrip() + (", ragged" if ragged else "")
        raise UsageError(f"field {name!r}: HDF5 cannot hold a {type(value).__name__} of {said}")
    if array.nbytes > CHUNK_BYTES_MAX:
        raise UsageError(f"field {name!r}: {array.nbytes} bytes in one row, at most {CHUNK_BYTES_MAX} are written")
    return array


def _kind(value: Any, ragged: bool) -> tuple[str, tuple[int, ...]]:
    if isinstance(value, str):
        return "text", ()
    if isinstance(value, bytes):
        return "bytes", ()
    return (f"{_RAGGED}{value.dtype.str}", ()) if ragged else (value.dtype.str, value.shape)


def _said(kind: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if kind is None else f"{kind[0]} {kind[1] or ''}".strip()


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else int(value.nbytes)


def _fill(dataset: Any, first: int, values: list[Any]) -> None:
    """Write rows from *first* on. Those of varying length go one by one: h5py makes arrays of what happens to fit."""
    if isinstance(values[0], str):
        dataset[first:] = values
    elif dataset.dtype.hasobject:
        for row, value in enumerate(values, first):
            if len(value):
                dataset[row] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
    else:
        dataset[first:] = np.stack(values)


HDF5 = RowFormat("hdf5", owns, (b"\x89HDF\r\n\x1a\n",), scan_hdf5, open_hdf5)
