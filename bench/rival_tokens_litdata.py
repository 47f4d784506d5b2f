"""litData: chunks written by its `optimize`, streamed from the local folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rival_kit import Epoch, epochs, torch_options
from rival_tokens import blocks

PACKAGES = ("litdata", "torch")


def rows(_: int) -> Iterator[dict[str, Any]]:
    """Every sample."""
    for block in blocks():
        for tokens in block:
            yield {"tokens": tokens}


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import litdata

    chunks = folder / "chunks"
    if not chunks.exists():
        folder.mkdir(parents=True, exist_ok=True)
        litdata.optimize(rows, [0], str(chunks), chunk_bytes="64MB", num_workers=1, start_method="fork", verbose=False)

    def make() -> litdata.StreamingDataLoader:
        data = litdata.StreamingDataset(str(chunks), shuffle=True, drop_last=False)
        return litdata.StreamingDataLoader(data, **torch_options(batch))

    return epochs(make, lambda found: len(found["tokens"]))
