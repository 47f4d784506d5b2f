"""What the rivals' adapters share. Each `rival_<name>.py` has `PACKAGES`, whose versions are reported, and

    prepare(photos: list[bytes], folder: Path, batch: int) -> Callable[[], Iterator[int]]

which lays *photos* out in *folder* as the rival likes them best (with no photos: they lie there already) and gives an epoch: an
iterator of the sizes of its uint8 batches. The loader itself is built by the first `next()`, and then kept. Libraries are
imported inside `prepare`, so that one that is missing fails there, and only there.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

SIZE = 224
WORKERS = int(os.environ.get("STOKER_BENCH_WORKERS", "2"))
"""Worker processes, or threads, of every contender."""
SHARDS = 8
"""Shards of an epoch: every worker has as many as any other."""

AHEAD = 8
"""Batches read ahead where that can be set: as many as stoker has slots."""

Epoch = Callable[[], Iterator[int]]


def write_files(photos: list[bytes], folder: Path) -> list[str]:
    """The photos as `folder/<class>/<number>.jpg`; gives their paths, also those of an earlier call."""
    for number, raw in enumerate(photos):
        target = folder / f"{number % 10}" / f"{number:06d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(raw)
    return sorted(str(path) for path in folder.glob("*/*.jpg"))


def epochs(make: Callable[[], Iterable[Any]], size: Callable[[Any], int] = len) -> Epoch:
    """Epochs over the loader that *make* builds once; *size* is the number of images in one of its batches."""
    loader = functools.cache(make)

    def epoch() -> Iterator[int]:
        for batch in loader():
            yield size(batch)

    return epoch


def torchvision_augment() -> Callable[[Any], Any]:
    """JPEG (bytes or a uint8 tensor) → uint8 [3, 224, 224], by torchvision's own decoder and v2 transforms.

    Without a copy of the bytes, and contiguous as `RandomResizedCrop` leaves it: to stack [224, 224, 3] is slower.
    """
    import torch
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    change = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])

    def augment(raw: Any) -> Any:
        data = raw if isinstance(raw, torch.Tensor) else torch.frombuffer(raw, dtype=torch.uint8)
        return change(decode_image(data, ImageReadMode.RGB))

    return augment


def torch_options(batch: int) -> dict[str, Any]:
    """Options of every torch DataLoader here: workers that outlive an epoch; nothing is pinned, for there is no device."""
    return {
        "batch_size": batch, "num_workers": WORKERS, "prefetch_factor": max(2, AHEAD // WORKERS),
        "persistent_workers": True, "multiprocessing_context": "fork",
    }  # fmt: skip
