"""The one file of the loader that imports torch: arrays over shared memory become tensors over the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from stoker.device import Copier, PageLocked
from stoker.loader.slab import Slab
from stoker.order.shuffle import derive_key


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor over *array*'s memory, which stays alive with it."""
    return torch.from_numpy(array)


DeviceTransform = Callable[[dict[str, Any]], Mapping[str, Any] | None]


def changed(batch: dict[str, Any], transform: DeviceTransform, draw: int) -> dict[str, Any]:
    """The batch with the fields that *transform* gives in place of those of the same name."""
    with torch.no_grad():
        result = transform({**batch, "__seed__": draw})
    if result is not None and not isinstance(result, Mapping):
        raise TypeError(f"device_transform must return a dict of fields or None, found {type(result).__name__}")
    return {**batch, **{name: value for name, value in (result or {}).items() if not name.startswith("__")}}


class Device:
    """Where batches go when `Loader(device=…)` says so: the slab is page-locked for a GPU, the copies run on a side
    stream."""

    def __init__(self, name: str, transform: DeviceTransform | None, seed: int) -> None:
        self._copier = Copier(name)
        self._transform = transform
        self._seed = seed
        self._locked: list[PageLocked] = []
        self.arrived = self._copier.arrived

    def copy(self, batch: dict[str, Any], epoch: int) -> tuple[dict[str, Any], Any]:
        """The batch on its way there, the user's function applied, and the event of its arrival."""
        transform = self._transform
        if transform is None:
            return self._copier(batch)
        draw = derive_key(self._seed, epoch, "device", int(batch["__index__"][0]))
        return self._copier(batch, lambda moved: changed(moved, transform, draw))

    def attach(self, slab: Slab) -> None:
        """Lock the slab's pages; on a CPU there is nothing to lock."""
        if self._copier.device.type == "cuda":
            self._locked.append(PageLocked(*slab.address()))

    def close(self) -> None:
        """Finish the copies and unlock."""
        self._copier.close()
        for locked in self._locked:
            locked.close()


def device(name: str | None, transform: DeviceTransform | None, seed: int) -> Device | None:
    """The device of that name."""
    return None if name is None else Device(name, transform, seed)
