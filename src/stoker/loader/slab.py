"""The memory that feeder and trainer share: one memfd cut into slots. It has no name, so nothing is left after kill -9.

Three facts decide this file. `ftruncate` of a terabyte succeeds and the first write is a bus error: the bytes are
reserved with `posix_fallocate`. A memfd is not bound by /dev/shm but by the memory cgroup, which kills instead of
refusing: the size is checked against what is free first. A handed-out batch is a *fresh* exporter over the mapping, and
the slot is free again when the last tensor, slice or view over that exporter is gone; a finalizer on a NumPy view or on
the tensor itself would fire too early.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from stoker.errors import FeederError
from stoker.loader.layout import BOARD_THREADS_MAX, SlotLayout
from stoker.machine import memory_bytes_free
from stoker.units import format_bytes

SLOTS_MIN = 4
"""Fewer leave the feeder nothing to fill while the trainer holds one batch and takes the next: measured dips of 6–30 ms
at the seam of two epochs with 2 slots."""


def create(layout: SlotLayout, slots: int, slots_max: int | None = None) -> int:
    """A memfd with room for *slots_max* slots, of which *slots* are reserved; its descriptor.

    FeederError says how much was asked and how much is free.
    """
    wanted, free = layout.slab_bytes(slots), memory_bytes_free()
    if wanted > free:
        raise FeederError(
            f"the batches need {format_bytes(wanted)} of shared memory ({slots} slots of "
            f"{format_bytes(layout.nbytes)}), "
            f"but only {format_bytes(free)} is free to this process",
            "use a smaller batch_size, or give the job more memory",
        )
    descriptor = os.memfd_create("stoker-slab", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, layout.slab_bytes(slots_max or slots))
        os.posix_fallocate(descriptor, 0, wanted)
    except OSError as error:
        os.close(descriptor)
        raise FeederError(
            f"the kernel refused {format_bytes(wanted)} of shared memory: {error.strerror}",
            "`ulimit -f` bounds it too" if error.errno == errno.EFBIG else None,
        ) from error
    return descriptor


class Slab:
    """One side's mapping of the slab."""

    def __init__(self, descriptor: int, layout: SlotLayout, slots: int, slots_max: int | None = None) -> None:
        """Map the memfd and close *descriptor*."""
        self.layout = layout
        self.slots = slots
        self.slots_max = slots_max or slots
        self._arrays: dict[int, dict[str, np.ndarray]] = {}
        self._map = mmap.mmap(descriptor, layout.slab_bytes(self.slots_max))
        self._exporter = ctypes.c_uint8 * layout.nbytes
        self._handed: dict[int, weakref.ref[object]] = {}
        """By slot: what tells that a batch is gone. Kept here, since a reference that is gone calls nobody."""
        self._owner = os.getpid()
        os.close(descriptor)

    def arrays(self, slot: int) -> dict[str, np.ndarray]:
        """The arrays of a slot, for the feeder, which fills them."""
        if slot not in self._arrays:
            self._arrays[slot] = self.layout.views(self._map, self.layout.slot_offset(slot))
        return dict(self._arrays[slot])

    def board(self) -> np.ndarray:
        """int64 [BOARD_THREADS_MAX]: 1 + the sample that each feeder thread works on, 0 when idle. Read after a
        crash."""
        return np.frombuffer(self._map, dtype=np.int64, count=BOARD_THREADS_MAX, offset=64)

    def address(self) -> tuple[int, int]:
        """Address and length of the mapping, for page-locking."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map)), len(self._map)

    def hand_out(self, slot: int, freed: deque[int]) -> memoryview:
        """The bytes of a slot; *slot* is appended to *freed* when nothing refers to them any more."""
        exporter = self._exporter.from_buffer(self._map, self.layout.slot_offset(slot))

        # May run in any thread or inside the garbage collector, so it only appends; and not in a forked child, which
        # inherits the callback but not the batch. A `weakref.finalize` would do the same at twice the price.
        def gone(_: object, owner: int = self._owner, pid: Callable[[], int] = os.getpid) -> None:
            if pid() == owner:
                freed.append(slot)

        self._handed[slot] = weakref.ref(exporter, gone)
        return memoryview(exporter).cast("B")

    def close(self) -> None:
        """Unmap, unless batches are still in use: then the mapping ends with the last of them."""
        with contextlib.suppress(BufferError):
            self._map.close()


def grow(slab: Slab, descriptor: int, slots: int) -> list[int]:
    """Reserve more of the memfd, up to *slots* in all, and say which are new: none where memory does not allow it."""
    slots = min(slots, slab.slots_max)
    more = (slots - slab.slots) * slab.layout.nbytes
    if more <= 0 or more > memory_bytes_free():
        return []
    try:
        os.posix_fallocate(descriptor, slab.layout.slot_offset(slab.slots), more)
    except OSError:  # refused: what is there stays
        return []
    new = list(range(slab.slots, slots))
    slab.slots = slots
    return new
