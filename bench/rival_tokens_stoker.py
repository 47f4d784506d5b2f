"""stoker: shards of arrays, copied by its feeder."""

from __future__ import annotations

from pathlib import Path

from rival_kit import Epoch, epochs
from rival_tokens import LENGTH, arrays

PACKAGES = ("stoker", "torch")


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import stoker

    data = stoker.open(arrays(folder / "shards", LENGTH))
    return epochs(lambda: stoker.Loader(data, batch), lambda found: len(found["tokens"]))
