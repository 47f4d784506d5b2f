"""The bare floor: simplejpeg and torch's antialiased resize of the same kind of crops, in one thread, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rival_kit import Epoch, write_files

PACKAGES = ("simplejpeg", "torch")


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import torch
    from images import bare

    torch.set_num_threads(1)
    raws = [Path(path).read_bytes() for path in write_files(photos, folder)]

    def epoch() -> Iterator[int]:
        for start in range(0, len(raws), batch):
            chunk = raws[start : start + batch]
            for draw, raw in enumerate(chunk, start):
                bare(raw, draw)
            yield len(chunk)

    return epoch
