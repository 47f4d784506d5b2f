"""Shards of a dataset mapped into memory as they are first needed, for those who copy samples straight out of them."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from stoker.cache import Mapped, Objects
from stoker.clock import SYSTEM
from stoker.dataset.copying import Int64Array
from stoker.events import Recorder
from stoker.index import Index

CHECK_EVERY_S = 0.5
"""Seconds between looks at whether the mapped files are still what they were."""
COLD_BYTES_PER_S = 1e9
"""Copying slower than this means waiting for a disk: memory gives several times as much."""
COLD_S_MIN = 200e-6
"""Shorter copies say nothing about the disk."""
FILES_SPARED = 512
"""Open files left to all others; a mapping holds two."""
MAPPED_MAX = 16_384

Prepare = Callable[[int, Mapped], tuple[int, Any] | None]
"""(shard, its mapping) → the address that counts, and what else is to be remembered of the shard; None when its samples
do not lie as expected: it is then left to the ordinary reader, which says why, or copes."""


class Maps:
    """The shards mapped so far. Whoever copies holds on to this, so that letting go of it never unmaps under them."""

    def __init__(self, shards: int) -> None:
        self.first = np.zeros(shards, np.int64)
        """The address of each shard that counts; 0 where it is not mapped."""
        self.held: dict[int, Mapped] = {}
        self.known: dict[int, Any] = {}


def mapped_max() -> int:
    """How many shards may be mapped at once, by the limit of open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAPPED_MAX if files == resource.RLIM_INFINITY else max(16, min(MAPPED_MAX, (files - FILES_SPARED) // 2))


class ShardMaps:
    """Maps shards on demand. Thread-safe."""

    def __init__(self, index: Index, objects: Objects, prepare: Prepare, recorder: Recorder) -> None:
        """*prepare* is asked once a shard."""
        self._index = index
        self._objects = objects
        self._prepare = prepare
        self._recorder = recorder
        self._maps = Maps(len(index.shard_starts) - 1)
        self._lock = threading.Lock()
        self._odd: set[int] = set()
        """Shards that *prepare* refused."""
        self._checked_s = SYSTEM.monotonic()
        self.cold = False
        """Whether the last copying waited for a disk."""

    def hold(self, shards: Int64Array) -> Maps | None:
        """The mappings, among them those of *shards* int64 [n]; None when one of them cannot be used so, or not yet."""
        maps = self._maps
        missing = shards[maps.first[shards] == 0]
        for shard in np.unique(missing).tolist() if len(missing) else ():
            if not self._map(maps, shard):
                return None
        if SYSTEM.monotonic() > self._checked_s + CHECK_EVERY_S:
            self._checked_s = SYSTEM.monotonic()
            for mapped in list(maps.held.values()):
                mapped.check()
        return maps

    def _map(self, maps: Maps, shard: int) -> bool:
        """Map a shard, if it lies on this machine."""
        with self._lock:
            if maps.first[shard]:
                return True
            if shard in self._odd:
                return False
            if len(maps.held) >= mapped_max():
                self._maps = Maps(len(maps.first))  # the next samples begin anew
            found = self._objects.mapped(self._index.shard_object(shard))
            if found is None:
                return False
            prepared = self._prepare(shard, found)
            if prepared is None:
                self._odd.add(shard)
                return False
            maps.held[shard] = found
            maps.first[shard], maps.known[shard] = prepared
            return True

    def will_need(self, maps: Maps, shards: Int64Array, addresses: Int64Array, nbytes: Int64Array) -> None:
        """Ask the disk for all of these pieces at once, when copying was seen to wait for it."""
        if self.cold:
            for shard, address, length in zip(shards.tolist(), addresses.tolist(), nbytes.tolist(), strict=True):
                maps.held[shard].will_need(address, length)

    def copied(self, nbytes: int, began_s: float) -> None:
        """Take note of a copy that began at *began_s*: how much, and whether it waited for a disk."""
        self.cold = SYSTEM.monotonic() - began_s > max(COLD_S_MIN, nbytes / COLD_BYTES_PER_S)
        self._recorder.count("read.mapped_bytes", nbytes)
