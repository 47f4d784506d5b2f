"""The order of a dataset: epoch and position → sample, a pure function of seed, mode and the shards' sizes.

With K canonical nodes the samples in shard order are cut into K fixed parts, and position q stands for place q // K of
part q % K. So after p positions, p a multiple of K, exactly the first p / K of every part have been taken, and a part's
shards stay the same from epoch to epoch. When K does not divide the samples, some parts hold one sample more: those
come last.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from stoker.errors import UsageError
from stoker.order.shuffle import Int64Array, derive_key, permutation
from stoker.order.window import Window, WindowSequence

Mode = Literal["full", "none"] | Window
EPOCHS_KEPT = 2  # the one being read and the one the feeder runs ahead into


class _Sequence(Protocol):
    def at(self, positions: Int64Array) -> Int64Array: ...


class _Shuffled:
    """The samples [first, first + samples) in the order of a keyed permutation."""

    def __init__(self, first: int, samples: int, key: int) -> None:
        self._first = first
        self._permutation = permutation(samples, key)

    def at(self, positions: Int64Array) -> Int64Array:
        return self._permutation.at(positions) + self._first


class _Straight:
    """The samples from *first* on as they lie."""

    def __init__(self, first: int) -> None:
        self._first = first

    def at(self, positions: Int64Array) -> Int64Array:
        return positions + self._first


class Order:
    """Which sample stands at which position of which epoch. Made by `build_order`; can be pickled, safe in threads."""

    def __init__(self, mode: Mode, shard_starts: Int64Array, *, seed: int, canonical_nodes: int) -> None:
        self.samples = int(shard_starts[-1])
        self.canonical_nodes = canonical_nodes
        self.seed = seed
        self.mode = mode
        self._shard_starts = shard_starts
        self._parts = np.array([self.samples * k // canonical_nodes for k in range(canonical_nodes + 1)], np.int64)
        sizes = np.diff(self._parts)
        self._full = int(sizes.min())
        self._longer = np.flatnonzero(sizes > self._full)
        self._epochs: dict[int, list[_Sequence]] = {}

    @property
    def described(self) -> str:
        """What else decides the order, for the plan's hash: nothing."""
        return ""

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        """Sample numbers int64 [n] that stand at *positions* int64 [n] of *epoch*."""
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < self.samples:
            raise UsageError(
                f"positions run from 0 to {self.samples - 1}, found {int(positions.min())} to {int(positions.max())}"
            )
        sequences = self._epochs.get(epoch) or self._begin(epoch)
        if len(sequences) == 1:
            return sequences[0].at(positions)
        place, part = np.divmod(positions, len(sequences))
        late = place >= self._full
        part[late] = self._longer[positions[late] - self._full * len(sequences)]
        place[late] = self._full
        result = np.empty_like(positions)
        for number in np.unique(part):
            inside = part == number
            result[inside] = sequences[number].at(place[inside])
        return result

    def _begin(self, epoch: int) -> list[_Sequence]:
        """Build the sequences of an epoch and keep them with those of the epoch before."""
        made = [self._sequence(epoch, part) for part in range(self.canonical_nodes)]
        kept = dict(list(self._epochs.items())[1 - EPOCHS_KEPT :])
        self._epochs = {**kept, epoch: made}
        return made

    def _sequence(self, epoch: int, part: int) -> _Sequence:
        first, stop = int(self._parts[part]), int(self._parts[part + 1])
        if self.mode == "none":
            return _Straight(first)
        key = derive_key(self.seed, epoch, "order", part)
        if isinstance(self.mode, Window) and stop > first:
            starts = self._shard_starts
            inner = starts[(starts > first) & (starts < stop)]
            return WindowSequence(np.unique(np.concatenate(([first], inner, [stop]))), window=self.mode, key=key)
        return _Shuffled(first, stop - first, key)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_epochs": {}}


def build_order(mode: Mode, *, shard_starts: Int64Array, seed: int, canonical_nodes: int = 1) -> Order:
    """The Order of a dataset whose shard i holds the samples [shard_starts[i], shard_starts[i+1]).

    *shard_starts* is int64 [shards + 1], from 0 to the number of samples, never falling.
    """
    starts = np.ascontiguousarray(shard_starts, np.int64)
    if starts.ndim != 1 or len(starts) == 0 or starts[0] != 0 or bool(np.any(np.diff(starts) < 0)):
        raise UsageError("shard_starts must be one row of integers that begins with 0 and never falls")
    if not isinstance(mode, Window) and mode not in ("full", "none"):
        raise UsageError(f"an order is 'full', 'none' or a Window, found {mode!r}")
    if canonical_nodes < 1:
        raise UsageError(f"canonical_nodes must be at least 1, found {canonical_nodes}")
    derive_key(seed)
    return Order(mode, starts, seed=seed, canonical_nodes=canonical_nodes)
