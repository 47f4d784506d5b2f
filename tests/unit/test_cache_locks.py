"""Locks between processes, and what fork and kill do to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from stoker.cache.locks import LockFile, is_locked

_HOLDER = """
import sys, time
from pathlib import Path
from stoker.cache.locks import LockFile
lock = LockFile(Path(sys.argv[1]), mode=0o600)
assert lock.try_lock(5)
print("held", flush=True)
sys.stdin.read()
"""


def test_two_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    """Two lock files exclude each other byte by byte, in one process too, and closing a third changes nothing."""
    first, second, third = (LockFile(tmp_path / "lock", mode=0o600) for _ in range(3))
    assert first.try_lock(1) and not second.try_lock(1) and second.try_lock(2)
    third.close()
    assert is_locked(tmp_path / "lock", 1) and is_locked(tmp_path / "lock", 2) and not is_locked(tmp_path / "lock", 3)
    first.unlock(1)
    assert second.try_lock(1)
    first.close()
    second.close()
    assert not is_locked(tmp_path / "lock", 1) and not is_locked(tmp_path / "nothing", 1)


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    """Another process's lock is seen, and is gone as soon as that process was killed."""
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        lock = LockFile(path, mode=0o600)
        assert not lock.try_lock(5) and is_locked(path, 5)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert lock.try_lock(5)
        lock.close()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """The lock is free once its holder closed it, although a child that was forked meanwhile lives on."""
    path = tmp_path / "lock"
    lock = LockFile(path, mode=0o600)
    assert lock.try_lock(0)
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child)
        os.write(to_parent, b"!")
        os.read(from_parent, 1)  # until the parent has looked
        os._exit(0)
    os.close(from_parent)
    os.read(from_child, 1)
    lock.close()
    held = is_locked(path, 0)
    os.close(to_child)
    os.waitpid(child, 0)
    os.close(from_child)
    os.close(to_parent)
    assert not held


def test_the_file_is_open_to_whom_its_folder_is(tmp_path: Path) -> None:
    """The mode counts, not the umask, so that other users can lock too."""
    before = os.umask(0o077)
    try:
        LockFile(tmp_path / "lock", mode=0o666).close()
    finally:
        os.umask(before)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o666
