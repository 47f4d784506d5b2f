"""Scanning the shards of a store in parallel. Compression is found by content; such a shard is expanded on the side."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stoker.errors import ShardError, StoreError
from stoker.flow import Progress, parallel_map
from stoker.format import Format, RangeReader, ShardScan
from stoker.format.codec import MAGIC_BYTES, expand
from stoker.format.limits import EXPANDED_BYTES_MAX
from stoker.format.webdataset import damage
from stoker.index.entry import ObjectRef
from stoker.machine import scratch_folder
from stoker.store import HasPaths, innermost
from stoker.store.base import ByteRange, ObjectInfo, Store

CHUNK_BYTES = 8 << 20
SKIP_BYTES_MIN_LOCAL, SKIP_BYTES_MIN_REMOTE = 64 << 10, 1 << 20
"""A gap of so many bytes is skipped rather than read: about what a medium reads in the time of one round trip."""


class StoreReader:
    """An object of a store as a RangeReader; what was read of its head already is not read again."""

    def __init__(self, store: Store, info: ObjectInfo, head: bytes) -> None:
        self._store = store
        self._info = info
        self._head = head
        self.key = info.key
        self.size = info.size

    def read(self, start: int, stop: int) -> bytes:
        if stop <= len(self._head):
            return self._head[start:stop]
        return self._store.get_ranges(self.key, [ByteRange(start, stop)], version=self._info.version)[0]

    def chunks(self) -> Iterator[bytes]:
        """The whole object, in pieces."""
        for start in range(0, self.size, CHUNK_BYTES):
            yield self.read(start, min(start + CHUNK_BYTES, self.size))


class FileReader:
    """An open file as a RangeReader."""

    def __init__(self, key: str, file: BinaryIO, size: int) -> None:
        self.key = key
        self.size = size
        self._file = file

    def read(self, start: int, stop: int) -> bytes:
        self._file.seek(start)
        return self._file.read(stop - start)


@dataclass(frozen=True, slots=True)
class Scanned:
    """One shard and what it holds."""

    ref: ObjectRef
    scan: ShardScan


def skip_bytes_min(store: Store) -> int:
    """From which length on a gap in an object of this store is skipped."""
    return SKIP_BYTES_MIN_LOCAL if isinstance(innermost(store), HasPaths) else SKIP_BYTES_MIN_REMOTE


def scan_shard(
    store: Store, info: ObjectInfo, kind: Format, *, scratch: Path | None = None, compressed: str | None = None
) -> Scanned:
    """Read the structure of one shard. Damage becomes findings; only the store's own errors are raised.

    *compressed*: with what, where something else than its content says so; "" = not at all.
    """
    skip = skip_bytes_min(store)
    head = b""
    if info.size:
        span = ByteRange(0, min(info.size, max(skip // 16, MAGIC_BYTES)))
        head = store.get_ranges(info.key, [span], version=info.version)[0]
    reader = StoreReader(store, info, head)
    compression = kind.compression(head) if compressed is None else compressed
    if compression:
        return _scan_compressed(reader, info, kind, compression, scratch)
    ref = ObjectRef(info.key, info.size, info.version, expanded_size=info.size)
    return Scanned(ref, kind.scan(reader, skip_bytes_min=skip))


def _scan_compressed(
    reader: StoreReader, info: ObjectInfo, kind: Format, compression: str, scratch: Path | None
) -> Scanned:
    """Expand into an unnamed temporary file first. When that fails, what came out is scanned all the same."""
    found = []
    with tempfile.TemporaryFile(dir=scratch or scratch_folder()) as file:
        try:
            expand(reader.chunks(), compression, file, bytes_max=EXPANDED_BYTES_MAX, where=info.key)
        except ShardError as error:
            found.append(damage(error, info.key))
        except StoreError:
            raise
        except OSError as error:
            where = scratch or scratch_folder()
            raise StoreError(
                f"{info.key}: cannot be expanded into {where}: {error}", "set TMPDIR to a larger disk"
            ) from error
        size = file.tell()
        expanded: RangeReader = FileReader(info.key, file, size)
        scan = kind.scan(expanded, skip_bytes_min=SKIP_BYTES_MIN_LOCAL)
    ref = ObjectRef(info.key, info.size, info.version, compression=compression, expanded_size=size)
    return Scanned(ref, ShardScan(scan.samples, (*found, *scan.findings)))


def scan_shards(
    store: Store, infos: Sequence[ObjectInfo], kind: Format, *, workers: int, scratch: Path | None, progress: Progress
) -> Iterator[Scanned]:
    """Every shard in the order given, *workers* at a time and at most twice as many in memory."""
    done_bytes = 0
    scans = parallel_map(lambda info: scan_shard(store, info, kind, scratch=scratch), infos, workers=workers)
    for done, scanned in enumerate(scans, 1):
        done_bytes += scanned.ref.size
        progress(done, len(infos), done_bytes)
        yield scanned
