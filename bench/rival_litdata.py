"""litData: chunks written by its `optimize`, streamed from the local folder, decoded by torchvision in its `transform`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rival_kit import Epoch, epochs, torch_options, torchvision_augment, write_files

PACKAGES = ("litdata", "torch", "torchvision")


def read(path: str) -> dict[str, Any]:
    """The sample that a chunk keeps of one file."""
    return {"jpg": Path(path).read_bytes(), "cls": int(Path(path).parent.name)}


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    import litdata

    chunks = folder / "chunks"
    if photos:
        paths = write_files(photos, folder / "raw")
        litdata.optimize(
            read, paths, str(chunks), chunk_bytes="16MB", num_workers=1, start_method="fork", verbose=False
        )
    augment = torchvision_augment()

    def change(sample: dict[str, Any]) -> tuple[Any, int]:
        return augment(sample["jpg"]), sample["cls"]

    def make() -> litdata.StreamingDataLoader:
        data = litdata.StreamingDataset(str(chunks), shuffle=True, drop_last=False, transform=change)
        return litdata.StreamingDataLoader(data, **torch_options(batch))

    return epochs(make, lambda found: len(found[0]))
