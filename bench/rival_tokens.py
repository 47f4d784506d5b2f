"""The tokens that all contenders of `tokens.py` read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES, LENGTH = 40_000, 2_048
SHARDS = 5
DOCUMENT = 5 * LENGTH


def blocks() -> Iterator[np.ndarray[Any, Any]]:
    """The samples, int32 [SAMPLES / SHARDS, LENGTH] at a time, the same on every run."""
    random = np.random.default_rng(0)
    for _ in range(SHARDS):
        yield random.integers(0, 50_000, (SAMPLES // SHARDS, LENGTH), dtype=np.int32)


def one_file(folder: Path) -> np.ndarray[Any, Any]:
    """All of them in one mapped file, int32 [SAMPLES, LENGTH]; a plain array, not a `np.memmap`, whose views cost more."""
    path = folder / "tokens.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(path, np.concatenate(list(blocks())))
    return np.load(path, mmap_mode="r").view(np.ndarray)


def arrays(folder: Path, length: int) -> Path:
    """Shards of arrays with rows of that length."""
    from stoker.format.arrays import ArraysWriter

    if not folder.exists():
        folder.mkdir(parents=True)
        for number, block in enumerate(blocks()):
            with (folder / f"shard_{number:05d}.arrays.bin").open("wb", buffering=4 << 20) as out:  # as `pack` writes
                writer = ArraysWriter(out)
                for row, tokens in enumerate(block.reshape(-1, length)):
                    writer.add(f"{number}-{row:06d}", {"tokens": tokens})
                writer.close()
    return folder
