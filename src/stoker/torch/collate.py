"""From samples to a batch, and from bytes to what a model takes: what a DataLoader's user writes by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data

from stoker.errors import UsageError
from stoker.loader.arrays import as_array

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's channels on a scale of 0 to 1, as torchvision's models were trained with."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Their standard deviation."""


def collate(samples: Sequence[Any]) -> Any:
    """One batch out of a list of sample dicts, as `stoker.Loader` would give it.

    Numbers and arrays of one shape become a tensor [batch, …] of their dtype, in shared memory inside a worker: one
    object a field crosses to the training process, however many samples there are. Values of differing shape, and
    strings, come as lists, and so does `__key__`. What is no list of dicts goes to torch's `default_collate`.
    UsageError when a sample lacks a field that the first one has.
    """
    if not samples or not all(isinstance(sample, dict) for sample in samples):
        return torch.utils.data.default_collate(list(samples))
    batch: dict[str, Any] = {}
    for name in samples[0]:
        lacking = next((at for at, sample in enumerate(samples) if name not in sample), None)
        if lacking is not None:
            raise UsageError(
                f"sample {samples[lacking].get('__key__', lacking)!r} has no field {name!r}, the batch's first has",
                "give every sample the same fields; None is a value",
            )
        batch[name] = _column([sample[name] for sample in samples])
    return batch


def _column(values: list[Any]) -> Any:
    """One field of all samples."""
    tensors = [_tensor(value) for value in values]
    alike = [t for t in tensors if t is not None and t.shape == _shape(tensors[0]) and t.dtype == _dtype(tensors[0])]
    if len(alike) == len(values):
        return torch.utils.data.default_collate(alike)  # shares memory in a worker
    return [value if tensor is None else tensor for value, tensor in zip(values, tensors, strict=True)]


def _shape(tensor: torch.Tensor | None) -> torch.Size | None:
    return None if tensor is None else tensor.shape


def _dtype(tensor: torch.Tensor | None) -> torch.dtype | None:
    return None if tensor is None else tensor.dtype


def _tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    array = as_array(value)
    if array is None:
        return None
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = np.array(array)
    return torch.from_numpy(array)


def normalize(
    images: torch.Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    *,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """uint8 [N, H, W, C] (or [H, W, C]) → float [N, C, H, W] of *dtype*: (value / 255 - mean) / std for each channel.

    The result is channels_last in memory, as the input is: nothing is moved about. It is computed in float32, where the
    images are; send bytes to the GPU and normalise there, which is a quarter of the copy. UsageError on anything but
    bytes, or when the channels are not as many as mean and std.
    """
    if images.dtype != torch.uint8 or images.ndim not in (3, 4):
        raise UsageError(
            f"normalize takes uint8 images [N, H, W, C], found {images.dtype} of shape {tuple(images.shape)}"
        )
    if not images.shape[-1] == len(mean) == len(std):
        raise UsageError(
            f"{images.shape[-1]} channels, but {len(mean)} means and {len(std)} standard deviations",
            "the channels of stoker's images come last",
        )
    offset = torch.tensor(mean, dtype=torch.float32, device=images.device) * 255
    scale = 1 / (torch.tensor(std, dtype=torch.float32, device=images.device) * 255)
    return images.float().sub_(offset).mul_(scale).movedim(-1, -3).to(dtype)
