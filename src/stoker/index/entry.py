"""What the index says about one place: which object, which bytes of it, and how to know it is still the same one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object of the dataset's store as it was when indexed. For tars an object is a shard, for raw files a file."""

    key: str
    size: int
    """Bytes in the store."""
    version: str | None
    """ETag, or mtime_ns and inode; None where unknown. Compared when the object is first touched."""
    digest: str | None = None
    """Tree digest (`store.digest`) of the stored bytes as 64 hex digits, when the packer wrote it down."""
    compression: str = ""
    """"" or "gzip", "zstd", "bz2", "xz": the object is compressed as a whole and ranges count in the expanded bytes."""
    expanded_size: int = 0
    """Bytes after expansion; equal to `size` when there is no compression."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one field of one sample lies: bytes [start, stop) of the (expanded) object."""

    object: ObjectRef
    start: int
    stop: int
    codec: str = ""
    """How the field's bytes are encoded beyond its name; "" = as the field's name says."""
    row: int = -1
    """Row of the shard for formats whose samples are rows; -1 elsewhere."""


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: the unit of order and cache."""

    name: str
    """Key relative to the dataset's URL; for raw files the folder's path ("" = the root)."""
    size: int
    samples: int
    version: str | None
    digest: str | None
