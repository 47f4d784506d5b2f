"""Rows of one mapped file by numpy's `take` into one buffer, in a new order each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rival_kit import Epoch
from rival_tokens import LENGTH, SAMPLES, one_file

PACKAGES = ("numpy",)


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    rows, out, random = one_file(folder), np.empty((batch, LENGTH), np.int32), np.random.default_rng(1)

    def epoch() -> Iterator[int]:
        order = random.permutation(SAMPLES)
        for start in range(0, SAMPLES, batch):
            np.take(rows, order[start : start + batch], 0, out=out, mode="clip")
            yield batch

    return epoch
