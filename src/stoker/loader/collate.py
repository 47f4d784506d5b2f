"""The last step of a batch in the feeder: closing the gaps of skipped samples, values without a common shape,
padding, the user's batch_transform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np

from stoker.clock import SYSTEM
from stoker.dataset import Keys
from stoker.errors import UsageError
from stoker.loader.arrays import as_array, fits
from stoker.loader.batch import UNSET, Batch
from stoker.loader.job import Job
from stoker.loader.padding import LENGTH, Padding, row_of
from stoker.order.shuffle import derive_key


class Collator:
    """Makes a filled slot a batch."""

    def __init__(self, job: Job) -> None:
        self._transform = job.batch_transform
        self._key = job.dataset.key
        self._seed = job.seed
        self._padding = job.padding

    def finish(self, batch: Batch) -> None:
        """Close the batch: afterwards its first `rows` rows and its loose values are what the trainer gets."""
        begin = SYSTEM.monotonic()
        gone = {row for row, bad in batch.bad.items() if bad.replaced_by is None}
        rows = range(len(batch.samples))
        keep = [row for row in rows if row not in gone] if gone else rows
        batch.arrays["__index__"][: len(batch.samples)] = batch.samples
        if batch.mask is not None:
            batch.arrays["__mask__"][: len(batch.mask)] = batch.mask
        for name, values in batch.loose.items():
            array = batch.arrays.get(name)
            batch.loose[name] = [
                np.array(array[row]) if values[row] is UNSET and array is not None else values[row] for row in keep
            ]
        if gone:
            for array in batch.arrays.values():
                array[: len(keep)] = array[keep]
            batch.samples = batch.samples[keep]
        batch.rows = len(batch.samples)
        if self._padding is not None and batch.rows:
            self._pad(self._padding, batch)
        if self._transform is not None and batch.rows:
            self._apply(batch, batch.rows)
        batch.spent("collate", begin, SYSTEM.monotonic())

    def _pad(self, padding: Padding, batch: Batch) -> None:
        """Make each padded field one array, in the slot where it has room enough."""
        for name in padding.values:
            room = batch.arrays[name]
            values: Sequence[object] = batch.loose.pop(name) if name in batch.loose else list(room[: batch.rows].copy())
            rows = [row_of(name, value, room) for value in values]
            out = padding.fill(name, rows, room)
            batch.arrays[LENGTH.format(name)][: batch.rows] = [len(row) for row in rows]
            if np.shares_memory(out, room):
                batch.arrays[name], batch.padded = out, (*batch.padded, (name, out.shape))
            else:
                batch.loose[name] = out  # type: ignore[assignment]  # a whole column

    def _apply(self, batch: Batch, rows: int) -> None:
        """Run the user's function on views of the slot; what it returns replaces fields."""
        assert self._transform is not None
        views: dict[str, Any] = {n: a[:rows] for n, a in batch.arrays.items() if n not in batch.loose}
        # a number of the batch: its step counts from where a run was resumed, its first sample does not
        draw = derive_key(self._seed, batch.epoch, "batch", int(batch.samples[0]))
        keys = Keys(self._key, batch.samples)
        result = self._transform({**views, **batch.loose, "__key__": keys, "__seed__": draw})
        if result is not None and not isinstance(result, Mapping):
            raise TypeError(f"batch_transform must return a dict of fields or None, found {type(result).__name__}")
        for name, value in (result or {}).items():
            view = views.get(name)
            if value is view or name.startswith("__"):
                continue
            given = as_array(value)
            if (name in views or name in batch.loose) and (given is None or given.ndim) and _length(value) != rows:
                raise UsageError(
                    f"batch_transform gave field {name!r} with {_length(value)} rows, the batch has {rows}",
                    "fields that were there keep their rows; give what has others a new name",
                )
            if (
                view is not None
                and given is not None
                and given.shape == view.shape  # another shape may be of another dtype: labels become shares
                and fits(name, given, view.shape, view.dtype)
            ):
                view[...] = given
            else:
                batch.loose[name] = value if given is None else given  # type: ignore[assignment]  # a whole column


def _length(value: object) -> int:
    """Rows of a value; -1 for what has none."""
    return len(value) if isinstance(value, Sized) else -1
