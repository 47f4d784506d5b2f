"""The last step of a batch in the feeder: closing the gaps of skipped samples, values without a common shape, the
user's batch_transform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stoker.clock import SYSTEM
from stoker.errors import SampleError
from stoker.loader.batch import UNSET, Batch
from stoker.loader.job import Job


class Collator:
    """Makes a filled slot a batch."""

    def __init__(self, job: Job) -> None:
        self._transform = job.batch_transform

    def finish(self, batch: Batch) -> None:
        """Close the batch: afterwards its first `rows` rows and its loose values are what the trainer gets."""
        begin = SYSTEM.monotonic()
        keep = [
            row for row in range(len(batch.samples)) if row not in batch.bad or batch.bad[row].replaced_by is not None
        ]
        if not keep:
            raise SampleError(f"every sample of a batch is bad; the first: {next(iter(batch.bad.values())).message}")
        batch.arrays["__index__"][:] = batch.samples
        if batch.mask is not None:
            batch.arrays["__mask__"][:] = batch.mask
        for name, values in batch.loose.items():
            array = batch.arrays.get(name)
            batch.loose[name] = [
                np.array(array[row]) if values[row] is UNSET and array is not None else values[row] for row in keep
            ]
        if len(keep) < len(batch.samples):
            for array in batch.arrays.values():
                array[: len(keep)] = array[keep]
            batch.keys = [batch.keys[row] for row in keep]
        if self._transform is not None:
            self._apply(batch, len(keep))
        batch.spent("collate", begin, SYSTEM.monotonic())

    def _apply(self, batch: Batch, rows: int) -> None:
        """Run the user's function on views of the slot; what it returns replaces fields."""
        assert self._transform is not None
        views: dict[str, Any] = {n: a[:rows] for n, a in batch.arrays.items() if n not in batch.loose}
        result: Mapping[str, Any] | None = self._transform({**views, **batch.loose, "__key__": list(batch.keys)})
        for name, value in (result or {}).items():
            view = views.get(name)
            if value is view or name.startswith("__"):
                continue
            given = np.asarray(value)
            if view is not None and given.shape == view.shape and np.can_cast(given.dtype, view.dtype, "same_kind"):
                view[...] = given
            else:
                batch.loose[name] = value
