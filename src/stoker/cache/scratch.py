"""Whole-compressed objects without a cache: expanded once, into files that have no name."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Sequence

from stoker.cache.descriptors import Descriptor
from stoker.cache.objects import Read, check_object, expand_object, fetch_pieces, pread_ranges, wrong_digest
from stoker.errors import ChangedError, ShardError, StoreError
from stoker.index.entry import ObjectRef
from stoker.machine import scratch_folder
from stoker.store.base import ByteRange, Store
from stoker.store.digest import TreeDigest

SCRATCH_BYTES_MAX = 8 * 10**9
"""Expanded shards that are held at once without a cache."""


class Scratch:
    """Expanded copies of whole-compressed objects in files without a name: nothing to clean up after a kill."""

    def __init__(self, store: Store, *, bytes_max: int) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._files: OrderedDict[ObjectRef, Descriptor] = OrderedDict()
        self._growing: set[ObjectRef] = set()
        self._changed = threading.Condition(self._lock)

    def read(self, ref: ObjectRef, ranges: Sequence[ByteRange]) -> Read:
        """Ranges of the expanded object; the first read of it pays for the expansion."""
        file, stored = self._expanded(ref)
        return Read(pread_ranges(file, ranges, f"{self._store.url}: {ref.key!r}, expanded"), 0, stored)

    def close(self) -> None:
        with self._lock:
            self._files.clear()

    def _expanded(self, ref: ObjectRef) -> tuple[Descriptor, int]:
        """The open copy, and how many stored bytes had to be fetched for it."""
        self._check_limit(ref)
        while True:
            with self._lock:
                if ref in self._files:
                    self._files.move_to_end(ref)
                    return self._files[ref], 0
                if ref not in self._growing:
                    self._growing.add(ref)
                    self._make_room()
                    break
                self._changed.wait()
        try:
            file = self._expand(ref)
            with self._lock:
                self._files[ref] = file
            return file, ref.size
        finally:
            with self._lock:
                self._growing.discard(ref)
                self._changed.notify_all()

    def _check_limit(self, ref: ObjectRef) -> None:
        if ref.expanded_size > self._bytes_max:
            raise StoreError(
                f"{self._store.url}: {ref.key!r} is compressed as a whole and expands to {ref.expanded_size} bytes, "
                f"more than the scratch limit of {self._bytes_max}",
                "use a cache: stoker.open(…, cache=…), or pack it again without whole-shard compression",
            )

    def _make_room(self) -> None:
        """Forget the copies used longest ago until all that are being made fit under the limit."""
        growing = sum(ref.expanded_size for ref in self._growing)
        while self._files and growing + sum(ref.expanded_size for ref in self._files) > self._bytes_max:
            self._files.popitem(last=False)

    def _expand(self, ref: ObjectRef) -> Descriptor:
        check_object(self._store, ref, self._store.head(ref.key))
        for _ in range(2):  # the network may have done it
            with tempfile.TemporaryFile(dir=scratch_folder()) as file:
                digest = TreeDigest()
                stored = digest.passing(fetch_pieces(self._store, ref))
                try:
                    expand_object(self._store, ref, stored, file)
                except (ShardError, ChangedError):
                    for _ in stored:  # whether the bytes or the shard are at fault, the digest of all says
                        pass
                    if ref.digest in (None, digest.hexdigest()):
                        raise
                found = digest.hexdigest()
                if ref.digest in (None, found):
                    file.flush()
                    return Descriptor(os.dup(file.fileno()))
        raise wrong_digest(self._store, ref, ref.digest or "", found)
