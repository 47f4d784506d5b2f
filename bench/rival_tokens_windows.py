"""stoker: windows over longer documents."""

from __future__ import annotations

from pathlib import Path

from rival_kit import Epoch, epochs
from rival_tokens import DOCUMENT, LENGTH, arrays

PACKAGES = ("stoker", "torch")


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import stoker

    data = stoker.tokens(stoker.open(arrays(folder / "shards", DOCUMENT)), length=LENGTH)
    return epochs(lambda: stoker.Loader(data, batch), lambda found: len(found["tokens"]))
