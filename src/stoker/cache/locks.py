"""Locks between processes: open-file-description locks on bytes of a file.

The kernel drops them with their holder, also after a kill -9, so nothing is ever stale; they work across users and
containers that share the disk. Surprising: a forked child inherits the open file and would go on holding the lock after
its parent let go, so inherited lock files are closed in every forked child.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import weakref
from pathlib import Path

from stoker.errors import CacheError

_FLOCK = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length, pid."""
_files: weakref.WeakSet[LockFile] = weakref.WeakSet()


class LockFile:
    """An open file whose bytes can be locked. One object excludes all others, in this process too."""

    def __init__(self, path: Path, *, mode: int) -> None:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise CacheError(f"{path}: a cache needs Linux (open-file-description locks)", "read without cache=")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        with contextlib.suppress(PermissionError):
            os.fchmod(self._fd, mode)  # whatever the umask says: other users lock here too
        _files.add(self)

    def try_lock(self, byte: int) -> bool:
        """Lock one byte for this object alone; False when another holds it."""
        try:
            self._set(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, byte)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def lock(self, byte: int) -> None:
        """Lock one byte, waiting for whoever holds it: for short work only."""
        self._set(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, byte)

    def unlock(self, byte: int) -> None:
        self._set(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, byte)

    def close(self) -> None:
        """Let go of all locks."""
        _files.discard(self)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _set(self, command: int, kind: int, byte: int) -> None:
        if self._fd < 0:
            raise CacheError("a lock file of another process or a closed cache was used")
        fcntl.fcntl(self._fd, command, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))


def is_locked(path: Path, byte: int) -> bool:
    """Whether somebody holds the lock on a byte of a file; False when there is no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        return bool(struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)
    finally:
        os.close(fd)


def _close_inherited() -> None:
    for file in list(_files):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
