"""Page-locked memory: what a GPU can copy from while the CPU does something else.

Locking is by registration of memory that exists already (`cudaHostRegister`), so the slab that the feeder fills is
what the GPU reads: no second copy on the host."""

from __future__ import annotations

from typing import Any

import torch

from stoker.errors import StokerError


class PageLocked:
    """A range of this process's memory, locked until `close`."""

    def __init__(self, address: int, nbytes: int) -> None:
        self._address = address
        cuda: Any = torch.cuda  # torch leaves its run-time calls untyped
        self._runtime = cuda.cudart()
        code = int(self._runtime.cudaHostRegister(address, nbytes, 0))
        if code != 0:
            raise StokerError(
                f"cudaHostRegister refused {nbytes} bytes with code {code}",
                "raise `ulimit -l`, or make batches smaller",
            )

    def close(self) -> None:
        """Unlock; copies from the range must be over."""
        if self._address:
            self._runtime.cudaHostUnregister(self._address)
            self._address = 0
