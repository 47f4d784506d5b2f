"""Decides what an entry is called and whether an object may come in. Touches no disk and no clock.

Nothing is evicted: for one job that reads every sample once an epoch, hit ratio = cache / dataset is the optimum, and
refusing what does not fit reaches it, where LRU would not.
"""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

from stoker.index.entry import ObjectRef
from stoker.units import format_bytes

DISK = "the disk"
"""Refusals that no wish of the user's caused begin with it."""
INODES_MIN = 64
"""Inodes that are left to others."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the disk and the limit allow just now."""

    limit: int | None
    """Most bytes of the cache; None: as much as the disk gives."""
    used: int
    """Bytes of entries, and of those being written (all processes)."""
    disk_free: int
    free_min: int
    """Bytes that stay free for others."""
    inodes_free: int | None
    """None where the file system does not count them."""


def refusal(room: Room, need: int) -> str:
    """Why an object of *need* bytes may not come in; "" when it may."""
    if room.limit is not None and room.used + need > room.limit:
        return f"the limit of {format_bytes(room.limit)} is reached ({format_bytes(room.used)} used)"
    if room.disk_free - need < room.free_min:
        return f"{DISK} has {format_bytes(room.disk_free)} left, {format_bytes(room.free_min)} of them for others"
    if room.inodes_free is not None and room.inodes_free < INODES_MIN:
        return f"{DISK} has {room.inodes_free} inodes left"
    return ""


def entry_name(url: str, ref: ObjectRef) -> str:
    """The name of an object's entry: its digest when known, else BLAKE3 of where it lies and which version it is.

    An object that is kept expanded has another name than its stored bytes.
    """
    if ref.digest is not None:
        name = ref.digest
    else:
        name = blake3(repr((url, ref.key, ref.size, ref.version)).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{name}.x" if ref.compression else name
