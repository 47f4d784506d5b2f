"""SPDL, as its documents advise: a threaded pipeline in one subprocess, running on between epochs, batches through an arena.

The stage that decodes is torchvision's, not `spdl.io`'s: that one needs FFmpeg's libraries on the machine, and where they were
it took 2.2 to 2.6 ms of CPU an image, where this took 1.8.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rival_kit import SIZE, WORKERS, Epoch, epochs, torchvision_augment, write_files

PACKAGES = ("spdl", "torch", "torchvision")


class Shuffled:
    """The paths, in another order every time."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.random = random.Random(1)

    def __iter__(self) -> Iterator[str]:
        yield from self.random.sample(self.paths, len(self.paths))


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import torch
    from spdl.pipeline import PipelineBuilder, SharedMemoryRingBuffer, run_pipeline_in_subprocess
    from torchvision.io import read_file

    paths = write_files(photos, folder)
    augment = torchvision_augment()

    def make() -> Iterable[Any]:
        road = (
            PipelineBuilder()
            .add_source(Shuffled(paths), continuous=True)
            .pipe(lambda path: augment(read_file(path)), concurrency=WORKERS)
            .aggregate(batch)
            .pipe(torch.stack)
            .add_sink(3)
            .get_config()
        )
        return run_pipeline_in_subprocess(
            road, num_threads=WORKERS + 1, mp_context="fork", initializer=one_thread,
            arena=SharedMemoryRingBuffer(8 * batch * SIZE * SIZE * 3),
        )  # fmt: skip

    return epochs(make)


def one_thread() -> None:
    """Keeps torch from a pool of threads of its own beside the pipeline's."""
    import torch

    torch.set_num_threads(1)
