"""Full disks: a conversion and an index say so by name, crash nothing, and go on once there is room."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stoker
from stoker.format.hdf5 import Hdf5Writer
from stoker.format.table import TableWriter
from support_rows import arrays_bytes
from support_typed import tfrecord

FORMATS = ("webdataset", "mds", "tfrecord", "hdf5", "table", "arrays")
LEFT_BYTES = 64_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16M", "tmpfs", str(place)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, left_bytes: int) -> Path:
    """Others take all but *left_bytes*."""
    others = place / "others"
    found = os.statvfs(place)
    with others.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - left_bytes)
    return others


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, which a library may take down."""
    line = [sys.executable, "-m", "stoker.cli.main", *map(str, arguments)]
    return subprocess.run(line, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", FORMATS)
def test_a_conversion_onto_a_full_disk(tmp_path: Path, disk: Path, name: str) -> None:
    """It ends with the shard's name and a hint, leaves no temporary, and is finished by the next run."""
    rng = np.random.default_rng(1)
    source = tmp_path / "source"
    source.mkdir()
    samples = {f"{number:03d}": {"npy": rng.integers(0, 255, 5_000, np.uint8)} for number in range(60)}
    if name in ("webdataset", "tfrecord"):
        (source / "0.tfrecord").write_bytes(
            tfrecord({key: {"bin": one["npy"].tobytes()} for key, one in samples.items()})
        )
    else:
        (source / "0.arrays.bin").write_bytes(arrays_bytes(samples))
    others = fill(disk, LEFT_BYTES)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    asked = ("convert", source, disk / "out", "--format", name, "--shard-size", "150kB")
    full = command(*asked, **environment)
    assert full.returncode == 1, full.stderr
    assert full.stderr.startswith("stoker: error: file://") and "out/shard_0000" in full.stderr, full.stderr
    assert "No space left on device\nhint: make room on the disk" in full.stderr
    assert len(full.stderr.splitlines()) == 2
    assert [path for path in (disk / "out").rglob("*") if path.name.startswith(".stoker-tmp")] == []
    others.unlink()
    done = command(*asked, **environment)
    assert done.returncode == 0, done.stderr
    assert len(stoker.open(disk / "out")) == 60


def test_an_index_where_there_is_no_room(tmp_path: Path, disk: Path) -> None:
    """What keeps an index of a foreign dataset says where it could not, with a hint; likewise a look into scratch."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "0.tfrecord").write_bytes(tfrecord({f"{number}": {"cls": number} for number in range(50)}))
    fill(disk, 0)
    for asked, environment in (
        (("inspect", source), {"XDG_CACHE_HOME": str(disk)}),
        (("verify", source, "--deep"), {"TMPDIR": str(disk), "XDG_CACHE_HOME": str(tmp_path / "home")}),
    ):
        done = command(*asked, **environment)
        assert done.returncode == 1 and done.stderr.startswith(f"stoker: error: {disk}"), done.stderr
        assert "No space left on device" in done.stderr and "\nhint: " in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("suffix", [".h5", ".parquet"])
def test_a_writer_on_a_full_disk_can_be_left(disk: Path, suffix: str) -> None:
    """The library's writers give the system's error, and closing what they hold is quiet afterwards."""
    fill(disk, LEFT_BYTES)
    writer = Hdf5Writer(disk / "x.h5") if suffix == ".h5" else TableWriter(disk / "x.parquet", compression="none")
    for number in range(100):
        writer.add(f"{number}", {"x": np.full(2_000, number % 256, np.uint8) + np.arange(2_000).astype(np.uint8)})
    with pytest.raises(OSError) as caught:
        writer.close()
    assert caught.value.errno == 28
    writer.abandon()
