"""TFRecord: records back to back, each with its length and two checksums; Examples are taken apart into fields.

    length  uint64      crc  masked CRC32C of the length      data      crc  masked CRC32C of the data

There is no header, no table and no end mark: a file cut between two records is a shorter file, and only reading all of
it tells what it holds. So a scan reads everything, and every checksum is verified. A record that is no Example, or one
without features, has one field, `record`. Keys are row numbers in eight digits, unless a feature `__key__` says more.
"""

from __future__ import annotations

import re
import struct
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO, overload

import google_crc32c

from stoker.errors import ShardError, UsageError
from stoker.format.base import FieldPlace, Findings, RangeReader, SampleEntry, ShardScan
from stoker.format.codec import Compressor, compressor, detect
from stoker.format.limits import NAME_BYTES_MAX, READ_BYTES_MAX, TFRECORD_BYTES_MAX, TFRECORD_RECORDS_MAX
from stoker.format.names import KEY_FIELD, row_key
from stoker.format.proto import Feature, encode, features
from stoker.format.webdataset import damage
from stoker.format.window import Window

HEAD_BYTES, FOOT_BYTES = 12, 4
RECORD_FIELD = "record"
"""The one field of a record that is no Example."""
_NAME = re.compile(
    r"\.(?:[a-z]+-)?(?:tfrecords?|tfrec|recordio)(?:$|[.-])|tfrecord.*\.gz$|-\d{5,}-of-\d{5,}(?:\.gz)?$", re.IGNORECASE
)
"""x.tfrecord, x.tfrecord.gz, x.tfrecord-00000-of-00012, x.tfe-tfrecord, x_tfrecord_eval.gz, x-00000-of-00012(.gz); but
not a folder called `tfrecords`."""
_NOT_NAME = re.compile(r"array_?record|\.(?:idx|index|json|txt|md|pbtxt|csv|tmp)$", re.IGNORECASE)
_PEEK_BYTES = 64


def masked(crc: int) -> int:
    """A CRC32C as TFRecord stores it (tensorflow/core/lib/hash/crc32c.h): rotated, so that it may cover itself."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc(data: bytes) -> int:
    return masked(google_crc32c.value(data))


def begins(head: bytes) -> bool:
    """Whether these bytes, at least 12, are the header of a record; compressed ones are expanded first."""
    if detect(head) == "gzip" or _is_zlib(head):
        head = _peek(head)
    return len(head) >= HEAD_BYTES and _crc(head[:8]) == int.from_bytes(head[8:HEAD_BYTES], "little")


def _is_zlib(head: bytes) -> bool:
    return len(head) > 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0


def _peek(head: bytes) -> bytes:
    """The first expanded bytes of a gzip or zlib stream."""
    try:
        return zlib.decompressobj(wbits=47).decompress(head, _PEEK_BYTES)
    except zlib.error:
        return b""


class TFRecord:
    """The format of one file of records (of its expanded bytes, when it is compressed as a whole)."""

    name = "tfrecord"
    parts: tuple[str, ...] = ("codec",)

    def owns(self, key: str) -> bool:
        base = key.rpartition("/")[2]
        return _NAME.search(base) is not None and _NOT_NAME.search(base) is None

    def compression(self, head: bytes) -> str:
        """By content. zlib has no magic number: it is believed when a valid record begins inside, or nothing is."""
        found = detect(head)
        return found or ("zlib" if _is_zlib(head) and begins(head) else "")

    def scan(self, reader: RangeReader, *, skip_bytes_min: int) -> ShardScan:
        findings = Findings()
        samples = _Records()
        try:
            _walk(reader, Window(reader, skip_bytes_min), samples, findings)
        except ShardError as error:
            findings.take(damage(error, reader.key))
        if not reader.size:
            findings.add("empty-shard", "warning", reader.key, "a file without records")
        return ShardScan(samples, findings.all())


class _Records(Sequence[SampleEntry]):
    """The samples of a file, made when they are asked for: a feature takes 16 bytes of memory, a record 24."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._codecs: list[str] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._keys: list[str | None] = []
        self._starts, self._ends = array("q"), array("q", [0])
        self._kinds, self._offsets, self._lengths = array("I"), array("I"), array("I")
        self._rows = array("I")

    def add(self, row: int, start: int, key: str | None, found: Iterable[Feature]) -> None:
        """Append the record of that row, which lies at *start*; without a *key* the row is it."""
        for one in found:
            kind = (one.name, one.codec)
            number = self._numbers.get(kind)
            if number is None:
                number = self._numbers[kind] = len(self._names)
                self._names.append(one.name)
                self._codecs.append(f"tf:{one.codec}" if one.codec else "")
            self._kinds.append(number)
            self._offsets.append(one.offset)
            self._lengths.append(one.length)
        self._ends.append(len(self._kinds))
        self._starts.append(start)
        self._rows.append(row)
        self._keys.append(key)

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, at: int) -> SampleEntry: ...
    @overload
    def __getitem__(self, at: slice) -> list[SampleEntry]: ...
    def __getitem__(self, at: int | slice) -> SampleEntry | list[SampleEntry]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        start, key = self._starts[at], self._keys[at]
        at %= len(self)
        places = [
            FieldPlace(self._names[kind], start + self._offsets[n], self._lengths[n], self._codecs[kind])
            for n, kind in enumerate(self._kinds[self._ends[at] : self._ends[at + 1]], self._ends[at])
        ]
        return SampleEntry(row_key(self._rows[at]) if key is None else key, tuple(places))


def _walk(reader: RangeReader, window: Window, samples: _Records, findings: Findings) -> None:
    """Put every whole record into *samples*. ShardError where the chain of lengths breaks."""
    offset = row = 0
    while offset < reader.size:
        where = f"{reader.key}@{offset}"
        length = _length(reader, window, offset, row, where)
        data = _record(reader, window, offset + HEAD_BYTES, length + FOOT_BYTES)
        stored, computed = int.from_bytes(data[length:], "little"), _crc(data[:length])
        if stored == computed:
            samples.add(row, offset + HEAD_BYTES, *_taken_apart(data[:length], where))
        else:
            findings.add(
                "damaged-record", "error", where,
                f"record {row}: data CRC mismatch: stored {stored:#010x}, the {length} bytes have {computed:#010x}",
            )  # fmt: skip
        offset += HEAD_BYTES + length + FOOT_BYTES
        row += 1
        if row > TFRECORD_RECORDS_MAX:
            raise ShardError(f"{where}: more than {TFRECORD_RECORDS_MAX} records in one shard", "cut it into several")


def _length(reader: RangeReader, window: Window, offset: int, row: int, where: str) -> int:
    """The length of the record at *offset*, checked by its checksum and by what is left of the file."""
    head = window.get(offset, HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        raise ShardError(
            f"{where}: record {row}: truncated: expected a header of {HEAD_BYTES} bytes, found {len(head)}", _REFETCH
        )
    length, stored = struct.unpack("<QI", head)
    if stored != _crc(head[:8]):
        raise ShardError(
            f"{where}: record {row}: length CRC mismatch: stored {stored:#010x}, the length has {_crc(head[:8]):#010x}",
            _hint(head) if row == 0 else _REFETCH,
        )
    left = reader.size - offset - HEAD_BYTES - FOOT_BYTES
    if length > left:
        raise ShardError(
            f"{where}: record {row}: truncated: expected {length} bytes and a checksum, "
            f"found {max(0, left + FOOT_BYTES)} bytes to the end",
            _REFETCH,
        )
    if length > TFRECORD_BYTES_MAX:
        raise ShardError(
            f"{where}: record {row}: {length} bytes, at most {TFRECORD_BYTES_MAX} are allowed",
            "cut the record into several",
        )
    return int(length)


_REFETCH = "fetch or make the file again"


def _hint(head: bytes) -> str:
    if head.startswith(b"version http"):
        return "it is a Git-LFS pointer: run `git lfs pull` where it was cloned"
    return "not a TFRecord: name the format if it is another"


def _record(reader: RangeReader, window: Window, offset: int, length: int) -> bytes:
    """The bytes of a record, in reads of bounded size."""
    if length <= READ_BYTES_MAX:
        return window.get(offset, length)
    stop = offset + length
    starts = range(offset, stop, READ_BYTES_MAX)
    return b"".join(reader.read(start, min(start + READ_BYTES_MAX, stop)) for start in starts)


def _taken_apart(record: bytes, where: str) -> tuple[str | None, list[Feature]]:
    """The key of a record, None where it has none, and its features."""
    key, found = None, []
    for feature in features(record):
        if feature.name == KEY_FIELD and not feature.codec:
            if feature.length > NAME_BYTES_MAX:
                raise ShardError(f"{where}: a key of {feature.length} bytes, at most {NAME_BYTES_MAX} are allowed")
            key = record[feature.offset : feature.offset + feature.length].decode("utf-8", "backslashreplace")
        else:
            found.append(feature)
    return key, found or [Feature(RECORD_FIELD, 0, len(record), "")]


class TFRecordWriter:
    """Writes one file of Examples: the same bytes for the same samples, always.

    *keys*: keep each sample's key in a feature `__key__`; without it keys must be what rows give.
    """

    def __init__(self, out: BinaryIO, *, compression: str = "", keys: bool = True) -> None:
        self._out = out
        self._compressor: Compressor | None = compressor(compression) if compression else None
        self._keys = keys
        self._offset = self._stored = self._row = 0
        self._alive = True

    def add(self, key: str, values: Mapping[str, object]) -> tuple[FieldPlace, ...]:
        """Append a sample. UsageError names a field whose value the format cannot hold; nothing is written then."""
        if not self._alive:
            raise UsageError("this shard is closed, or a write to it failed", "begin the shard again")
        record = self._example(key, values)
        records = _Records()
        records.add(self._row, self._offset + HEAD_BYTES, *_taken_apart(record, key))
        head = len(record).to_bytes(8, "little")
        self._alive = False
        for piece in (head, _crc(head).to_bytes(4, "little"), record, _crc(record).to_bytes(4, "little")):
            self._offset += len(piece)
            self._store(piece if self._compressor is None else self._compressor.compress(piece))
        self._row += 1
        self._alive = True
        return records[0].fields

    def close(self) -> int:
        """Write the end of the compressed stream; gives the bytes that the file has got. The file stays open."""
        if self._alive:
            self._alive = False
            if self._compressor is not None:
                self._store(self._compressor.flush())
        return self._stored

    def _example(self, key: str, values: Mapping[str, object]) -> bytes:
        if KEY_FIELD in values:
            raise UsageError(f"{key}: a field cannot be called {KEY_FIELD}: the key is kept there")
        if not self._keys and key != row_key(self._row):
            raise UsageError(f"key {key!r} in row {self._row}: keys are not kept, expected {row_key(self._row)!r}")
        if len(key.encode()) > NAME_BYTES_MAX:
            raise UsageError(f"a key of {len(key)} characters, at most {NAME_BYTES_MAX} bytes are allowed")
        record = encode({**values, KEY_FIELD: key} if self._keys else values)
        if len(record) > TFRECORD_BYTES_MAX:
            raise UsageError(f"{key}: a record of {len(record)} bytes, at most {TFRECORD_BYTES_MAX} are allowed")
        return record

    def _store(self, data: bytes) -> None:
        self._stored += len(data)
        self._out.write(data)
