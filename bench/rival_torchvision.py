"""torch's DataLoader over files, torchvision's `decode_image` and v2 transforms on uint8 tensors."""

from __future__ import annotations

from pathlib import Path

from rival_kit import Epoch, epochs, torch_options, torchvision_augment, write_files

PACKAGES = ("torch", "torchvision")


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import torch
    from torch.utils.data import DataLoader, Dataset
    from torchvision.io import read_file

    paths = write_files(photos, folder)
    augment = torchvision_augment()

    class Photos(Dataset[torch.Tensor]):
        """Files, decoded in the worker."""

        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, number: int) -> torch.Tensor:
            return augment(read_file(paths[number]))

    return epochs(lambda: DataLoader(Photos(), shuffle=True, **torch_options(batch)))
