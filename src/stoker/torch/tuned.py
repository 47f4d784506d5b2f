"""The factories behind `stoker tune URL`: a dataset through torch's DataLoader, and through stoker's own loader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

import stoker
from stoker.decode import RandomResizedCrop
from stoker.format import IMAGE_FIELDS
from stoker.torch.collate import collate
from stoker.torch.datasets import MapDataset
from stoker.torch.sampler import BatchSampler


def _open(url: str, image_size: int, cache: str | None) -> tuple[stoker.Dataset, dict[str, object] | None]:
    """The dataset, and its fields as a training run would take them: pictures cropped at random, with their class."""
    dataset = stoker.open(url, cache=cache)
    if not image_size or not any(name in IMAGE_FIELDS for name in dataset.fields):
        return dataset, None
    fields: dict[str, object] = {"image": RandomResizedCrop(image_size, flip=True)}
    return dataset, {**fields, "cls": int} if "cls" in dataset.fields else fields


def make_loader(
    url: str,
    batch_size: int,
    image_size: int,
    cache: str | None,
    *,
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool = False,
    persistent_workers: bool = False,
    multiprocessing_context: str | None = None,
) -> DataLoader[dict[str, Any]]:
    """`stoker.torch.MapDataset` in a DataLoader."""
    dataset, fields = _open(url, image_size, cache)
    return DataLoader(
        MapDataset(dataset, fields), batch_sampler=BatchSampler(dataset, batch_size), collate_fn=collate,
        num_workers=num_workers, prefetch_factor=prefetch_factor, pin_memory=pin_memory,
        persistent_workers=persistent_workers, multiprocessing_context=multiprocessing_context,
    )  # fmt: skip


def stoker_loader(url: str, batch_size: int, image_size: int, cache: str | None) -> stoker.Loader:
    """`stoker.Loader` of the same."""
    dataset, fields = _open(url, image_size, cache)
    return stoker.Loader(dataset, batch_size, fields=fields)
