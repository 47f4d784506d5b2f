"""MosaicML streaming: local MDS shards of a fixed array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rival_kit import Epoch, epochs, torch_options
from rival_tokens import LENGTH, blocks

PACKAGES = ("mosaicml-streaming", "torch")


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import streaming
    from torch.utils.data import DataLoader

    if not folder.exists():
        with streaming.MDSWriter(
            out=str(folder), columns={"tokens": f"ndarray:int32:{LENGTH}"}, size_limit=1 << 26
        ) as out:
            for block in blocks():
                for tokens in block:
                    out.write({"tokens": tokens})

    def make() -> DataLoader[Any]:
        streaming.base.util.clean_stale_shared_memory()
        data = streaming.StreamingDataset(local=str(folder), shuffle=True, batch_size=batch, num_canonical_nodes=1)
        return DataLoader(data, **torch_options(batch))

    return epochs(make, lambda found: len(found["tokens"]))
