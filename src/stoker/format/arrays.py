"""Arrays of a fixed shape, back to back in a shard: for those whose decoding is the bottleneck. Nothing is decoded.

    "STOKARR1", u32 length and CRC-32C of a JSON list of [field, dtype, shape]       the head, blanks up to a page
    one row a sample: the bytes of its fields, in that order, nothing between them    the rows
    a JSON list of the samples' keys, u64 its length, u32 its CRC-32C, "1RRAKOTS"     the tail

All numbers little-endian. A field of a sample lies where the head and its number say, so that a shard whose tail is
lost still gives its whole rows, under their numbers. Shards are called `….arrays.bin`: a bare `.bin` is anybody's.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

from stoker.errors import SampleError, ShardError, UsageError
from stoker.format.base import FieldPlace, Finding, Findings, RangeReader, SampleEntry, ShardScan
from stoker.format.limits import (
    ARRAYS_HEAD_BYTES_MAX,
    ARRAYS_KEYS_BYTES_MAX,
    FIELD_NAME_BYTES_MAX,
    READ_BYTES_MAX,
    ROW_BYTES_MAX,
)

SUFFIX = ".arrays.bin"
MAGIC, END = b"STOKARR1", b"1RRAKOTS"
_HEAD, _TAIL = struct.Struct("<8sII"), struct.Struct("<QI8s")
_DTYPE = re.compile(r"[<>|]([biuf][1248]|c(8|16))")
ROWS_ALIGN_BYTES = 4096
"""The first row begins at a multiple of this, with blanks after the head's JSON: copying from page to page takes 15 %
less time than from an odd address (measured, rows of 8 KiB)."""
JUNK_BYTES_MAX = 1 << 20
"""How far before the end of a shard its end mark is looked for."""


@dataclass(frozen=True, slots=True)
class Column:
    """One field of every sample."""

    name: str
    dtype: str
    """As `numpy.dtype.str` says it: byte order, kind, bytes."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def codec(self) -> str:
        return f"np:{self.dtype}:{','.join(map(str, self.shape))}"


class Arrays:
    """The format of one shard of arrays."""

    name = "arrays"
    parts: tuple[str, ...] = ("codec",)

    def owns(self, key: str) -> bool:
        return key.lower().endswith(SUFFIX)

    def compression(self, head: bytes) -> str:
        return ""

    def scan(self, reader: RangeReader, *, skip_bytes_min: int) -> ShardScan:
        findings = Findings()
        try:
            columns, start = _head(reader)
        except ShardError as error:
            findings.add("damaged-shard", "error", reader.key, error.message.removeprefix(f"{reader.key}: "))
            return ShardScan((), findings.all())
        row_bytes = sum(column.nbytes for column in columns)
        keys = None
        try:
            keys, stop = _tail(reader, findings)
            if len(keys) * row_bytes != stop - start:
                raise ShardError(f"{len(keys)} keys, but {stop - start} bytes of rows of {row_bytes} bytes each")
            rows = len(keys)
        except ShardError as error:
            findings.add("damaged-shard", "error", reader.key, f"{error.message}: whole rows stay readable, by number")
            keys, rows = None, (reader.size - start) // row_bytes if row_bytes else 0
        if not rows:
            findings.add("empty-shard", "warning", reader.key, "has no samples")
        return ShardScan(_Rows(columns, start, rows, keys), findings.all())


class _Rows(Sequence[SampleEntry]):
    """The samples, made as they are asked for."""

    def __init__(self, columns: Sequence[Column], start: int, rows: int, keys: Sequence[str] | None) -> None:
        self._columns = columns
        self._start = start
        self._row_bytes = sum(column.nbytes for column in columns)
        self._rows = rows
        self._keys = keys

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(self._rows))]
        if not -self._rows <= row < self._rows:
            raise IndexError(row)
        row %= self._rows
        places = _places(self._columns, self._start + row * self._row_bytes)
        return SampleEntry(f"{row:08d}" if self._keys is None else self._keys[row], places)


def _places(columns: Sequence[Column], offset: int) -> tuple[FieldPlace, ...]:
    """Where the fields of the row that begins at *offset* lie."""
    places = []
    for column in columns:
        places.append(FieldPlace(column.name, offset, column.nbytes, column.codec))
        offset += column.nbytes
    return tuple(places)


def _head(reader: RangeReader) -> tuple[list[Column], int]:
    """The columns, and where the rows begin."""
    if reader.size < _HEAD.size:
        raise ShardError(f"{reader.key}: {reader.size} bytes, too few for a shard of arrays")
    magic, length, crc = _HEAD.unpack(reader.read(0, _HEAD.size))
    if magic != MAGIC:
        raise ShardError(f"{reader.key}: begins with {magic!r}, expected {MAGIC!r}")
    if length > min(ARRAYS_HEAD_BYTES_MAX, reader.size - _HEAD.size):
        raise ShardError(f"{reader.key}: a head of {length} bytes, the object has {reader.size}")
    data = reader.read(_HEAD.size, _HEAD.size + length) if length else b""
    if google_crc32c.value(data) != crc:
        raise ShardError(f"{reader.key}: the head's checksum is wrong")
    try:
        columns = [_column(*one) for one in json.loads(data)]
    except (ValueError, TypeError, RecursionError) as error:
        raise ShardError(f"{reader.key}: damaged head: {error}") from error
    return columns, _HEAD.size + length


def _column(name: Any, dtype: Any, shape: Any) -> Column:
    """A column after checks; ValueError or TypeError when it is none."""
    if not isinstance(name, str) or not 0 < len(name.encode()) <= FIELD_NAME_BYTES_MAX:
        raise ValueError(f"{str(name)[:80]!r} is no field name")
    if not all(type(side) is int and side >= 0 for side in shape) or not _DTYPE.fullmatch(dtype):
        raise ValueError(f"field {name!r}: {dtype!r} {shape!r} is no array")
    column = Column(name, dtype, tuple(shape))
    if column.nbytes > ROW_BYTES_MAX:
        raise ValueError(f"field {name!r}: {column.nbytes} bytes a sample, at most {ROW_BYTES_MAX} are allowed")
    return column


def _tail(reader: RangeReader, findings: Findings) -> tuple[list[str], int]:
    """The keys, and where the rows end."""
    start = max(0, reader.size - JUNK_BYTES_MAX)
    at = reader.read(start, reader.size).rfind(END)
    end = start + at + len(END)
    if at < 0 or end < _TAIL.size:
        raise ShardError("is cut: no end mark")
    length, crc, _ = _TAIL.unpack(reader.read(end - _TAIL.size, end))
    stop = end - _TAIL.size - length
    if length > ARRAYS_KEYS_BYTES_MAX or stop < _HEAD.size:
        raise ShardError(f"keys of {length} bytes, the object has {reader.size}")
    pieces = (
        reader.read(one, min(one + READ_BYTES_MAX, end - _TAIL.size))
        for one in range(stop, end - _TAIL.size, READ_BYTES_MAX)
    )
    data = b"".join(pieces)
    if google_crc32c.value(data) != crc:
        raise ShardError("the checksum of its keys is wrong")
    try:
        keys = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ShardError(f"damaged keys: {error}") from error
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ShardError("its keys are no list of texts")
    if end < reader.size:
        findings.take(
            Finding("junk", "warning", f"{reader.key}@{end}", f"{reader.size - end} bytes behind the end mark")
        )
    return keys, stop


@cache
def _parsed(codec: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    dtype, _, shape = codec.partition(":")
    if not _DTYPE.fullmatch(dtype) or not re.fullmatch(r"(\d+(,\d+)*)?", shape):
        raise ShardError(f"unknown codec np:{codec!r}", "index the dataset again")
    return np.dtype(dtype), tuple(int(side) for side in shape.split(",") if side)


def fixed_shape(codec: str) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and dtype of the values that a field's *codec* stands for, where it says them and memory has them so."""
    kind, _, rest = codec.partition(":")
    if kind != "np":
        return None
    dtype, shape = _parsed(rest)
    return (shape, dtype) if dtype.isnative else None


def decode_np(codec: str, data: bytes | memoryview) -> object:
    """The array over *data* itself, or the number, that "dtype:side,side" says. SampleError when the length differs."""
    dtype, shape = _parsed(codec)
    if len(data) != prod(shape) * dtype.itemsize:
        raise SampleError(f"expected {dtype} {shape} = {prod(shape) * dtype.itemsize} bytes, found {len(data)}")
    array = np.frombuffer(data, dtype).reshape(shape)
    return array if shape else array[()]


class ArraysWriter:
    """Writes one shard. Every sample has the fields of the first, of the same type and shape."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._columns: list[Column] | None = None
        self._keys: list[str] = []
        self._offset = 0
        self._alive = True

    def add(self, key: str, values: Mapping[str, object]) -> tuple[FieldPlace, ...]:
        """Append a sample of arrays and numbers. UsageError names the field that cannot be one of these."""
        if not self._alive:
            raise UsageError("this shard is closed, or a write to it failed", "begin the shard again")
        arrays = {name: _storable(name, value) for name, value in values.items()}
        found = columns_of(arrays)
        if self._columns is not None and found != self._columns:
            raise UsageError(
                f"arrays: sample {key!r} is {_said(found)}, the samples before it are {_said(self._columns)}",
                "give all samples the same fields, types and shapes",
            )
        self._alive = False
        if self._columns is None:
            self._begin(found)
        places = _places(found, self._offset)
        for array in arrays.values():
            self._write(array.tobytes())
        self._keys.append(key)
        self._alive = True
        return places

    def close(self) -> int:
        """Write the end; gives the bytes of the shard. The file stays open."""
        if self._alive:
            self._alive = False
            if self._columns is None:
                self._begin([])
            keys = json.dumps(self._keys, separators=(",", ":")).encode()
            self._write(keys)
            self._write(_TAIL.pack(len(keys), google_crc32c.value(keys), END))
        return self._offset

    def _begin(self, columns: list[Column]) -> None:
        self._columns = columns
        head = json.dumps([[one.name, one.dtype, list(one.shape)] for one in columns]).encode()
        head += b" " * (-(_HEAD.size + len(head)) % ROWS_ALIGN_BYTES)
        self._write(_HEAD.pack(MAGIC, len(head), google_crc32c.value(head)))
        self._write(head)

    def _write(self, data: bytes) -> None:
        self._offset += len(data)
        self._out.write(data)


def columns_of(values: Mapping[str, object]) -> list[Column]:
    """The columns of a shard whose samples are like this one. UsageError names the field that cannot be one."""
    return [_checked(name, _storable(name, value)) for name, value in values.items()]


def _storable(name: str, value: object) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(value) if not isinstance(value, bytes | bytearray | memoryview | str) else None
    except ValueError:  # lists of differing lengths
        array = None
    if array is None or array.dtype.kind not in "biufc" or not _DTYPE.fullmatch(array.dtype.str):
        found = type(value).__name__ if array is None else f"{type(value).__name__} of {array.dtype}"
        raise UsageError(f"field {name!r}: a shard of arrays holds numbers and arrays of numbers, found a {found}")
    return array


def _checked(name: str, array: np.ndarray[Any, Any]) -> Column:
    try:
        return _column(name, array.dtype.str, array.shape)
    except ValueError as error:
        raise UsageError(f"arrays: {error}") from error


def _said(columns: Sequence[Column]) -> str:
    return ", ".join(f"{one.name}: {one.dtype} {one.shape}" for one in columns) or "without fields"
