"""Mode `window`: shards in random order, samples shuffled inside windows of W shards: few shards are in use at once.

The working set of a reader is W shards, whatever the dataset's size; the price is that samples of distant shards never
meet in one batch. Memory is O(shards), not O(samples).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.errors import UsageError
from stoker.order.shuffle import Int64Array, derive_key, permutation


@dataclass(frozen=True, slots=True)
class Window:
    """Shuffle shards, and samples inside windows of *shards* shards."""

    shards: int = 64
    """Shards in use at once. More: better mixed. Fewer: a smaller working set for the cache."""

    def __post_init__(self) -> None:
        if type(self.shards) is not int or self.shards < 1:
            raise UsageError(f"a window is a whole number of shards, at least 1, found {self.shards!r}")


class WindowSequence:
    """One epoch's order of the samples between bounds[0] and bounds[-1], cut into shards at *bounds*."""

    def __init__(self, bounds: Int64Array, *, window: Window, key: int) -> None:
        sizes = np.diff(bounds)
        order = permutation(len(sizes), derive_key(key, "shards")).at(np.arange(len(sizes)))
        self._first = bounds[:-1][order]
        self._ends = np.cumsum(sizes[order])
        self._starts = self._ends - sizes[order]
        self._window_starts = np.append(self._starts[:: window.shards], self._ends[-1:])
        self._key = derive_key(key, "window")

    def at(self, positions: Int64Array) -> Int64Array:
        """Samples [n] at *positions* [n] of this sequence."""
        windows = np.searchsorted(self._window_starts, positions, side="right") - 1
        mixed = np.empty_like(positions)
        for window in np.unique(windows):
            inside = windows == window
            start, stop = (int(bound) for bound in self._window_starts[window : window + 2])
            shuffled = permutation(stop - start, derive_key(self._key, int(window)))
            mixed[inside] = shuffled.at(positions[inside] - start) + start
        shard = np.searchsorted(self._ends, mixed, side="right")
        samples: Int64Array = self._first[shard] + mixed - self._starts[shard]
        return samples
