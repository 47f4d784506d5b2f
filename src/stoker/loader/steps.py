"""What an engine does next: the steps of an epoch one after the other, and on into the next epoch.

The samples of many steps are looked up at once: a shuffled position costs 50 µs alone and 0.1 µs among thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from stoker.dataset import Dataset, Mixture
from stoker.loader.job import AnyOrder, Start
from stoker.order import BucketedOrder, Split

POSITIONS_AT_ONCE = 8_192
MIXED_AHEAD_MAX = 1 << 24
"""Positions of a mixture that are looked through for what to fetch ahead: some seconds of a background thread. A source
with a tiny weight would take for ever."""

Samples = np.ndarray[Any, np.dtype[np.int64]]


class Step(NamedTuple):
    """One batch of the plan, or several neighbours in one."""

    epoch: int
    number: int
    """Of the first step, counted from the start of the epoch or of the resumed rest of it."""
    samples: np.ndarray[Any, np.dtype[np.int64]]
    """int64 [steps × batch]"""
    mask: np.ndarray[Any, np.dtype[np.bool_]] | None
    """bool [steps × batch], False where a sample is repeated to fill the batch; None without padding."""
    steps: int = 1


class Steps:
    """The plan from *start* on, without end."""

    def __init__(self, order: AnyOrder, split: Split, start: Start) -> None:
        self.start = start
        self._order = order
        self._split = split
        self._epoch, self._position, self._number = start.epoch, start.position, 0
        self._turn = 0
        self._samples: Sequence[np.ndarray[Any, np.dtype[np.int64]]] | np.ndarray[Any, np.dtype[np.int64]] = ()
        """Of the steps looked up, one by one: a list where they differ in length, else int64 [steps, batch]."""
        self._mask: np.ndarray[Any, np.dtype[np.bool_]] | None = None
        self._taken = 0
        """How many of those looked up were taken."""

    def take(self, steps_max: int = 1) -> Step:
        """The next step of this feeder: every n-th of the plan, where n feeders share it.

        Where the feeder is alone and all batches have one length, up to *steps_max* of the same epoch in one."""
        while True:
            if self._taken == len(self._samples):
                self._look_up()
            first = self._taken
            several = isinstance(self._samples, np.ndarray) and self.start.feeders == 1
            self._taken = min(first + steps_max, len(self._samples)) if several else first + 1
            mine = self._turn == self.start.turn
            self._turn = (self._turn + 1) % self.start.feeders
            if mine:
                return self._step(first, self._taken)

    def go_back(self, epoch: int, number: int) -> None:
        """Let step *number* of *epoch*, which was taken, be the next. Only for a feeder that is alone."""
        self._epoch, self._position = epoch, self.start.position if epoch == self.start.epoch else 0
        self._samples, self._taken, self._number = (), 0, number

    def _step(self, first: int, stop: int) -> Step:
        samples, mask = self._samples, self._mask
        found = samples[first:stop].reshape(-1) if isinstance(samples, np.ndarray) else samples[first]
        number = self._number - len(samples) + first
        return Step(self._epoch, number, found, None if mask is None else mask[first:stop].reshape(-1), stop - first)

    def _look_up(self) -> None:
        """Plan the next steps, at least one."""
        split = self._split
        left = split.steps(self._position) - self._number
        if left <= 0:
            self._epoch, self._position, self._number = self._epoch + 1, 0, 0
            left = split.steps(0)
        count = max(1, min(left, POSITIONS_AT_ONCE // _rows(self._order, split)))
        positions, self._mask = split.block(self._position, self._number, count)
        if isinstance(self._order, BucketedOrder):
            self._samples = self._order.batches(self._epoch, positions.reshape(-1))
        else:
            self._samples = self._order.at(self._epoch, positions.reshape(-1)).reshape(positions.shape)
        self._taken = 0
        self._number += count


def _rows(order: AnyOrder, split: Split) -> int:
    """Samples of the largest step: where batches differ in length, the split counts batches."""
    return order.rows_max if isinstance(order, BucketedOrder) else split.batch_size


def samples_ahead(dataset: Dataset, order: AnyOrder, split: Split, start: Start) -> Iterator[Samples]:
    """The samples of the rest of *start*'s epoch, in order, many at a time; of a mixture, whose epoch may be short,
    those until each source has given all."""
    steps, left = Steps(order, split, Start(0, start.epoch, start.position)), split.steps(start.position)
    if isinstance(dataset, Mixture):
        left = max(left, min(dataset.samples_of_all, MIXED_AHEAD_MAX) // split.global_batch)
    at_once = max(1, POSITIONS_AT_ONCE // _rows(order, split))
    for first in range(0, left, at_once):
        yield np.concatenate([steps.take().samples for _ in range(min(at_once, left - first))])
