"""Files that appear whole or not at all: a temporary sibling, fsync, rename, fsync of the folder. And scratch folders.

A temporary's name carries its owner, so that what a killed process left behind can be told from what a live one writes.
Surprising: on a file system shared between machines a foreign boot id proves nothing (the owner may live elsewhere), so
temporaries of other boots are swept only after a day without a write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from stoker.errors import AccessError, StoreError
from stoker.machine import boot_id, owner_lives, owner_token, scratch_folder
from stoker.store.keys import TEMPORARY_PREFIX

FOREIGN_AGE_S_MIN = 86_400
"""Seconds without a write after which a temporary of another boot counts as left behind."""


@contextlib.contextmanager
def named(where: str, full: str = "make room on the disk") -> Iterator[None]:
    """Turn the system's errors (a full disk, no permission) into StoreErrors that say *where*; *full* is their hint."""
    try:
        yield
    except StoreError:
        raise
    except PermissionError as error:
        raise AccessError(f"{where}: {error.strerror or error}") from error
    except OSError as error:
        hint = full if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
        said = os.strerror(error.errno) if error.errno else str(error)  # a library's own text may be a whole story
        raise StoreError(f"{where}: {said}", hint) from error


def temporary_name() -> str:
    """A new name for a half-written file of this process."""
    return f"{TEMPORARY_PREFIX}{owner_token().replace('/', '_')}_{uuid.uuid4().hex[:12]}"


def fsync_folder(folder: Path) -> None:
    """Make the names in *folder* survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Like `mkdir -p`, and every new name is on disk before it returns."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)


@contextlib.contextmanager
def whole_file(target: Path, *, publish: Callable[[Path, Path], object] = os.replace) -> Iterator[BinaryIO]:
    """A file to write that becomes *target* when the block ends well, and vanishes when it does not.

    *publish(temporary, target)* gives it its name; afterwards no temporary is left whatever happened.
    """
    make_folders(target.parent)
    temporary = target.parent / temporary_name()
    try:
        with temporary.open("xb", buffering=0) as file:
            yield file
            os.fsync(file.fileno())
        publish(temporary, target)
        fsync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_all(file: BinaryIO, data: memoryview) -> None:
    """Write every byte to an unbuffered file; one write(2) moves at most 2 GiB."""
    while data:
        data = data[file.write(data) :]


def sweep(folder: Path) -> list[Path]:
    """Remove temporaries anywhere under *folder* whose owners are dead; returns what was removed."""
    removed = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if name.startswith(TEMPORARY_PREFIX) and _left_behind(path):
                path.unlink(missing_ok=True)
                removed.append(path)
    return removed


def _left_behind(path: Path) -> bool:
    """Whether nobody can still be writing this temporary."""
    owner = path.name.removeprefix(TEMPORARY_PREFIX).rsplit("_", 1)[0].replace("_", "/")
    if owner.partition("/")[0] == boot_id():
        return not owner_lives(owner)
    try:
        return time.time() - path.stat().st_mtime > FOREIGN_AGE_S_MIN
    except FileNotFoundError:
        return False


def _make_ours(home: Path) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise StoreError(f"{home}: expected a folder of ours, found somebody else's", "set TMPDIR to another folder")


@contextlib.contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    """An empty folder on the system's scratch space, gone at the end; what killed runs for *purpose* left goes first.

    StoreError where somebody else holds the name of its parent.
    """
    home = Path(scratch_folder()) / f"stoker-{purpose}-{os.getuid()}"
    folder = home / temporary_name()
    while not folder.is_dir():
        with named(str(home), "set TMPDIR to a larger disk"):
            _make_ours(home)
            with contextlib.suppress(FileNotFoundError):  # another run ended just now and took the parent with it
                folder.mkdir()
    for left in home.iterdir():
        if left.name.startswith(TEMPORARY_PREFIX) and _left_behind(left):
            shutil.rmtree(left, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another run is at work there
            home.rmdir()
