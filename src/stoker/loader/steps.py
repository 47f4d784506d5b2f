"""What an engine does next: the steps of an epoch one after the other, and on into the next epoch.

The samples of many steps are looked up at once: a shuffled position costs 50 µs alone and 0.1 µs among thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from stoker.dataset import Dataset
from stoker.index import ObjectRef
from stoker.loader.job import AnyOrder, Start
from stoker.order import BucketedOrder, Split

POSITIONS_AT_ONCE = 8_192


class Step(NamedTuple):
    """One batch of the plan."""

    epoch: int
    number: int
    """Of the step, counted from the start of the epoch or of the resumed rest of it."""
    samples: np.ndarray[Any, np.dtype[np.int64]]
    """int64 [batch]"""
    mask: np.ndarray[Any, np.dtype[np.bool_]] | None
    """bool [batch], False where a sample is repeated to fill the batch; None without padding."""


class Steps:
    """The plan from *start* on, without end."""

    def __init__(self, order: AnyOrder, split: Split, start: Start) -> None:
        self.start = start
        self._order = order
        self._split = split
        self._epoch, self._position, self._number = start.epoch, start.position, 0
        self._turn = 0
        self._block: list[Step] = []

    def take(self) -> Step:
        """The next step of this feeder: every n-th of the plan, where n feeders share it."""
        while True:
            if not self._block:
                self._look_up()
            step = self._block.pop()
            mine = self._turn == self.start.turn
            self._turn = (self._turn + 1) % self.start.feeders
            if mine:
                return step

    def _look_up(self) -> None:
        """Plan the next steps, at least one."""
        split = self._split
        left = split.steps(self._position) - self._number
        if left <= 0:
            self._epoch, self._position, self._number = self._epoch + 1, 0, 0
            left = split.steps(0)
        count = max(1, min(left, POSITIONS_AT_ONCE // split.batch_size))
        positions, mask = split.block(self._position, self._number, count)
        samples: Sequence[np.ndarray[Any, np.dtype[np.int64]]]
        if isinstance(self._order, BucketedOrder):
            samples = self._order.batches(self._epoch, positions.reshape(-1))
        else:
            samples = list(self._order.at(self._epoch, positions.reshape(-1)).reshape(positions.shape))
        first = self._number
        self._block = [
            Step(self._epoch, first + row, samples[row], None if mask is None else mask[row])
            for row in reversed(range(count))
        ]
        self._number += count


def objects_ahead(dataset: Dataset, order: AnyOrder, split: Split, start: Start) -> Iterator[ObjectRef]:
    """The objects that the rest of *start*'s epoch needs, each once, in order of first use."""
    seen: set[str] = set()
    steps, left = Steps(order, split, Start(0, start.epoch, start.position)), split.steps(start.position)
    at_once = max(1, POSITIONS_AT_ONCE // split.batch_size)
    for first in range(0, left, at_once):
        samples = [steps.take().samples for _ in range(min(at_once, left - first))]
        for ref in dataset.objects(np.concatenate(samples)):
            if ref.key not in seen:
                seen.add(ref.key)
                yield ref
