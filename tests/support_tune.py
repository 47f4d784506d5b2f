"""Factories for `stoker tune`: loaders that sleep, so that their best setting is known."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

SAMPLE_S = 0.02
"""What a sample of `Sleeping` takes."""
LANES = 4
"""Of `narrow`'s storage: so many read at a time."""


class Sleeping(Dataset[torch.Tensor]):
    """Samples that take their time: no CPU, as a far store. With *lanes*, only so many processes read at once."""

    def __init__(self, samples: int, *, lanes: str = "") -> None:
        self._samples, self._lanes = samples, lanes

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> torch.Tensor:
        if not self._lanes:
            time.sleep(SAMPLE_S)
            return torch.full((16,), number)
        with Path(self._lanes, str(os.getpid() % LANES)).open("w") as lane:
            fcntl.flock(lane, fcntl.LOCK_EX)
            time.sleep(SAMPLE_S)
        return torch.full((16,), number)


def sleeping(**options: Any) -> DataLoader[torch.Tensor]:
    """80 ms a batch and worker; as fast as there are workers."""
    return DataLoader(Sleeping(100_000), batch_size=4, **options)


def short_epochs(**options: Any) -> DataLoader[torch.Tensor]:
    """Four batches an epoch: what counts is how workers get over the seam."""
    return DataLoader(Sleeping(16), batch_size=4, **options)


def only_workers(num_workers: int = 0) -> DataLoader[torch.Tensor]:
    """Takes one knob."""
    return DataLoader(Sleeping(100_000), batch_size=4, num_workers=num_workers)


def once(num_workers: int = 0) -> Iterator[int]:
    """A generator: one pass over 60 batches of 5 ms."""
    for number in range(60):
        time.sleep(0.005)
        yield number
