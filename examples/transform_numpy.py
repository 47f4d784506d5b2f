"""A transform in NumPy, one sample at a time, and Mixup or CutMix on the batch: the same however many threads work."""

from __future__ import annotations

from typing import Any

import numpy as np

import stoker


def erase(sample: dict[str, Any]) -> dict[str, Any]:
    """Brighten or darken by up to 20 %, and blank a square."""
    draw = np.random.default_rng(sample["__seed__"])
    image = np.clip(sample["image"] * draw.uniform(0.8, 1.2), 0, 255).astype(np.uint8)
    top, left = draw.integers(0, image.shape[0] - 16, 2)
    image[top : top + 16, left : left + 16] = 0
    return {**sample, "image": image}


dataset = stoker.open("photos")
fields = {"image": stoker.image.RandomResizedCrop(64, flip=True), "cls": int}
mixing = stoker.image.OneOf(stoker.image.Mixup(0.8, classes=2), stoker.image.CutMix(1.0, classes=2))
means = []
for threads in (1, 3):
    with stoker.Loader(
        dataset, 32, seed=1, fields=fields, transform=erase, batch_transform=mixing, output="numpy",
        budget=stoker.Budget(cpus=threads),
    ) as loader:  # fmt: skip
        batch = next(iter(loader))
        means.append(float(batch["image"].mean()))
print(batch["image"].shape, batch["image"].dtype, batch["cls"].shape, f"λ {batch['lam'][0]:.3f}")
assert means[0] == means[1]
