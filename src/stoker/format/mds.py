"""MDS shards, version 2, as the streaming library writes them; index.json, which names them, is in `mds_index`.

    samples uint32 · offsets uint32[samples + 1] · a JSON that describes the columns · the samples
    a sample: the lengths of its columns of variable size, uint32 each · the bytes of all columns, in their order

Samples have no names: their keys are row numbers in eight digits, unless a column `__key__` says more (our writer keeps
it first). Where at most one column varies, all places follow from the offsets, and samples are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, overload

import numpy as np

from stoker.errors import ShardError, UsageError
from stoker.format.base import FieldPlace, Findings, RangeReader, SampleEntry, ShardScan
from stoker.format.codec import detect
from stoker.format.limits import (
    FIELD_NAME_BYTES_MAX,
    MDS_COLUMNS_MAX,
    MDS_HEADER_BYTES_MAX,
    MDS_SAMPLES_MAX,
    NAME_BYTES_MAX,
    READ_BYTES_MAX,
)
from stoker.format.mds_values import codec_of, encode, encoding_for, parse
from stoker.format.names import KEY_FIELD, row_key
from stoker.format.webdataset import damage
from stoker.format.window import Window

SUFFIXES = (".mds", ".mds.zstd", ".mds.zst", ".mds.gz", ".mds.br", ".mds.bz2", ".mds.snappy")
SHARD_BYTES_MAX = (1 << 32) - 1
"""Offsets have 32 bits."""
_REFETCH = "fetch or make the shard again"


@dataclass(frozen=True, slots=True)
class Columns:
    """What a shard's samples are made of."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    """Bytes of each column; None where they differ from sample to sample."""

    @classmethod
    def of(cls, names: Sequence[str], encodings: Sequence[str]) -> Columns:
        """Columns with the sizes that follow from their encodings. ShardError for an encoding that is unknown."""
        return cls(tuple(names), tuple(encodings), tuple(parse(encoding).size for encoding in encodings))

    @classmethod
    def from_json(cls, record: Mapping[str, Any], where: str) -> Columns:
        """The columns of a shard's description; ShardError when it is none, or its sizes contradict its encodings."""
        names, encodings, sizes = (record.get(f"column_{part}") for part in ("names", "encodings", "sizes"))
        if not (isinstance(names, list) and isinstance(encodings, list) and isinstance(sizes, list)):
            raise ShardError(f"{where}: expected lists of column names, encodings and sizes", _REFETCH)
        if not len(names) == len(encodings) == len(sizes) == len(set(map(str, names))) <= MDS_COLUMNS_MAX or not names:
            raise ShardError(
                f"{where}: {len(names)} column names, {len(encodings)} encodings and {len(sizes)} sizes; expected "
                f"as many of each, at most {MDS_COLUMNS_MAX}, none twice"
            )
        if not all(isinstance(text, str) and len(text) <= FIELD_NAME_BYTES_MAX for text in (*names, *encodings)):
            raise ShardError(f"{where}: a column's name or encoding is no text of {FIELD_NAME_BYTES_MAX} characters")
        try:
            columns = cls.of(names, encodings)
        except ShardError as error:
            raise ShardError(f"{where}: {error.message}", error.hint) from None
        if list(columns.sizes) != sizes:
            raise ShardError(f"{where}: column sizes {sizes}, their encodings have {list(columns.sizes)}")
        return columns

    @property
    def varying(self) -> int:
        """How many columns have no fixed size."""
        return sum(size is None for size in self.sizes)

    @property
    def fixed_bytes(self) -> int:
        """Bytes that every sample has."""
        return 4 * self.varying + sum(size or 0 for size in self.sizes)

    def lay(self, start: int, lengths: Sequence[int]) -> dict[str, FieldPlace]:
        """The places of a sample at *start* whose columns of variable size have these *lengths*."""
        places, at, left = {}, start + 4 * self.varying, iter(lengths)
        for name, encoding, size in zip(self.names, self.encodings, self.sizes, strict=True):
            length = next(left) if size is None else size
            places[name] = FieldPlace(name, at, length, codec_of(encoding))
            at += length
        return places


class _Samples(Sequence[SampleEntry]):
    """The samples of a shard, made when they are asked for: a row costs a few bytes of memory."""

    def __init__(self, columns: Columns, rows: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        """Of *rows*: where each sample starts, and the lengths [rows, varying] of its columns of variable size."""
        self._columns, self._rows, self._starts, self._lengths = columns, rows, starts, lengths
        self.keys: list[str] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> SampleEntry: ...
    @overload
    def __getitem__(self, at: slice) -> list[SampleEntry]: ...
    def __getitem__(self, at: int | slice) -> SampleEntry | list[SampleEntry]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        places = self.places(at)
        key = row_key(int(self._rows[at])) if self.keys is None else self.keys[at]
        return SampleEntry(key, tuple(place for place in places.values() if place.name != KEY_FIELD))

    def places(self, at: int) -> dict[str, FieldPlace]:
        """Where all columns of a sample lie, its key among them."""
        return self._columns.lay(int(self._starts[at]), self._lengths[at].tolist())


class MDS:
    """The format of one shard (of its expanded bytes, when it is compressed as a whole), by its own description."""

    name = "mds"
    parts: tuple[str, ...] = ("codec",)

    def owns(self, key: str) -> bool:
        return key.lower().endswith(SUFFIXES)

    def compression(self, head: bytes) -> str:
        """Only index.json tells all of them: br and snappy have no mark of their own."""
        return detect(head)

    def scan(self, reader: RangeReader, *, skip_bytes_min: int) -> ShardScan:
        return scan_mds(reader, skip_bytes_min=skip_bytes_min)


def scan_mds(
    reader: RangeReader, *, skip_bytes_min: int, columns: Columns | None = None, samples: int = -1
) -> ShardScan:
    """The samples of a shard. What index.json says of its *columns* and number of *samples* is compared with it."""
    findings = Findings()
    found: Sequence[SampleEntry] = []
    try:
        offsets, described = _head(reader)
        if columns is not None and described is not None and described != columns:
            raise ShardError(f"{reader.key}: the shard has columns {described}, index.json says {columns}", _REFETCH)
        columns = columns or described
        if samples >= 0 and samples != len(offsets) - 1:
            message = f"index.json says {samples} samples, the shard has {len(offsets) - 1}"
            findings.add("sample-count", "error", reader.key, message)
        if columns is not None:
            found = _samples(reader, columns, offsets, findings, Window(reader, skip_bytes_min))
        elif len(offsets) > 1:
            raise ShardError(f"{reader.key}: the shard does not describe its columns", "keep index.json beside it")
        _judge_end(reader, offsets, findings)
    except ShardError as error:
        findings.take(damage(error, reader.key))
    return ShardScan(found, findings.all())


def _read(reader: RangeReader, start: int, stop: int) -> bytes:
    """Bytes in reads of bounded size."""
    steps = range(start, stop, READ_BYTES_MAX)
    return b"".join(reader.read(at, min(at + READ_BYTES_MAX, stop)) for at in steps)


def _head(reader: RangeReader) -> tuple[np.ndarray, Columns | None]:
    """The offsets (int64, one more than samples) and what the shard says of its columns."""
    key, size = reader.key, reader.size
    if size < 8:
        raise ShardError(f"{key}: no MDS shard: expected at least 8 bytes, found {size}", _REFETCH)
    count = int.from_bytes(reader.read(0, 4), "little")
    table = 4 * (count + 2)
    if count > MDS_SAMPLES_MAX or table > size:
        raise ShardError(
            f"{key}: the shard says it has {count} samples, which takes {table} bytes of offsets; it has {size} bytes, "
            f"and at most {MDS_SAMPLES_MAX} samples are allowed",
            _REFETCH,
        )
    offsets = np.frombuffer(_read(reader, 4, table), "<u4").astype(np.int64)
    if offsets[0] < table or (np.diff(offsets) < 0).any():
        raise ShardError(f"{key}@4: the offsets of samples do not ascend from byte {table} on", _REFETCH)
    header_bytes = int(offsets[0]) - table
    if header_bytes > MDS_HEADER_BYTES_MAX or offsets[0] > size:
        raise ShardError(
            f"{key}@{table}: a description of {header_bytes} bytes; {size - table} are left, "
            f"at most {MDS_HEADER_BYTES_MAX} are allowed",
            _REFETCH,
        )
    return offsets, _described(_read(reader, table, table + header_bytes), f"{key}@{table}")


def _described(header: bytes, where: str) -> Columns | None:
    if not header:
        return None
    try:
        record = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{where}: damaged description of the columns: {error}", _REFETCH) from None
    if not isinstance(record, dict) or record.get("format") != "mds" or record.get("version") != 2:
        raise ShardError(f"{where}: expected the description of an MDS shard of version 2, found {header[:80]!r}")
    return Columns.from_json(record, where)


def _judge_end(reader: RangeReader, offsets: np.ndarray, findings: Findings) -> None:
    end = int(offsets[-1])
    if end > reader.size:
        raise ShardError(
            f"{reader.key}@{reader.size}: shard is cut: its samples end at byte {end}, found {reader.size} bytes",
            _REFETCH,
        )
    if end < reader.size:
        message = f"{reader.size - end} bytes follow the last sample"
        findings.add("trailing-junk", "warning", f"{reader.key}@{end}", message)
    if len(offsets) == 1:
        findings.add("empty-shard", "warning", reader.key, "a shard without samples")


def _samples(
    reader: RangeReader, columns: Columns, offsets: np.ndarray, findings: Findings, window: Window
) -> Sequence[SampleEntry]:
    """Those samples that lie wholly in the shard and whose columns fill them."""
    starts, spans = offsets[:-1], np.diff(offsets)
    lengths = np.zeros((len(starts), columns.varying), np.int64)
    whole = offsets[1:] <= reader.size
    if columns.varying == 1:
        lengths[:, 0] = spans - columns.fixed_bytes
    elif columns.varying:
        head = 4 * columns.varying
        for row in np.flatnonzero(whole & (spans >= head)).tolist():
            lengths[row] = np.frombuffer(window.get(int(starts[row]), head), "<u4")
    fits = (lengths.sum(axis=1) + columns.fixed_bytes == spans) & (lengths >= 0).all(axis=1)
    for row in np.flatnonzero(whole & ~fits).tolist():
        found = int(lengths[row].sum()) + columns.fixed_bytes
        message = f"sample {row}: its columns take {found} bytes, the sample has {spans[row]}"
        findings.add("damaged-sample", "error", f"{reader.key}@{starts[row]}", message)
    rows = np.flatnonzero(whole & fits)
    samples = _Samples(columns, rows, starts[rows], lengths[rows])
    if KEY_FIELD in columns.names:
        samples.keys = [_key(samples.places(at)[KEY_FIELD], window, reader.key) for at in range(len(samples))]
    return samples


def _key(place: FieldPlace, window: Window, shard: str) -> str:
    if place.length > NAME_BYTES_MAX:
        raise ShardError(
            f"{shard}@{place.offset}: a key of {place.length} bytes, at most {NAME_BYTES_MAX} are allowed", _REFETCH
        )
    return window.get(place.offset, place.length).decode("utf-8", "backslashreplace")


class MDSWriter:
    """Writes one shard: the same bytes for the same samples, always.

    The table of offsets stands before the samples, so they are kept in memory until `close`. *columns*: name →
    encoding; None: taken from the first sample. *keys*: keep each sample's key in a column `__key__`; without it keys
    must be what rows give. The shard is written uncompressed: see `mds_index.compressed`.
    """

    def __init__(self, out: BinaryIO, *, columns: Mapping[str, str] | None = None, keys: bool = True) -> None:
        self._out = out
        self._keys = keys
        self._samples: list[bytes] = []
        self._bytes = 0
        self._alive = True
        self.columns: Columns | None = None
        """What the samples are made of; None before the first."""
        self._description = b""
        if columns is not None:
            self._begin(columns)

    def add(self, key: str, values: Mapping[str, object]) -> tuple[FieldPlace, ...]:
        """Append a sample. Places count from the first sample's first byte, which is known at `close` (`start`).

        UsageError names a field whose value its column cannot hold; nothing is kept of the sample then.
        """
        if not self._alive:
            raise UsageError("this shard is closed, or a write to it failed", "begin the shard again")
        columns = self.columns or self._begin(_inferred(key, values))
        data, lengths = self._encoded(columns, key, values)
        if self.start + 4 + self._bytes + len(data) > SHARD_BYTES_MAX or len(self._samples) == MDS_SAMPLES_MAX:
            raise UsageError(
                f"{key}: the shard would exceed {SHARD_BYTES_MAX} bytes or {MDS_SAMPLES_MAX} samples", "begin another"
            )
        places = columns.lay(self._bytes, lengths)
        self._samples.append(data)
        self._bytes += len(data)
        return tuple(place for place in places.values() if place.name != KEY_FIELD)

    @property
    def start(self) -> int:
        """Where the first sample will lie, if no more are added."""
        return 4 * (len(self._samples) + 2) + len(self._description)

    def close(self) -> int:
        """Write the shard; gives its bytes. The file stays open."""
        if not self._alive:
            return 0
        self._alive = False
        ends = np.cumsum([0, *(len(sample) for sample in self._samples)]) + self.start
        head = np.array([len(self._samples), *ends], "<u4").tobytes() + self._description
        self._out.write(head)
        for sample in self._samples:
            self._out.write(sample)
        return len(head) + self._bytes

    def _begin(self, encodings: Mapping[str, str]) -> Columns:
        """Fix the columns: the key in front and the others by name, as the streaming library orders them."""
        if KEY_FIELD in encodings:
            raise UsageError(f"a field cannot be called {KEY_FIELD}: the key is kept there")
        names = sorted(encodings)
        told = [encodings[name] for name in names]
        self.columns = Columns.of([KEY_FIELD, *names], ["str", *told]) if self._keys else Columns.of(names, told)
        self._description = json.dumps(description(self.columns), sort_keys=True).encode()
        return self.columns

    def _encoded(self, columns: Columns, key: str, values: Mapping[str, object]) -> tuple[bytes, list[int]]:
        """A sample's bytes, and the lengths of its columns of variable size."""
        row = len(self._samples)
        if not self._keys and key != row_key(row):
            raise UsageError(f"key {key!r} in row {row}: keys are not kept, expected {row_key(row)!r}")
        if len(key.encode()) > NAME_BYTES_MAX:
            raise UsageError(f"a key of {len(key)} characters, at most {NAME_BYTES_MAX} bytes are allowed")
        kept = {**values, KEY_FIELD: key} if self._keys else values
        if KEY_FIELD in values or kept.keys() != set(columns.names):
            raise UsageError(
                f"{key}: fields {', '.join(sorted(values))}, the shard's columns are {', '.join(columns.names)}",
                "samples of an MDS shard have all the same fields",
            )
        parts = [encode(e, kept[name], name) for name, e in zip(columns.names, columns.encodings, strict=True)]
        lengths = [len(part) for part, size in zip(parts, columns.sizes, strict=True) if size is None]
        if max(lengths, default=0) > SHARD_BYTES_MAX:
            raise UsageError(f"{key}: a field of {max(lengths)} bytes, at most {SHARD_BYTES_MAX} are allowed")
        return b"".join([np.array(lengths, "<u4").tobytes(), *parts]), lengths


def description(columns: Columns, *, compression: str | None = None, hashes: Sequence[str] = ()) -> dict[str, Any]:
    """What a shard and index.json say of the columns."""
    return {
        "column_encodings": list(columns.encodings),
        "column_names": list(columns.names),
        "column_sizes": list(columns.sizes),
        "compression": compression,
        "format": "mds",
        "hashes": list(hashes),
        "size_limit": None,
        "version": 2,
    }


def _inferred(key: str, values: Mapping[str, object]) -> dict[str, str]:
    """Encodings that keep the values of a first sample."""
    encodings = {}
    for name, value in values.items():
        encoding = encoding_for(value)
        if encoding is None:
            kind = f"array of {value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise UsageError(f"{key}: field {name!r}: mds cannot hold this {kind}", "name the encodings of the columns")
        encodings[name] = encoding
    return encodings
