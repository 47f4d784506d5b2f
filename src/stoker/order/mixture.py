"""Which source, and which of its samples, stands at a position of a mixture: a pure function of seed and position.

Positions run on over all epochs. They are cut into cycles of CYCLE, in which every source has its exact number of
places, spread by a keyed permutation; so counts are exact after each cycle and never far off, and nothing has to be
counted up to find a place. Weights may change at a position: each stretch of constant weights has its own cycles, and a
source goes on where it stood. A source that is used up begins its own next epoch, in another order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from numbers import Real

import numpy as np

from stoker.errors import UsageError
from stoker.order.sequence import Mode, Order
from stoker.order.shuffle import Int64Array, derive_key, permutation

CYCLE = 10_000
"""Places of a cycle: weights are exact to a hundredth of a per cent."""


@dataclass(frozen=True)
class Stretch:
    """Constant weights from a position on."""

    start: int
    places: tuple[int, ...]
    """Of each source in a cycle; they add up to CYCLE."""


def places_of(weights: Mapping[str, float]) -> tuple[int, ...]:
    """Each source's places in a cycle, by the largest remainder. UsageError for weights that make no sense."""
    if not all(isinstance(weight, Real) for weight in weights.values()):
        raise UsageError(f"weights are numbers from 0 on, found {dict(weights)}")
    total = sum(weights.values())
    if not weights or min(weights.values()) < 0 or not 0 < total < float("inf"):
        raise UsageError(f"weights are numbers from 0 on, not all 0, found {dict(weights)}")
    exact = [CYCLE * weight / total for weight in weights.values()]
    places = [int(share) for share in exact]
    largest = sorted(range(len(exact)), key=lambda at: places[at] - exact[at])
    for at in largest[: CYCLE - sum(places)]:
        places[at] += 1
    for (name, weight), count in zip(weights.items(), places, strict=True):
        if weight > 0 and not count:
            raise UsageError(f"weight {weight} of {name!r} is less than 1 in {CYCLE}", "leave it out, or give it more")
    return tuple(places)


class MixedOrder:
    """The order of a mixture of sources. Has the methods that a loader asks of an `Order`."""

    mode: Mode = "full"
    """For the plan's hash; the sources' own modes are in `described`."""

    def __init__(self, orders: Sequence[Order], stretches: Sequence[Stretch], *, epoch_samples: int, seed: int) -> None:
        self.samples = epoch_samples
        self._orders = tuple(orders)
        self._sizes = np.array([order.samples for order in orders], np.int64)
        self._offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._sizes)])
        self._stretches = tuple(stretches)
        self._seed = seed
        self._starts = [one.start for one in stretches]
        self._before = [np.zeros(len(orders), np.int64)]
        for one, later in pairwise(stretches):
            self._before.append(self._before[-1] + self._count(len(self._before) - 1, later.start - one.start))

    @property
    def described(self) -> str:
        """The modes of the sources' orders, for the plan's hash."""
        return " ".join(str(order.mode) for order in self._orders)

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        """Sample numbers int64 [n] at *positions* int64 [n] of *epoch*: those of the sources, one behind the other."""
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < self.samples:
            raise UsageError(f"positions run from 0 to {self.samples - 1}, found others")
        sources, places = self._locate(epoch * self.samples + positions)
        found = np.empty(len(positions), np.int64)
        for source in np.unique(sources).tolist():
            inside = np.flatnonzero(sources == source)
            epochs, within = np.divmod(places[inside], self._sizes[source])
            for own in np.unique(epochs).tolist():
                now = epochs == own
                found[inside[now]] = self._orders[source].at(own, within[now]) + self._offsets[source]
        return found

    def counts(self, first: int, stop: int) -> Int64Array:
        """How many samples of each source stand at the positions [first, stop), counted over all epochs."""
        return self._until(stop) - self._until(first)

    def _until(self, position: int) -> Int64Array:
        number = bisect_right(self._starts, position) - 1
        return self._before[number] + self._count(number, position - self._starts[number])

    def _count(self, number: int, positions: int) -> Int64Array:
        """Of each source in the first so many positions of a stretch."""
        places = np.array(self._stretches[number].places, np.int64)
        cycles, rest = divmod(positions, CYCLE)
        owners, _ = self._cycle(number, cycles)
        return cycles * places + np.bincount(owners[:rest], minlength=len(places))

    def _cycle(self, number: int, cycle: int) -> tuple[Int64Array, Int64Array]:
        """Of each position of a cycle, int64 [CYCLE]: its source, and how many of that source stand before it."""
        return _cycle(self._stretches[number].places, derive_key(self._seed, "mixture", number, cycle))

    def _locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Source, and place in the endless row of that source's samples, of each position."""
        sources, places = np.empty_like(positions), np.empty_like(positions)
        stretches = np.searchsorted(self._starts, positions, side="right") - 1
        for number in np.unique(stretches).tolist():
            here = np.flatnonzero(stretches == number)
            sizes = np.array(self._stretches[number].places, np.int64)
            cycles, inside = np.divmod(positions[here] - self._starts[number], CYCLE)
            for cycle in np.unique(cycles).tolist():
                now = np.flatnonzero(cycles == cycle)
                owners, ranks = (one[inside[now]] for one in self._cycle(number, cycle))
                sources[here[now]] = owners
                places[here[now]] = self._before[number][owners] + cycle * sizes[owners] + ranks
        return sources, places


@lru_cache(maxsize=16)
def _cycle(places: tuple[int, ...], key: int) -> tuple[Int64Array, Int64Array]:
    sizes = np.array(places, np.int64)
    slots = permutation(CYCLE, key).at(np.arange(CYCLE, dtype=np.int64))
    owners = np.searchsorted(np.cumsum(sizes), slots, side="right")
    grouped = np.argsort(owners, kind="stable")
    ranks = np.empty(CYCLE, np.int64)
    ranks[grouped] = np.arange(CYCLE) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return owners, ranks
