"""DALI on the CPU: files, decoding of the crop's region only, antialiased resize, flip; its own iterator for torch.

Its reader goes on into the next epoch while this one ends. `resize_crop_mirror`, which fuses the last two, is no faster here, nor is
the dynamic executor, nor batches taken by DLPack without the iterator. Every operator keeps the queue's depth of buffers, hence 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rival_kit import AHEAD, SIZE, WORKERS, Epoch, epochs, write_files

PACKAGES = ("nvidia-dali-cuda120", "torch")


def prepare(photos: list[bytes], folder: Path, batch: int) -> Epoch:
    """See `rival_kit`."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    paths = write_files(photos, folder)

    @pipeline_def(batch_size=batch, num_threads=WORKERS, device_id=None, seed=1, prefetch_queue_depth=AHEAD // 2)
    def road() -> Any:
        raw, label = fn.readers.file(
            file_root=str(folder), random_shuffle=True, initial_fill=len(paths), name="photos"
        )  # fmt: skip
        crop = fn.decoders.image_random_crop(
            raw, device="cpu", output_type=types.RGB, random_area=[0.08, 1], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        small = fn.resize(crop, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(small, horizontal=fn.random.coin_flip()), label

    def make() -> DALIGenericIterator:
        return DALIGenericIterator(
            [road()], ["image", "cls"], reader_name="photos", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
        )

    return epochs(make, lambda found: len(found[0]["image"]))
