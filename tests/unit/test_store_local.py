"""A folder as a store: whole-or-nothing writes, links, odd names, sweeping."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.errors import AccessError, ChangedError, NotFoundError, StoreError
from stoker.machine import boot_id
from stoker.store import ByteRange, Local
from stoker.store.atomic import FOREIGN_AGE_S_MIN, sweep, temporary_name, whole_file

_KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from stoker.store.atomic import whole_file
with whole_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    """All files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    """When the writer fails, the old object stays and no temporary is left."""
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(RuntimeError), whole_file(tmp_path / "x") as file:
        file.write(b"new")
        raise RuntimeError("disk on fire")
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() == b"old"


def test_a_killed_write_is_hidden_and_swept(tmp_path: Path) -> None:
    """What a kill -9 leaves is not listed, and sweep removes it; a live process's temporary stays."""
    done = subprocess.run([sys.executable, "-c", _KILLED_WRITER, str(tmp_path / "a" / "x")])
    assert done.returncode == -signal.SIGKILL
    mine = tmp_path / "a" / temporary_name()
    mine.write_bytes(b"being written")
    (left,) = [path for path in (tmp_path / "a").iterdir() if path != mine]
    assert list(Local(tmp_path).list()) == []
    assert sweep(tmp_path) == [left]
    assert names(tmp_path) == [f"a/{mine.name}"]


def test_temporaries_of_other_boots_are_swept_by_age_only(tmp_path: Path) -> None:
    """On a shared file system a foreign boot may be a live machine, so only a day of silence proves it dead."""
    path = tmp_path / temporary_name().replace(boot_id(), "0" * 8)
    path.write_bytes(b"x")
    assert sweep(tmp_path) == []
    old = path.stat().st_mtime - FOREIGN_AGE_S_MIN - 60
    os.utime(path, (old, old))
    assert sweep(tmp_path) == [path]


def test_links_are_followed_inside_the_root_only(tmp_path: Path) -> None:
    """A link to a file of the root is that file; one that leads out is hidden from `list` and refused by name."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "real").write_bytes(b"in")
    (outside / "secret").write_bytes(b"out")
    (root / "inner").symlink_to(root / "real")
    (root / "leak").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    (root / "dangling").symlink_to(root / "nothing")
    store = Local(root)
    assert [info.key for info in store.list()] == ["inner", "real"]
    assert store.get("inner") == b"in"
    for key in ("leak", "folder/secret"):
        for ask in (store.get, store.head, store.path, lambda k: store.put(k, b"x"), store.delete):
            with pytest.raises(AccessError, match="leads outside"):
                ask(key)
    with pytest.raises(NotFoundError):
        store.get("dangling")
    assert (outside / "secret").read_bytes() == b"out"


def test_a_linked_root_is_fine(tmp_path: Path) -> None:
    """The root itself may be a link: what counts is where it leads."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = Local(tmp_path / "link")
    store.put("x", b"1")
    assert (tmp_path / "real" / "x").read_bytes() == b"1" and [info.key for info in store.list()] == ["x"]


def test_link_loops_end(tmp_path: Path) -> None:
    """A folder that links to one above it is listed once."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert [info.key for info in Local(tmp_path).list()] == ["a/x"]


def test_links_to_themselves_are_no_objects(tmp_path: Path) -> None:
    """A link that leads to itself is hidden from `list`; asking for it is an error with its key."""
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    store = Local(tmp_path)
    assert [info.key for info in store.list()] == ["a"]
    for ask in (store.get, store.head):
        with pytest.raises(StoreError, match="'loop'"):
            ask("loop")


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """Any name that the file system allows is listed, and its key leads back to the file."""
    raw = [b"caf\xe9.jpg", b"\xff\xfe", b"plain", "é".encode()]
    for name in raw:
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    store = Local(tmp_path)
    keys = [info.key for info in store.list()]
    assert [os.fsencode(key) for key in keys] == sorted(raw)
    assert [store.get(key) for key in keys] == sorted(raw)


def test_only_files_are_objects(tmp_path: Path) -> None:
    """Folders, pipes and what lies below a file are no objects, and asking for them does not wait."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    store = Local(tmp_path)
    assert [info.key for info in store.list()] == ["file"]
    for key in ("pipe", "folder", "file/below"):
        with pytest.raises(NotFoundError, match=key):
            store.get(key)
        with pytest.raises(NotFoundError, match=key):
            store.head(key)


def test_a_rewrite_in_place_is_another_version(tmp_path: Path) -> None:
    """A file rewritten under its name (same inode) or replaced by one of the same time is not the old version."""
    path = tmp_path / "x"
    path.write_bytes(b"one")
    store = Local(tmp_path)
    first = store.head("x")
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    with pytest.raises(ChangedError, match=f"expected version {first.version}"):
        store.get("x", version=first.version)
    second = store.head("x")
    other = tmp_path / "other"
    other.write_bytes(b"2.0")
    os.utime(other, ns=(1, 1))
    other.replace(path)
    with pytest.raises(ChangedError):
        store.get_ranges("x", [ByteRange(0, 1)], version=second.version)


def test_a_file_that_shrinks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file cut short between its size and its bytes gives an error, never fewer bytes."""
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    real = os.pread

    def cut_first(descriptor: int, count: int, at: int) -> bytes:
        os.truncate(path, 4)
        return real(descriptor, count, at)

    monkeypatch.setattr(os, "pread", cut_first)
    with pytest.raises(StoreError, match="expected 10, found 4"):
        Local(tmp_path).get("x")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of space gives an error with the key and a hint, keeps the cause's errno, and leaves no temporary."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"'x'.*No space left") as caught:
        Local(tmp_path).put("x", b"data")
    assert caught.value.hint == "make room on the disk"
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.ENOSPC
    assert names(tmp_path) == []


def test_list_is_lazy(tmp_path: Path) -> None:
    """`list` looks into a folder only when its turn comes."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_bytes(b"")
    found = Local(tmp_path).list()
    assert next(found).key == "a/1"
    (tmp_path / "b" / "2").write_bytes(b"")
    assert [info.key for info in found] == ["b/1", "b/2"]


def test_a_folder_that_goes_while_it_is_listed(tmp_path: Path) -> None:
    """Whoever deletes beside a list makes it shorter, and no longer fail."""
    for name in ("a/1", "b/c/2", "d/3"):
        Path(tmp_path, name).parent.mkdir(parents=True)
        Path(tmp_path, name).write_bytes(b"x")
    found = Local(tmp_path).list()
    assert next(iter(found)).key == "a/1"
    shutil.rmtree(tmp_path / "b")
    assert [one.key for one in found] == ["d/3"]
