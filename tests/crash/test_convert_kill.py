"""kill -9 of a conversion at any moment: it opens as no dataset, and the next run ends like an unbroken one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stoker
from stoker.errors import StokerError
from support_dataset import write_shards
from support_pack import tree

POINTS = int(os.environ.get("STOKER_CRASH_POINTS", "5"))
SAMPLES = 600


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of small samples, whose conversion takes a part of a second."""
    return write_shards(tmp_path_factory.mktemp("source") / "tar", SAMPLES)


def start(source: Path, target: Path, name: str) -> subprocess.Popen[str]:
    """The real command, in a process of its own."""
    scratch = target.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "stoker.cli.main", "convert", str(source), str(target), "--format", name]
    return subprocess.Popen(
        [*command, "--shard-size", "20kB"], env={**os.environ, "TMPDIR": str(scratch)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a run that must end well; its output."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


@pytest.mark.parametrize("name", ["webdataset", "mds", "hdf5"])
def test_a_killed_convert_goes_on(source: Path, tmp_path: Path, name: str) -> None:
    """Killed at seeded points of the whole run or of the writing, in three ways to write shards."""
    finish(start(source, tmp_path / "whole", name))
    begun = time.monotonic()
    finish(start(source, tmp_path / "timed", name))
    duration_s = time.monotonic() - begun
    moments = random.Random(name)
    for point in range(POINTS):
        target = tmp_path / f"point{point}"
        process = start(source, target, name)
        if point % 2:  # the imports and the survey take most of the time: aim at the writing as well
            while process.poll() is None and not (target / "_stoker").exists():
                time.sleep(0.001)
            time.sleep(moments.uniform(0, duration_s / 4))
        else:
            time.sleep(moments.uniform(0, duration_s))
        process.kill()
        process.communicate()
        if not (target / "_stoker" / "manifest.json").exists():
            with pytest.raises(StokerError):
                stoker.open(target)
        finish(start(source, target, name))
        assert tree(target) == tree(tmp_path / "whole")
        assert list((tmp_path / "scratch").iterdir()) == []
