"""The thin layer over the file system: every change that a checkpoint makes to a disk is one call here.

So `watch` can stand before each of them: tests kill the process at operation N, for every N, or let it fail with EIO.
Durability order is the caller's business and goes: data, fsync of the file, fsync of the folder that names it, and only
then whatever says that it is there. Files are written around the page cache (O_DIRECT) where the file system takes it:
that is about twice as fast as buffered writing with fsync, and training's page cache stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import numpy as np

from stoker.errors import CheckpointError
from stoker.units import format_bytes

BLOCK_BYTES = 4096
"""O_DIRECT wants addresses, offsets and lengths that are multiples of the device's block."""
CHUNK_BYTES = 16 << 20
_NO_RESERVE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}

Watch = Callable[[str, Path], None]


def _nothing(operation: str, path: Path) -> None:
    """The Watch of a process that nobody tests."""


watch: Watch = _nothing
"""Called before each operation with its name and path; may raise OSError or end the process."""


def crc32c(data: memoryview | bytes, start: int = 0) -> int:
    """The CRC32C of *data*, going on from *start*. 10 GB/s a core."""
    return int(google_crc32c.extend(start, np.frombuffer(data, dtype=np.uint8))) if len(data) else start


def make_folder(path: Path) -> None:
    """One new folder, whose name is durable when this returns; no error when it is there."""
    watch("mkdir", path)
    try:
        path.mkdir()
    except FileExistsError:
        return
    sync_folder(path.parent)


def make_root(path: Path) -> None:
    """The folder of a tier and those above it."""
    if not path.is_dir():
        make_root(path.parent)
        make_folder(path)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    watch("sync_folder", path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(path: Path) -> int:
    """Bytes that an unprivileged process may still write to the file system of *path*."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def has_room(path: Path, wanted: int) -> bool:
    """Whether *wanted* bytes fit. True where nobody can tell (a disk or folder is gone): writing says why."""
    try:
        return free_bytes(path) >= wanted
    except OSError:
        return True


def check_room(path: Path, wanted: int) -> None:
    """CheckpointError with both numbers when there is no room for *wanted* bytes: asked before anything is written."""
    free = free_bytes(path)
    if free < wanted:
        raise CheckpointError(
            f"{path}: a checkpoint needs {format_bytes(wanted)}, the disk has {format_bytes(free)} left",
            "make room, keep fewer checkpoints locally, or use a larger disk",
        )


@contextlib.contextmanager
def _open(path: Path, *, direct: bool) -> Iterator[int]:
    """A new or emptied file to write; without O_DIRECT where the file system refuses it."""
    watch("create", path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | (os.O_DIRECT if direct else 0), 0o644)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, path: Path, data: memoryview, at: int) -> None:
    """All of *data*; short writes go on, and a refusal of O_DIRECT at this late moment ends O_DIRECT."""
    watch("write", path)
    while data:
        try:
            done = os.pwrite(descriptor, data, at)
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            continue
        data, at = data[done:], at + done


def _sync(descriptor: int, path: Path) -> None:
    watch("sync", path)
    os.fsync(descriptor)


Ready = Callable[[int], None]
"""Returns when so many bytes of some memory have their content."""


def write_large(path: Path, data: memoryview, ready: Ready = lambda nbytes: None, first: int = 0) -> int:
    """Write a file of whole blocks from page-aligned memory, durable when this returns (its name apart); its CRC32C.

    The sum of a chunk is computed while the chunk is written: bytes are read from memory once more, not from disk.
    *ready* is asked for each chunk before it is read; *data* begins with byte *first* of what it knows.
    """
    crc = 0
    with _open(path, direct=True) as descriptor, ThreadPoolExecutor(1, "stoker-crc32c") as pool:
        try:
            os.posix_fallocate(descriptor, 0, len(data))
        except OSError as error:
            if error.errno not in _NO_RESERVE:
                raise
        for at in range(0, len(data), CHUNK_BYTES):
            chunk = data[at : at + CHUNK_BYTES]
            ready(first + at + len(chunk))
            summed = pool.submit(crc32c, chunk, crc)
            _write(descriptor, path, chunk, at)
            crc = summed.result()
        _sync(descriptor, path)
    return crc


def write_small(path: Path, data: bytes) -> int:
    """Write a file through the page cache, durable when this returns (its name apart); its CRC32C."""
    with _open(path, direct=False) as descriptor:
        _write(descriptor, path, memoryview(data), 0)
        _sync(descriptor, path)
    return crc32c(data)


def write_named(path: Path, data: bytes) -> None:
    """Write a small file that appears whole or not at all, durable with its name when this returns.

    The temporary's name is this process's own: a trainer that resumes and its keeper may set the same mark at once.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    write_small(temporary, data)
    watch("rename", path)
    temporary.replace(path)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file; no error when it is gone."""
    watch("remove", path)
    path.unlink(missing_ok=True)


def remove_attempt(folder: Path, first: str) -> None:
    """Remove a checkpoint's folder: the file called *first* durably before all else, so that no half of a checkpoint is
    ever taken for a whole one. Interrupted anywhere, it can be called again."""
    if (folder / first).exists():
        remove(folder / first)
        sync_folder(folder)
    for place, folders, names in os.walk(folder, topdown=False):
        for name in names:
            remove(Path(place, name))
        for name in folders:
            _remove_folder(Path(place, name))
    _remove_folder(folder)
    sync_folder(folder.parent)


def _remove_folder(path: Path) -> None:
    watch("rmdir", path)
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()
