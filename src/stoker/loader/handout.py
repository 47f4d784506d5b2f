"""From a slot to what the user gets: arrays or tensors over shared memory, a copy where too few slots are left.

A loop that keeps its batches (`list(loader)`) would use up the slots and wait for ever. When a hand-out would leave the
feeder no free slot, the batch is copied to ordinary memory instead, with one warning.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stoker.dataset import Keys
from stoker.errors import UsageError
from stoker.loader.batch import Delivered
from stoker.loader.slab import Slab

KEPT_WARNING = (
    "batches of this stoker.Loader are kept while new ones are drawn; they are copied to ordinary memory from now on. "
    "Keep copies of what you need, or nothing, to save that time."
)

ToTensor = Callable[[np.ndarray], Any]


class HandOut:
    """Makes batches of slots and knows which slots came back."""

    def __init__(self, slab: Slab, to_tensor: ToTensor | None, key: Callable[[int], str], *, kept: bool) -> None:
        """*kept*: the user gets the slot's own memory, not a copy of it on a device. *key* tells a sample's key."""
        self._slab = slab
        self._to_tensor = to_tensor
        self._freed: deque[int] = deque()
        self._out = 0
        self._warned = not kept
        self._kept = kept
        self._key = key
        self._open: tuple[dict[str, np.ndarray], bool] | None = None
        """The arrays of a slot with more batches in it, and whether they are copied."""

    def freed(self) -> list[int]:
        """Slots that came back since the last call."""
        slots = []
        while self._freed:
            slots.append(self._freed.popleft())
        self._out -= len(slots)
        return slots

    def must_copy(self, told: Delivered) -> bool:
        """Whether that batch must leave its slot at once."""
        if self._open is not None and not told.opens:
            return self._open[1]
        return self._kept and self._slab.slots - self._out <= 2

    def batch(self, told: Delivered) -> dict[str, Any]:
        """The batch of a slot; the slot comes back when nothing refers to it any more."""
        copy = self.must_copy(told)
        if copy and not self._warned:
            self._warned = True
            warnings.warn(KEPT_WARNING, stacklevel=7)
        if self._open is None or told.opens:
            self._out += 1
            views = self._slab.layout.views(self._slab.hand_out(told.slot, self._freed))
        else:
            views = self._open[0]
        self._open = (views, copy) if told.steps > 1 else None
        batch: dict[str, Any] = {}
        stop = told.first + told.rows
        whole = stop - told.first == self._slab.layout.rows
        samples = views["__index__"][told.first : stop]
        padded = dict(told.padded)
        for name, array in views.items():
            if name in told.loose:
                continue
            rows = array if whole else array[told.first : stop]
            if name in padded:
                rows = array.reshape(-1)[: math.prod(padded[name])].reshape(padded[name])
            if copy:
                rows = rows.copy()
            batch[name] = rows if self._to_tensor is None else self._to_tensor(rows)
        for name, values in told.loose.items():
            batch[name] = self._loose(values)
        batch["__key__"] = Keys(self._key, samples.copy())
        return batch

    def leave(self) -> None:
        """The rest of the slot that batches are being made of is not wanted any more."""
        self._open = None

    def _loose(self, values: Any) -> Any:
        if self._to_tensor is None:
            return values
        if isinstance(values, np.ndarray):
            return self._tensor(values)
        return (
            [self._tensor(v) if isinstance(v, np.ndarray) else v for v in values]
            if isinstance(values, list)
            else values
        )

    def _tensor(self, value: np.ndarray) -> Any:
        assert self._to_tensor is not None
        return self._to_tensor(value) if value.dtype.kind in "biufc" and value.dtype.isnative else value


def as_tuple(batch: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    """The fields alone. UsageError for one that a transform took away."""
    missing = [name for name in names if name not in batch]
    if missing:
        raise UsageError(
            f"layout='tuple' gives the fields {', '.join(names)}, but the batch has no {', '.join(missing)}; it has "
            f"{', '.join(name for name in batch if not name.startswith('__'))}",
            "a transform that renames or drops fields needs layout='dict'",
        )
    return tuple(batch[name] for name in names)
