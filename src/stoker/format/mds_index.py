"""index.json of an MDS dataset: which shards it has, how they are compressed, what their bytes must hash to.

It comes from outside: a shard that it places outside the dataset, that has another format (csv, tsv, json: not yet) or
an encoding that is unknown, becomes a finding; the others stay usable. Hashes are those of the uncompressed shard.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import zstandard

from stoker.errors import MissingExtraError, ShardError, UsageError
from stoker.format.base import Findings
from stoker.format.limits import MDS_INDEX_BYTES_MAX, MDS_SHARDS_MAX, NAME_BYTES_MAX
from stoker.format.mds import Columns, description
from stoker.format.names import is_confined, printable
from stoker.format.webdataset import damage

INDEX_NAME = "index.json"
COMPRESSIONS = {"br": "br", "bz2": "bz2", "gz": "gzip", "snappy": "snappy", "zstd": "zstd"}
"""Their names in index.json ("zstd:3": before the level) → in `codec`."""
_XXHASH = ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")
_HASHLIB = frozenset(name for name in hashlib.algorithms_available if not name.startswith("shake"))


class Hasher(Protocol):
    """What hashlib and xxhash give alike."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def hasher(name: str) -> Hasher:
    """A fresh hash. UsageError for one that is unknown, MissingExtraError where the package xxhash is needed."""
    if name in _XXHASH:
        try:
            made: Hasher = getattr(importlib.import_module("xxhash"), name)()
            return made
        except ImportError as error:
            raise MissingExtraError(
                f"hash {name!r} needs the package xxhash, which is not installed", "pip install stoker[mds]"
            ) from error
    if name not in _HASHLIB:
        raise UsageError(f"unknown hash {name!r}")
    return hashlib.new(name, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class MDSShard:
    """One shard as index.json describes it."""

    raw: str
    """Its name, uncompressed, relative to index.json."""
    raw_bytes: int
    packed: str
    """Its name as compressed; "" when it is not."""
    packed_bytes: int
    compression: str
    """As `codec` calls it; "" for none."""
    samples: int
    columns: Columns
    hashes: Mapping[str, str]
    """Hash → hex digest of the uncompressed shard."""


def read_index(data: bytes, where: str, findings: Findings) -> list[MDSShard]:
    """The shards of an index.json, but those that *findings* speak of. ShardError when it is none."""
    if len(data) > MDS_INDEX_BYTES_MAX:
        raise ShardError(f"{where}: {len(data)} bytes, at most {MDS_INDEX_BYTES_MAX} are allowed")
    try:
        read = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{where}: damaged: {error}", "fetch or make it again") from None
    records = read.get("shards") if isinstance(read, dict) else None
    if not isinstance(records, list) or len(records) > MDS_SHARDS_MAX:
        raise ShardError(f"{where}: no index of an MDS dataset: expected a list of at most {MDS_SHARDS_MAX} shards")
    if read.get("version", 2) != 2:
        raise ShardError(f"{where}: MDS version {read['version']!r}, expected 2")
    shards = []
    for number, record in enumerate(records):
        try:
            shards.append(_shard(record, f"{where}: shard {number}"))
        except ShardError as error:
            findings.take(damage(error, where))
    return shards


def _shard(record: object, where: str) -> MDSShard:
    if not isinstance(record, dict):
        raise ShardError(f"{where}: expected a description, found {type(record).__name__}")
    kind = record.get("format")
    if kind != "mds":
        raise ShardError(f"{where}: format {kind!r}: not read yet, only 'mds' is", "write it again with MDSWriter")
    if record.get("version", 2) != 2:
        raise ShardError(f"{where}: MDS version {record['version']!r}, expected 2")
    compression, packed, packed_bytes = _compression(record, where), "", 0
    raw, raw_bytes = _file(record.get("raw_data"), f"{where}: raw_data")
    if compression:
        packed, packed_bytes = _file(record.get("zip_data"), f"{where}: zip_data")
    samples, hashes = record.get("samples"), record["raw_data"].get("hashes") or {}
    if type(samples) is not int or samples < 0:
        raise ShardError(f"{where}: expected a number of samples, found {samples!r}")
    if not isinstance(hashes, dict) or not all(isinstance(one, str) for one in hashes.values()):
        raise ShardError(f"{where}: expected hashes by name, found {hashes!r}")
    return MDSShard(
        raw, raw_bytes, packed, packed_bytes, compression, samples, Columns.from_json(record, where), hashes
    )


def _compression(record: Mapping[str, Any], where: str) -> str:
    told = record.get("compression")
    name = str(told or "").partition(":")[0]
    if name and name not in COMPRESSIONS:
        raise ShardError(f"{where}: unknown compression {told!r}", f"known are {', '.join(COMPRESSIONS)}")
    return COMPRESSIONS.get(name, "")


def _file(record: object, where: str) -> tuple[str, int]:
    """Name and bytes of a file that must lie inside the dataset."""
    name, size = (record.get("basename"), record.get("bytes")) if isinstance(record, dict) else (None, None)
    if not isinstance(name, str) or not name or type(size) is not int or size < 0:
        raise ShardError(f"{where}: expected a basename and its bytes, found {record!r}"[:500])
    if not is_confined(name) or "\0" in name or "\\" in name or len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise ShardError(f"{where}: basename {printable(name[:200])!r} leaves the dataset", "do not trust this dataset")
    return name, size


def compressed(data: bytes, compression: str) -> bytes:
    """A whole shard compressed as index.json calls it ("zstd", "gz", "bz2", "br", "snappy"), the same every time."""
    if compression == "zstd":
        return zstandard.ZstdCompressor(3, write_checksum=True).compress(data)
    if compression == "gz":
        return gzip.compress(data, 6, mtime=0)
    if compression == "bz2":
        return bz2.compress(data)
    packages = {"br": "brotli", "snappy": "cramjam"}
    if compression not in packages:
        raise UsageError(f"unknown compression {compression!r}", f"known are {', '.join(COMPRESSIONS)}")
    try:
        package = importlib.import_module(packages[compression])
    except ImportError as error:
        raise MissingExtraError(
            f"compression {compression!r} needs the package {packages[compression]}", "pip install stoker[mds]"
        ) from error
    return bytes(package.compress(data, quality=5) if compression == "br" else package.snappy.compress_raw(data))


def shard_record(
    basename: str, shard: bytes, columns: Columns, samples: int, *, compression: str = "", hashes: Iterable[str] = ()
) -> tuple[dict[str, Any], str, bytes]:
    """What index.json says of one shard, and the name and bytes of the file that is kept of it.

    *shard*: its uncompressed bytes; *compression* by the name of index.json; *hashes*: which ones to note.
    """
    algorithms = sorted(hashes)
    raw = _described(basename, shard, algorithms)
    record = description(columns, compression=compression or None, hashes=algorithms)
    record |= {"raw_data": raw, "samples": samples, "zip_data": None}
    if not compression:
        return record, basename, shard
    packed, name = compressed(shard, compression), f"{basename}.{compression}"
    record["zip_data"] = _described(name, packed, algorithms)
    return record, name, packed


def _described(name: str, data: bytes, algorithms: Sequence[str]) -> dict[str, Any]:
    hashes = {}
    for algorithm in algorithms:
        digest = hasher(algorithm)
        digest.update(data)
        hashes[algorithm] = digest.hexdigest()
    return {"basename": name, "bytes": len(data), "hashes": hashes}


def index_json(records: Sequence[Mapping[str, Any]]) -> bytes:
    """The bytes of index.json: the same for the same shards."""
    return json.dumps({"shards": list(records), "version": 2}, sort_keys=True).encode()
