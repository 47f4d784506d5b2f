"""A transform in torch: float pictures [channels, height, width] with noise from a generator of the sample's own."""

from __future__ import annotations

from typing import Any

import torch

import stoker


def noisy(sample: dict[str, Any]) -> dict[str, Any]:
    """Between -1 and 1, with a little noise; torch's global generator would be shared by the feeder's threads."""
    draw = torch.Generator().manual_seed(sample["__seed__"] % 2**63)
    image = torch.from_numpy(sample["image"]).movedim(-1, 0).float() / 127.5 - 1
    image += 0.05 * torch.randn(image.shape, generator=draw)
    return {**sample, "image": image}


dataset = stoker.open("photos")
fields = {"image": stoker.image.RandomResizedCrop(64, flip=True), "cls": int}
with stoker.Loader(dataset, 32, seed=1, fields=fields, transform=noisy) as loader:
    batch = next(iter(loader))
    print(tuple(batch["image"].shape), batch["image"].dtype, f"{batch['image'].std():.3f}")
