"""The file below a new HDF5 shard: one that never fails in the sight of the library.

libhdf5 does not survive a full disk: what it could not write stays in its caches, each later attempt to close the file
fails again, and at the end the process dies of a signal. So errors stop here: the first is kept for the writer, which
asks for it, and from then on bytes are dropped. What the library writes is the same as without this.
"""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class UnfailingFile(io.RawIOBase):
    """A new file; `check` raises the OSError that a write met."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb+", buffering=0)
        self._error: OSError | None = None

    def check(self) -> None:
        """OSError when not everything is in the file."""
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Take no more bytes."""
        self._error = self._error or OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        return self._file.readinto(buffer)

    def write(self, data: ReadableBuffer, /) -> int:
        left = memoryview(data).cast("B")
        count = len(left)
        try:
            while left and self._error is None:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._error = error
        return count

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return self._file.truncate(size) if self._error is None else size or 0
        except OSError as error:
            self._error = error
            return size or 0

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:  # a network's disk may tell only now
            self._error = self._error or error
        super().close()
