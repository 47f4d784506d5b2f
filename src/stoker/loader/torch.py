"""The one file of the loader that imports torch: arrays over shared memory become tensors over the same memory."""

from __future__ import annotations

import numpy as np
import torch

from stoker.device import Copier, PageLocked
from stoker.loader.slab import Slab


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor over *array*'s memory, which stays alive with it."""
    return torch.from_numpy(array)


class Device:
    """Where batches go when `Loader(device=…)` says so: the slab is page-locked for a GPU, the copies run on a side
    stream."""

    def __init__(self, name: str) -> None:
        self.copy = Copier(name)
        self._locked: list[PageLocked] = []

    def attach(self, slab: Slab) -> None:
        """Lock the slab's pages; on a CPU there is nothing to lock."""
        if self.copy.device.type == "cuda":
            self._locked.append(PageLocked(*slab.address()))

    def close(self) -> None:
        """Finish the copies and unlock."""
        self.copy.close()
        for locked in self._locked:
            locked.close()
