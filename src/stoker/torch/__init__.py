"""stoker's datasets the torch way: `torch.utils.data.DataLoader` reads, in any number of workers, what `Loader` would.

samples = stoker.torch.MapDataset(stoker.open(url), {"image": stoker.image.CenterCrop(224), "cls": int})
batches = stoker.torch.BatchSampler(samples, 256, seed=42)
loader = DataLoader(samples, batch_sampler=batches, num_workers=8, collate_fn=stoker.torch.collate)
"""

from stoker.torch.collate import IMAGENET_MEAN, IMAGENET_STD, collate, normalize
from stoker.torch.datasets import IterableDataset, MapDataset
from stoker.torch.number import Number
from stoker.torch.sampler import BatchSampler, Sampler

__all__ = [
    "MapDataset", "IterableDataset", "Sampler", "BatchSampler", "Number", "collate", "normalize", "IMAGENET_MEAN",
    "IMAGENET_STD",
]  # fmt: skip
