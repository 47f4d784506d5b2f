"""A real disk of a small size, for tests of what happens when it is full, read-only or gone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MEGABYTE = 1_000_000


@contextmanager
def small_disk(tmp_path: Path, megabytes: int) -> Iterator[Callable[[str], Path]]:
    """Mounts an ext4 of that size with the options given, and again when called again; gone afterwards."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a loop device")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes * MEGABYTE)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)], check=True)

    def mount(options: str) -> Path:
        subprocess.run(["umount", str(place)], capture_output=True)
        done = subprocess.run(
            ["mount", "-o", f"loop,{options}", str(image), str(place)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"cannot mount a loop device: {done.stderr.strip()}")
        return place

    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True)
