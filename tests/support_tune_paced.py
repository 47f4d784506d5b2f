"""Factories for `stoker tune` that need no torch: a loader of which the rate for every number of workers is known."""

from __future__ import annotations

import time
from collections.abc import Iterator

BATCH_S = 0.04
"""What a worker takes for a batch."""
USEFUL = 4
"""More are in each other's way, a quarter for each: twice too many halve the rate, as do half too few."""


class Paced:
    """As fast as its workers, up to four; slower with more."""

    def __init__(self, num_workers: int, length: int, seam_s: float = 0.0) -> None:
        self._pause_s = BATCH_S / max(1, min(num_workers, USEFUL)) * (1 + 0.25 * max(0, num_workers - USEFUL))
        self._length, self._seam_s = length, seam_s

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        time.sleep(self._seam_s)
        for _ in range(self._length):
            time.sleep(self._pause_s)
            yield b"x" * 1000


def paced(num_workers: int = 0) -> Paced:
    """One knob, long epochs."""
    return Paced(num_workers, 100_000)


def seams(num_workers: int = 0, persistent_workers: bool = False, multiprocessing_context: str | None = None) -> Paced:
    """Workers that do not stay cost 0.2 s an epoch of 100 batches, spawned ones a second; fork does not work."""
    if multiprocessing_context == "fork":
        raise RuntimeError("locks do not survive a fork")
    slow = {"spawn": 1.0}.get(multiprocessing_context or "", 0.0)
    return Paced(num_workers, 100, slow if persistent_workers or not num_workers else 0.2 + slow)


def once(num_workers: int = 0) -> Iterator[int]:
    """A generator: one pass over 60 batches of 5 ms."""
    for number in range(60):
        time.sleep(0.005)
        yield number


def short(num_workers: int = 0) -> Paced:
    """Three batches an epoch, fewer than a round."""
    return Paced(num_workers, 3)
