"""torch's DataLoader over one mapped file."""

from __future__ import annotations

from pathlib import Path

from rival_kit import Epoch, epochs, torch_options
from rival_tokens import one_file

PACKAGES = ("torch",)


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    rows = one_file(folder)

    class Rows(Dataset[torch.Tensor]):
        """One row a sample."""

        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, number: int) -> torch.Tensor:
            return torch.from_numpy(rows[number].copy())

    return epochs(lambda: DataLoader(Rows(), shuffle=True, **torch_options(batch)))
