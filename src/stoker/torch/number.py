"""A sample number that knows its epoch: what the samplers give, so that the epoch travels with the work.

A worker process holds a copy of the dataset, made when the worker started. What is told to the training process's own
copy later, as by `set_epoch`, never reaches a persistent worker; what comes with the number does. To everything else it
is an int.
"""

from __future__ import annotations


class Number(int):
    """A sample number of one epoch."""

    epoch: int
    seed: int
    """The sampler's seed: with epoch and number it decides the sample's augmentation."""
    mask: bool | None
    """False for a repeat that fills up the last batch (tail="pad"); None where nothing is filled up."""

    def __new__(cls, sample: int, epoch: int, seed: int, mask: bool | None = None) -> Number:
        """The number *sample* of *epoch*."""
        made = super().__new__(cls, sample)
        made.epoch, made.seed, made.mask = epoch, seed, mask
        return made

    def __reduce__(self) -> tuple[type[Number], tuple[int, int, int, bool | None]]:
        return Number, (int(self), self.epoch, self.seed, self.mask)
