"""stoker: packed shards, its Loader with as many decoding threads as the others have workers."""

from __future__ import annotations

from pathlib import Path

from rival_kit import SIZE, WORKERS, Epoch, epochs, write_files

PACKAGES = ("stoker", "simplejpeg", "torch")


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import stoker
    from stoker.decode import RandomResizedCrop
    from stoker.loader import Budget
    from stoker.pack import pack

    if photos:
        write_files(photos, folder / "raw")
        pack(str(folder / "raw"), str(folder / "shards"), shard_size="16MB")
    fields: dict[str, object] = {"image": RandomResizedCrop(SIZE, flip=True), "cls": int}
    data = stoker.open(folder / "shards")
    return epochs(
        lambda: stoker.Loader(data, batch, fields=fields, budget=Budget(cpus=WORKERS)),
        lambda found: len(found["image"]),
    )
