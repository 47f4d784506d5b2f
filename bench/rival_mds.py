"""MosaicML streaming: local MDS shards, shuffled by its default algorithm, decoded by torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rival_kit import Epoch, epochs, torch_options, torchvision_augment

PACKAGES = ("mosaicml-streaming", "torch", "torchvision")


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import streaming
    from torch.utils.data import DataLoader

    if photos:
        with streaming.MDSWriter(out=str(folder), columns={"jpg": "bytes", "cls": "int"}, size_limit=16 << 20) as out:
            for number, raw in enumerate(photos):
                out.write({"jpg": raw, "cls": number % 10})
    augment = torchvision_augment()

    class Photos(streaming.StreamingDataset):  # type: ignore[misc]
        """Samples with the photo decoded."""

        def __getitem__(self, at: int) -> Any:
            sample = super().__getitem__(at)
            return augment(sample["jpg"]), sample["cls"]

    def make() -> DataLoader[Any]:
        streaming.base.util.clean_stale_shared_memory()
        data = Photos(local=str(folder), shuffle=True, batch_size=batch, num_canonical_nodes=1)
        return DataLoader(data, **torch_options(batch))

    return epochs(make, lambda found: len(found[0]))
