"""A transform in torch: float pictures [channels, height, width] with noise from a generator of the sample's own.

The same noise in `stoker.Loader` and in torch's DataLoader, with any number of workers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

import stoker
import stoker.torch


def noisy(sample: dict[str, Any]) -> dict[str, Any]:
    """Between -1 and 1, with a little noise; torch's global generator would be shared by the feeder's threads."""
    draw = torch.Generator().manual_seed(sample["__seed__"] % 2**63)
    image = torch.from_numpy(sample["image"]).movedim(-1, 0).float() / 127.5 - 1
    image += 0.05 * torch.randn(image.shape, generator=draw)
    return {**sample, "image": image}


def main() -> None:
    """A batch by each way."""
    dataset = stoker.open("photos")
    fields = {"image": stoker.image.RandomResizedCrop(64, flip=True), "cls": int}
    with stoker.Loader(dataset, 32, seed=1, fields=fields, transform=noisy) as loader:
        batch = next(iter(loader))
    print(tuple(batch["image"].shape), batch["image"].dtype, f"{batch['image'].std():.3f}")
    samples = stoker.torch.MapDataset(dataset, fields, transform=noisy)
    for workers in (0, 1, 2):
        batches = stoker.torch.BatchSampler(dataset, 32, seed=1)
        torch_loader = DataLoader(
            samples, batch_sampler=batches, collate_fn=stoker.torch.collate, num_workers=workers,
            multiprocessing_context="forkserver" if workers else None,
        )  # fmt: skip
        assert next(iter(torch_loader))["image"].equal(batch["image"])


if __name__ == "__main__":
    main()
