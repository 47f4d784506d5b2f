"""A transform in Pillow: pictures come as arrays, are turned and sharpened, and go back as arrays.

The same pictures however many threads work.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

import stoker


def turn(sample: dict[str, Any]) -> dict[str, Any]:
    """Rotate by up to 15 degrees and change the sharpness."""
    draw = random.Random(sample["__seed__"])
    image = Image.fromarray(sample["image"]).rotate(draw.uniform(-15, 15), Image.Resampling.BILINEAR)
    image = ImageEnhance.Sharpness(image).enhance(draw.uniform(0.5, 2))
    return {**sample, "image": np.asarray(image)}


dataset = stoker.open("photos")
fields = {"image": stoker.image.RandomResizedCrop(64, flip=True), "cls": int}
found = []
for threads in (1, 3):
    with stoker.Loader(
        dataset, 32, seed=1, fields=fields, transform=turn, budget=stoker.Budget(cpus=threads)
    ) as loader:
        found.append(next(iter(loader))["image"])
print(tuple(found[0].shape), found[0].dtype)
assert found[0].equal(found[1])
