"""webdataset: tar shards split over the workers, shards and a buffer shuffled, decoded by torchvision.

The DataLoader's default collate writes the batch straight into shared memory; `.batched()` would copy it once more.
"""

from __future__ import annotations

from pathlib import Path

from rival_kit import SHARDS, Epoch, epochs, torch_options, torchvision_augment

PACKAGES = ("webdataset", "torch", "torchvision")


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import webdataset

    if photos:
        folder.mkdir(parents=True, exist_ok=True)
        with webdataset.ShardWriter(str(folder / "%04d.tar"), maxcount=-(-len(photos) // SHARDS), verbose=0) as out:
            for number, raw in enumerate(photos):
                out.write({"__key__": f"{number:06d}", "jpg": raw, "cls": str(number % 10)})
    augment = torchvision_augment()

    def make() -> webdataset.WebLoader:
        data = webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=SHARDS).shuffle(1000)
        decoded = data.to_tuple("jpg", "cls").map_tuple(augment, int)
        return webdataset.WebLoader(decoded, **torch_options(batch))

    return epochs(make, lambda found: len(found[0]))
