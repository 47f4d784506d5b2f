"""Which stage a wait belongs to: pure arithmetic over the timeline of the batch that was missing.

The rule. At each moment of the wait the missing batch is somewhere: some of its chunks are being read, decoded,
transformed, the rest stand in line. A moment is shared equally by the *active* intervals that cover it (standing in
line is active only when nothing else is). Work is given out in order of batches, so while the trainer waits for the
earliest undelivered batch, every busy thread works for it: the active stage is the one that holds the batch up.

Moments before the batch's first interval are `queue` (no slot, no thread: it was not begun), those after its last are
`hand_over` (sent, not yet taken), gaps between two intervals are `other`. The parts add up to the wait exactly.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise

from stoker.events import STAGES, Stage

Interval = tuple[Stage, float, float]
"""Stage, start and stop in seconds of CLOCK_MONOTONIC."""

PASSIVE: frozenset[Stage] = frozenset({"queue", "order_wait"})


class Timeline:
    """Intervals on their way to the trainer, where they are looked at only when it had to wait: numbers in one piece of
    bytes, for taking three dozen tuples apart costs a trainer that comes out of its step more than all the rest."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[type[Timeline], tuple[bytes]]:
        return Timeline, (self._data,)

    @classmethod
    def of(cls, intervals: Sequence[Interval]) -> Timeline:
        """The last of *intervals* is the last to end: that of sending."""
        return cls(array("d", [x for stage, *times in intervals for x in (_NUMBER[stage], *times)]).tobytes())

    def intervals(self) -> list[Interval]:
        """All of them."""
        flat = array("d", self._data)
        return [(STAGES[int(flat[at])], flat[at + 1], flat[at + 2]) for at in range(0, len(flat), 3)]

    @property
    def last_s(self) -> float:
        """When the last one ended."""
        last: float = _DOUBLE.unpack_from(self._data, len(self._data) - _DOUBLE.size)[0]
        return last


_NUMBER = {stage: float(number) for number, stage in enumerate(STAGES)}
_DOUBLE = struct.Struct("d")


def attribute(start_s: float, stop_s: float, intervals: Sequence[Interval]) -> dict[Stage, float]:
    """Seconds of the wait [start_s, stop_s] by stage; the values add up to stop_s - start_s."""
    if stop_s <= start_s:
        return {}
    inside = [(s, max(a, start_s), min(b, stop_s)) for s, a, b in intervals if b > start_s and a < stop_s and b > a]
    first = min((a for _, a, _ in intervals), default=stop_s)
    last = max((b for _, _, b in intervals), default=stop_s)
    edges = sorted({start_s, stop_s, *(a for _, a, _ in inside), *(b for _, _, b in inside)})
    parts: dict[Stage, float] = {}
    for left, right in pairwise(edges):
        covering = [s for s, a, b in inside if a <= left and b >= right]
        active = [s for s in covering if s not in PASSIVE] or covering
        if not active:
            active = ["queue" if right <= first else "hand_over" if left >= last else "other"]
        for stage in active:
            parts[stage] = parts.get(stage, 0.0) + (right - left) / len(active)
    return parts


def add(total: dict[Stage, float], parts: Mapping[Stage, float]) -> None:
    """Add *parts* to *total* in place."""
    for stage, seconds in parts.items():
        total[stage] = total.get(stage, 0.0) + seconds
