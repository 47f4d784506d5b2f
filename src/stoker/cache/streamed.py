"""Reading without a cache: files of this machine by pread, objects of a store by ranged requests, merged where near.

Where the index knows an object's version, every read is pinned to it, which costs nothing. Where it knows none (shards
that stoker packed have a digest instead, so that a copy is as good), the size is compared at the first touch, and the
version seen then is the one that all later reads are held to: what is replaced in mid-run is an error, not a mixture.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from stoker.cache.descriptors import Descriptor, Descriptors
from stoker.cache.mapped import Mapped
from stoker.cache.objects import Read, Wanted, WrongDigestError, check_object, pread_ranges, read_or_error
from stoker.cache.scratch import SCRATCH_BYTES_MAX, Scratch
from stoker.errors import ChangedError, StoreError
from stoker.events import SILENT, Recorder
from stoker.index.entry import ObjectRef
from stoker.store.base import ByteRange, HasPaths, ObjectInfo, Store
from stoker.store.local import file_version
from stoker.store.ranges import coalesce, covering
from stoker.store.wrap import innermost

GAP_BYTES_MAX = 64 << 10
"""Ranges no further apart are fetched by one request: at 50 ms and 100 MB/s a request costs as much as 5 MB."""
MERGED_BYTES_MAX = 16 << 20
REQUESTS_AT_ONCE = 128
"""Requests of all reads together; the store has its own limit."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_inherited: list[object] = []
"""Pools that forked children found of their parents: kept, since ending them would touch locks that nobody holds."""


class Streamed:
    """Objects without a cache. Whole-compressed ones are expanded to unlinked files, the last few of which are kept."""

    def __init__(
        self, store: Store, *, recorder: Recorder = SILENT, scratch_bytes_max: int = SCRATCH_BYTES_MAX
    ) -> None:
        self._store = store
        self._recorder = recorder
        bottom = innermost(store)
        self._paths = bottom if isinstance(bottom, HasPaths) else None
        self._files = Descriptors()
        self._seen: dict[str, ObjectRef] = {}
        """By key: the object with the version of its first touch, where the index knows none."""
        self._scratch = Scratch(store, bytes_max=scratch_bytes_max)
        self._pools: dict[str, ThreadPoolExecutor] = {}
        """"object": whole reads of one object, which wait for those of "get"."""
        self._pid = os.getpid()
        """Whose the pools are: a forked child inherits them without their threads, and makes its own."""
        self._closed = False
        self._lock = threading.Lock()

    def read(self, ref: ObjectRef, ranges: Sequence[ByteRange]) -> Read:
        if ref.compression:
            return self._scratch.read(ref, ranges)
        if self._paths is not None:
            return self._read_file(self._paths, ref, ranges)
        return self._read_store(ref, ranges)

    def read_all(self, wanted: Sequence[Wanted]) -> list[Read | WrongDigestError]:
        if self._paths is not None or len(wanted) == 1:
            return [read_or_error(self, *one) for one in wanted]
        return self._side_by_side("object", lambda one: read_or_error(self, *one), wanted)

    def file(self, ref: ObjectRef) -> Path:
        found = self._store.head(ref.key)
        check_object(self._store, ref, found)
        if self._paths is None or ref.compression:
            raise StoreError(
                f"{self._store.url}: {ref.key!r} must be a file of this machine to be read, uncompressed; it is none",
                "use a cache that has room for it: stoker.open(…, cache=…)",
            )
        return self._paths.path(ref.key)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        if self._pid == os.getpid():
            for name in sorted(self._pools, reverse=True):  # "object" before "get"
                self._pools[name].shutdown(wait=True, cancel_futures=True)
        self._files.close()
        self._scratch.close()

    def mapped(self, ref: ObjectRef) -> Mapped | None:
        if self._paths is None or ref.compression or not ref.size:
            return None
        file = self._file(self._paths, ref)
        return Mapped(file, self._where(ref), lambda found: self._check(ref, found))

    def bring_in(self, ref: ObjectRef) -> bool:
        """There is no place to bring it to."""
        return False

    def _where(self, ref: ObjectRef) -> str:
        return f"{self._store.url}: {ref.key!r}"

    def _read_file(self, paths: HasPaths, ref: ObjectRef, ranges: Sequence[ByteRange]) -> Read:
        file = self._file(paths, ref)
        try:
            data = pread_ranges(file, ranges, self._where(ref))
        except OSError as error:
            raise StoreError(f"{self._where(ref)}: {error.strerror}") from error
        count = sum(map(len, data))
        self._recorder.count("store.requests", len(data))
        self._recorder.count("store.read_bytes", count)
        return Read(data, 0, count)

    def _file(self, paths: HasPaths, ref: ObjectRef) -> Descriptor:
        """The object's file, open, and still what was indexed."""

        def open_it() -> int:
            try:
                return os.open(paths.path(ref.key), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                self._store.head(ref.key)  # its errors say more
                raise

        try:
            file = self._files.get_or_open((ref.key, ref.version), open_it)
            self._check(ref, os.fstat(file.fd))
        except ChangedError:
            self._files.drop((ref.key, ref.version))
            raise
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"{self._where(ref)}: {error.strerror}") from error
        return file

    def _check(self, ref: ObjectRef, found: os.stat_result) -> None:
        info = ObjectInfo(ref.key, found.st_size, file_version(found))
        check_object(self._store, self._held_to(ref, info), info, when=_when(ref))

    def _read_store(self, ref: ObjectRef, ranges: Sequence[ByteRange]) -> Read:
        held = ref
        if ref.version is None:
            held = self._seen.get(ref.key) or self._held_to(ref, self._store.head(ref.key))
        requests = coalesce(ranges, gap_bytes_max=GAP_BYTES_MAX, length_bytes_max=MERGED_BYTES_MAX)
        try:
            answers = self._fetch(ref.key, requests, held.version)
        except ChangedError:
            check_object(self._store, held, self._store.head(ref.key), when=_when(ref))
            raise
        data: list[bytes | memoryview] = []
        for piece in ranges:
            number = covering(requests, piece)
            base = requests[number].start
            data.append(memoryview(answers[number])[piece.start - base : piece.stop - base])
        return Read(data, 0, sum(map(len, requests)))

    def _fetch(self, key: str, requests: list[ByteRange], version: str | None) -> list[bytes]:
        """The answers in order, all asked for at once: one after the other, each would cost a round trip."""
        if len(requests) == 1:
            return self._store.get_ranges(key, requests, version=version)
        return self._side_by_side("get", lambda one: self._store.get_ranges(key, [one], version=version)[0], requests)

    def _side_by_side(self, name: str, ask: Callable[[Item], Answer], asked: Sequence[Item]) -> list[Answer]:
        """What *ask* says to each of *asked*, at once, in order. StoreError once this is closed."""
        with self._lock:
            if self._pid != os.getpid():
                _inherited.append(self._pools)
                self._pools, self._pid = {}, os.getpid()
            if self._closed:
                raise StoreError(f"{self._store.url}: read after it was closed", "open the dataset again")
            if name not in self._pools:
                self._pools[name] = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix=f"stoker-{name}")
            futures = [self._pools[name].submit(ask, one) for one in asked]
        try:
            return [future.result() for future in futures]
        except CancelledError:
            raise StoreError(f"{self._store.url}: closed while it was read") from None

    def _held_to(self, ref: ObjectRef, found: ObjectInfo) -> ObjectRef:
        """The object with the version that reads of it must find: the index's, else that of its first touch."""
        if ref.version is not None:
            return ref
        check_object(self._store, ref, found)
        return self._seen.setdefault(ref.key, replace(ref, version=found.version))


def _when(ref: ObjectRef) -> str:
    return "first read" if ref.version is None else "indexed"
