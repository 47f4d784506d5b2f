"""Shards whose samples are rows that a library reads from a file (HDF5, tables), on the way into an index.

The library needs a file: one of this machine is read where it lies, an object of a remote store is fetched into a file
without a name, so that a kill leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.errors import StoreError
from stoker.flow import Progress, parallel_map
from stoker.format import ROW_SHARDS, Finding, ShardScan
from stoker.index.entry import ObjectRef
from stoker.index.scan import CHUNK_BYTES
from stoker.index.source import Shard
from stoker.machine import scratch_folder
from stoker.store import HasPaths, innermost
from stoker.store.base import ByteRange, ObjectInfo, Store


@dataclass(frozen=True, slots=True)
class RowShards:
    """The objects *infos* as shards of rows."""

    store: Store
    format: str
    infos: Sequence[ObjectInfo]
    findings: tuple[Finding, ...]
    workers: int
    scratch: Path | None
    progress: Progress
    columns: Mapping[str, type] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    parts: tuple[str, ...] = ("row",)

    def shards(self) -> Iterator[Shard]:
        done_bytes = 0
        scans = parallel_map(self._scan, self.infos, workers=self.workers)
        for done, (info, scan) in enumerate(zip(self.infos, scans, strict=True), 1):
            done_bytes += info.size
            self.progress(done, len(self.infos), done_bytes)
            ref = ObjectRef(info.key, info.size, info.version, expanded_size=info.size)
            yield Shard(ref, scan.samples, scan.findings)

    def _scan(self, info: ObjectInfo) -> ShardScan:
        with file_of(self.store, info, self.scratch) as path:
            return ROW_SHARDS[self.format].scan(path, info.key)


@contextlib.contextmanager
def file_of(store: Store, info: ObjectInfo, scratch: Path | None) -> Iterator[Path]:
    """The object as a file that can be opened by name until the end of the block, by child processes too."""
    bottom = innermost(store)
    if isinstance(bottom, HasPaths):
        yield bottom.path(info.key)
        return
    where = scratch or scratch_folder()
    with tempfile.TemporaryFile(dir=where) as file:
        for start in range(0, info.size, CHUNK_BYTES):
            piece = ByteRange(start, min(start + CHUNK_BYTES, info.size))
            data = store.get_ranges(info.key, [piece], version=info.version)[0]
            try:
                file.write(data)
            except OSError as error:
                raise StoreError(
                    f"{info.key}: cannot be fetched into {where}: {error}", "set TMPDIR to a larger disk"
                ) from error
        file.flush()
        yield Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
