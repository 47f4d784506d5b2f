"""Open files, a bounded number of them: reading by pread needs no open(2) each time and cannot end in SIGBUS.

A descriptor that falls out while another thread reads by it is closed when that thread lets go: the last reference
closes it, so there is nothing to count.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

DESCRIPTORS_MAX = 256
"""Open files per reader; processes may usually have 1,024."""


class Descriptor:
    """An open file that closes itself when nobody holds it any more."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class Descriptors:
    """The files used last, by name. Thread-safe."""

    def __init__(self, open_max: int = DESCRIPTORS_MAX) -> None:
        self._open_max = open_max
        self._lock = threading.Lock()
        self._files: OrderedDict[Hashable, Descriptor] = OrderedDict()

    def get(self, name: Hashable) -> Descriptor | None:
        """The open file of *name*, if there is one."""
        with self._lock:
            found = self._files.get(name)
            if found is not None:
                self._files.move_to_end(name)
            return found

    def get_or_open(self, name: Hashable, opener: Callable[[], int]) -> Descriptor:
        """The open file of *name*; opened, outside the lock, when there is none."""
        found = self.get(name)
        if found is None:
            found = Descriptor(opener())
            with self._lock:
                self._files[name] = found
                if len(self._files) > self._open_max:
                    self._files.popitem(last=False)
        return found

    def drop(self, name: Hashable) -> None:
        """Forget the open file of *name*."""
        with self._lock:
            self._files.pop(name, None)

    def close(self) -> None:
        """Forget all; each closes when its last reader is done."""
        with self._lock:
            self._files.clear()
