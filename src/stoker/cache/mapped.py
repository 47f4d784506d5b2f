"""A whole file of this machine in memory, for readers that copy many small pieces out of it.

Reading by pread costs a system call a piece; a mapping costs nothing, but a file that is cut short under it ends the
process with a bus error. `check` is therefore asked again and again by whoever reads: it turns all but the last
fraction of a second of that danger into an error that names the file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import numpy as np

from stoker.cache.descriptors import Descriptor
from stoker.errors import ChangedError


class Mapped:
    """The bytes of an open file, mapped for reading. The mapping ends with the last view of it."""

    def __init__(self, file: Descriptor, where: str, check: Callable[[os.stat_result], None] | None = None) -> None:
        """Map *file*, which must not be empty. *check* raises what is to be said of a file that changed."""
        self._file = file
        self._where = where
        self._check = check
        self.size = os.fstat(file.fd).st_size
        self.bytes = np.frombuffer(mmap.mmap(file.fd, self.size, access=mmap.ACCESS_READ), np.uint8)
        """uint8 [size], read-only."""
        self.address = int(self.bytes.ctypes.data)

    def check(self) -> None:
        """ChangedError when the file is no longer what was mapped."""
        found = os.fstat(self._file.fd)
        if found.st_size != self.size:
            raise ChangedError(
                f"{self._where} changed: mapped with {self.size} bytes, found {found.st_size}", "index it again"
            )
        if self._check is not None:
            self._check(found)

    def will_need(self, address: int, nbytes: int) -> None:
        """Have the bytes at *address* read from the disk, without waiting for them."""
        os.posix_fadvise(self._file.fd, address - self.address, nbytes, os.POSIX_FADV_WILLNEED)
