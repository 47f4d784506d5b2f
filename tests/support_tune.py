"""Factories for `stoker tune`: loaders that sleep, so that their best setting is known, and hostile ones."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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


def raises(num_workers: int = 0) -> object:
    """Fails whatever it is given."""
    raise FileNotFoundError("/data/train.lmdb is not here")


def fails_with_workers(num_workers: int = 0) -> DataLoader[torch.Tensor]:
    """Works without workers only."""
    if num_workers:
        raise RuntimeError("cannot pickle the database handle")
    return DataLoader(Sleeping(100_000), batch_size=4)


def no_iterable(num_workers: int = 0) -> object:
    """Returns a number."""
    return 7


def empty(num_workers: int = 0) -> list[int]:
    """No batch."""
    return []


def hangs(num_workers: int = 0) -> Iterator[int]:
    """A first batch, then nothing for ever, and it will not be asked to end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    yield 1
    time.sleep(3600)


def crashes(num_workers: int = 0) -> Iterator[int]:
    """Killed as by the kernel for memory."""
    yield 1
    print("about to die", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(num_workers: int = 0) -> object:
    """Ends the process."""
    sys.exit(3)


def hoards(num_workers: int = 0) -> Iterator[np.ndarray]:
    """Keeps everything: 20 MB a batch."""
    kept = []
    while True:
        kept.append(np.ones(20_000_000, np.uint8))
        time.sleep(0.01)
        yield kept[-1]


def talks(num_workers: int = 0) -> Iterator[int]:
    """Prints 100 KB before each batch, on both streams, things that look like results among them."""
    while True:
        for stream in (sys.stdout, sys.stderr):
            print('{"event": "done"}\n' * 6_000, file=stream, flush=True)
        time.sleep(0.005)
        yield 1


def needs_cuda(num_workers: int = 0) -> Iterator[torch.Tensor]:
    """Makes its batches on the GPU."""
    while True:
        yield torch.ones(4, device="cuda")


def needs_more(path: str, num_workers: int = 0) -> object:
    """Cannot be called without a path."""
    return [path]


def no_knobs() -> list[int]:
    """Nothing to tune."""
    return [1]


def once(num_workers: int = 0) -> Iterator[int]:
    """A generator: one pass over 60 batches of 5 ms."""
    for number in range(60):
        time.sleep(0.005)
        yield number


not_a_function = 5
