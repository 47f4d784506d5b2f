"""A pipeline of albumentations, seeded for each sample: the same pictures however many threads work.

Needs `pip install albumentations`.
"""

from __future__ import annotations

import os
import threading
from typing import Any

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # else it asks the network for its newest version
import albumentations as album
import cv2

import stoker


class Augment:
    """One pipeline a thread, since a pipeline holds its generator."""

    def __init__(self) -> None:
        self._pipelines: dict[int, album.Compose] = {}

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        thread = threading.get_ident()
        if thread not in self._pipelines:
            cv2.setNumThreads(0)  # the feeder has its own threads
            self._pipelines[thread] = album.Compose(
                [album.Affine(rotate=(-20, 20), scale=(0.9, 1.1)), album.ColorJitter(), album.GaussNoise(p=0.5)]
            )
        pipeline = self._pipelines[thread]
        pipeline.set_random_seed(sample["__seed__"] % 2**32)
        return {**sample, "image": pipeline(image=sample["image"])["image"]}


dataset = stoker.open("photos")
fields = {"image": stoker.image.RandomResizedCrop(64, flip=True), "cls": int}
found = []
for threads in (1, 3):
    with stoker.Loader(
        dataset, 32, seed=1, fields=fields, transform=Augment(), budget=stoker.Budget(cpus=threads)
    ) as loader:
        found.append(next(iter(loader))["image"])
print(tuple(found[0].shape), found[0].dtype, f"{found[0].float().mean():.3f}")
assert found[0].equal(found[1])
