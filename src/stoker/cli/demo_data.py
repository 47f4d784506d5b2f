"""What the demo trains on: crops of two real photographs, or the user's folder; and which samples are kept out of
training."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stoker.dataset import Dataset
from stoker.errors import MissingExtraError, UsageError
from stoker.flow import Progress

CROPS = 3000
HELD_OUT_EVERY = 5
QUALITY = 90


def cut_photos(folder: Path, progress: Progress, *, seed: int = 0) -> None:
    """Write CROPS JPEGs of varied size, cut from the two photographs that scikit-learn ships, into a folder a class."""
    try:
        loaded = importlib.import_module("sklearn.datasets").load_sample_images()
    except ImportError as error:
        raise MissingExtraError(
            "the demo's photographs come with scikit-learn", "pip install 'stoker[demo]'"
        ) from error
    random = np.random.default_rng(seed)
    pictures = {
        Path(name).stem: Image.fromarray(pixels) for name, pixels in zip(loaded.filenames, loaded.images, strict=True)
    }
    written = 0
    for number in range(CROPS):
        name, picture = list(pictures.items())[number % len(pictures)]
        width, height = int(random.integers(160, 400)), int(random.integers(140, 360))
        left, top = int(random.integers(0, picture.width - width)), int(random.integers(0, picture.height - height))
        target = folder / name / f"{name}_{number:05d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        picture.crop((left, top, left + width, top + height)).save(target, quality=QUALITY)
        written += target.stat().st_size
        progress(number + 1, CROPS, written)


@dataclass(frozen=True, slots=True)
class Division:
    """Which samples train and which only test."""

    train: frozenset[str]
    held_out: frozenset[str]
    classes: tuple[str, ...]


def divide(dataset: Dataset) -> Division:
    """Every fifth sample of each class that has five is held out; without such a class, or labels, nothing is."""
    if "cls" not in dataset.index.columns:
        keys = frozenset(dataset.index.key(i) for i in range(len(dataset)))
        return Division(keys, frozenset(), ())
    labels = dataset.index.column("cls").to_numpy()
    train: set[str] = set()
    held: set[str] = set()
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        for place, sample in enumerate(members):
            chosen = held if len(members) >= HELD_OUT_EVERY and place % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 else train
            chosen.add(dataset.index.key(int(sample)))
    if not train:
        raise UsageError(f"{dataset.url} holds no image to train on")
    return Division(frozenset(train), frozenset(held), dataset.classes or ())


@dataclass(frozen=True, slots=True)
class Keep:
    """A pack transform: lets the samples of one part through, with labels drawn anew when they shall mean nothing."""

    keys: frozenset[str]
    classes: int
    shuffle_seed: int | None

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any] | None:
        """The sample, or None when it belongs to the other part."""
        if sample["__key__"] not in self.keys:
            return None
        kept = dict(sample)
        kept.setdefault("cls", 0)
        if self.shuffle_seed is not None:
            drawn = np.random.default_rng([self.shuffle_seed, *sample["__key__"].encode("utf-8", "surrogateescape")])
            kept["cls"] = int(drawn.integers(max(1, self.classes)))
        return kept
