"""How an index lies on disk: file names, Arrow schemas, the manifest. Version 1.

    _stoker/manifest.json   written last: its presence commits the index; names, counts, sizes and digests of the rest
    _stoker/index.arrow     one row a sample, in record batches of 65,536 but the last: sample >> 16 is the batch
    _stoker/shards.arrow    one row a shard: its object and the number of its first sample
    _stoker/objects.arrow   raw files only: one row a file, which the fields of samples point to

All uncompressed, so that a memory map is the whole of opening. Text that may be no UTF-8 (keys of files) is kept as
bytes. In the tables of objects an empty version or digest means that none is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from stoker.errors import ShardError

VERSION = 1
BATCH_SHIFT = 16
BATCH = 1 << BATCH_SHIFT
MANIFEST_FILE, INDEX_FILE, SHARDS_FILE, OBJECTS_FILE = "manifest.json", "index.arrow", "shards.arrow", "objects.arrow"
MANIFEST_BYTES_MAX = 256 << 20
FIELD_NAMES_MAX = 65_535
"""Distinct field names (and codecs) of a dataset: they are numbered with 16 bits."""
KEY_BYTES_PER_BATCH_MAX = 1 << 30
"""Bytes of all keys (or texts of one column) in a batch: Arrow counts them with 31 bits."""

PARTS = {"codec": pa.uint16(), "row": pa.int64(), "object": pa.int64()}
"""What a field's place may have beyond name, offset and length; a dataset keeps those that it needs."""
COLUMN_TYPES: dict[type, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
OBJECT_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("size", pa.int64()),
        ("version", pa.binary()),
        ("digest", pa.binary()),
        ("compression", pa.binary()),
        ("expanded_size", pa.int64()),
    ]
)
SHARD_SCHEMA = OBJECT_SCHEMA.append(pa.field("start", pa.int64())).append(pa.field("samples", pa.int64()))


def place_type(parts: Sequence[str]) -> pa.StructType:
    """The Arrow type of one field's place."""
    always = [("name", pa.uint16()), ("offset", pa.int64()), ("length", pa.int64())]
    return pa.struct([*always, *((part, PARTS[part]) for part in parts)])


def index_schema(parts: Sequence[str], columns: Mapping[str, type]) -> pa.Schema:
    """The schema of `index.arrow`."""
    fields = [("key", pa.string()), ("fields", pa.list_(place_type(parts)))]
    if columns:
        fields.append(("columns", pa.struct([(name, COLUMN_TYPES[kind]) for name, kind in columns.items()])))
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the index."""

    size: int
    digest: str
    """Tree digest (`store.digest`)."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is true of the whole dataset, and the commit mark of its index."""

    format: str
    samples: int
    shards: int
    shard_bytes: int
    """Stored bytes of all shards."""
    plan: str
    """BLAKE3 over format and the ordered (name, size, samples) of the shards, as 64 hex digits."""
    fields: Mapping[str, int]
    """Field name → samples that have it, in the order of the numbers that `index.arrow` uses."""
    files: Mapping[str, FileRecord]
    codecs: tuple[str, ...] = ("",)
    columns: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The same bytes for the same index, always."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1, ensure_ascii=True).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Manifest:
        """ShardError when the bytes are no manifest of a version known here."""
        try:
            read = json.loads(data)
            version = read.pop("version")
            if version == VERSION:
                return _checked(cls(**read))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ShardError(f"{where}: damaged manifest: {error!r}", _REBUILD) from error
        raise ShardError(
            f"{where}: index version {version!r}, this stoker reads version {VERSION}", "update stoker, or index again"
        )


_REBUILD = "delete the `_stoker` folder and index again"


def _checked(read: Manifest) -> Manifest:
    """The manifest with its parts as the types that they claim; ValueError or TypeError if they are not."""
    counts = (read.samples, read.shards, read.shard_bytes, *read.fields.values())
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("a count that is no whole number")
    texts = (read.format, read.plan, *read.codecs, *(read.classes or ()), *read.columns.values())
    if not all(isinstance(text, str) for text in texts) or not isinstance(read.extra, dict):
        raise ValueError("a text that is none")
    # what JSON gave is untyped: a record that is none raises TypeError, which the caller tells
    files = {name: FileRecord(**dict(record)) for name, record in read.files.items()}  # type: ignore[call-overload]
    if not {INDEX_FILE, SHARDS_FILE} <= set(files) <= {INDEX_FILE, SHARDS_FILE, OBJECTS_FILE}:
        raise ValueError(f"unexpected files {sorted(files)}")
    if not all(type(record.size) is int and isinstance(record.digest, str) for record in files.values()):
        raise ValueError("a file without size and digest")
    return Manifest(
        read.format, read.samples, read.shards, read.shard_bytes, read.plan, dict(read.fields), files,
        tuple(read.codecs), dict(read.columns), None if read.classes is None else tuple(read.classes), read.extra,
    )  # fmt: skip
