"""Bringing objects into the cache ahead of their use: those of one dataset, or of several, in one row.

One row for all, in order of first use, so that no dataset's later objects come before another's earlier ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from stoker.cache.objects import PIECE_BYTES, Objects
from stoker.flow import parallel_map
from stoker.index.entry import ObjectRef

LARGE_AT_ONCE, SMALL_AT_ONCE = 4, 16
"""Objects that are fetched ahead at once. Pieces of large ones stand in one line: the last of them only wait in it."""

Coming = tuple[Objects, ObjectRef]
"""An object and the store that has it."""


def prefetch(wanted: Iterable[Coming], stores: Sequence[Objects]) -> None:
    """Bring each of *wanted*, which lie in *stores*, into its cache once, in this order, while others read.

    Ends when none of the stores takes any more (no cache, no room, closed), or with the process.
    """
    threading.Thread(target=_prefetch, args=(wanted, set(stores)), daemon=True, name="stoker-prefetch").start()


def _prefetch(wanted: Iterable[Coming], taking: set[Objects]) -> None:
    room = threading.Semaphore(LARGE_AT_ONCE)
    seen: set[tuple[Objects, str]] = set()

    def paced() -> Iterator[Coming]:
        """One after the other, as there is room: taken here, so that no later object overtakes an earlier one."""
        for objects, ref in wanted:
            if not taking:
                return
            if objects in taking and (objects, ref.key) not in seen:
                seen.add((objects, ref.key))
                if ref.size >= PIECE_BYTES:
                    room.acquire()
                yield objects, ref

    def bring_in(one: Coming) -> None:
        objects, ref = one
        try:
            if not objects.bring_in(ref):
                taking.discard(objects)
        finally:
            if ref.size >= PIECE_BYTES:
                room.release()

    for _ in parallel_map(bring_in, paced(), workers=SMALL_AT_ONCE, ahead=SMALL_AT_ONCE):
        pass
