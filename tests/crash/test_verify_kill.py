"""kill -9 of `verify --deep --repair` at any moment: the next run ends like an unbroken one, and leaves nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support_dataset import write_shards
from support_pack import tree

POINTS = int(os.environ.get("STOKER_CRASH_POINTS", "5"))
SAMPLES = 600


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, one of them cut."""
    folder = write_shards(tmp_path_factory.mktemp("source") / "tar", SAMPLES)
    shard = folder / "shard_00001.tar"
    os.truncate(shard, shard.stat().st_size // 2)
    return folder


def start(source: Path, target: Path, scratch: Path) -> subprocess.Popen[str]:
    """The real command, in a process of its own."""
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "stoker.cli.main", "verify", str(source), "--deep", "--repair", str(target)]
    return subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(scratch)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a run that finds the damage; what it found of each shard."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    return "".join(line for line in out.splitlines(keepends=True) if not line.startswith("saved"))


def test_a_killed_verify_leaves_nothing_behind(damaged: Path, tmp_path: Path) -> None:
    """Killed at seeded points of the whole run, and while its scratch folder lies there."""
    begun = time.monotonic()
    expected = finish(start(damaged, tmp_path / "whole", tmp_path / "scratch"))
    duration_s = time.monotonic() - begun
    assert "repaired  shard_00001.tar: " in expected and list((tmp_path / "scratch").iterdir()) == []
    moments, left = random.Random(5), 0
    for point in range(POINTS):
        target, scratch = tmp_path / f"point{point}", tmp_path / f"scratch{point}"
        process = start(damaged, target, scratch)
        if point % 2:
            while process.poll() is None and not any(scratch.iterdir()):
                time.sleep(0.001)
        else:
            time.sleep(moments.uniform(0, duration_s))
        process.kill()
        process.communicate()
        left += any(scratch.iterdir())
        assert finish(start(damaged, target, scratch)) == expected
        assert tree(target) == tree(tmp_path / "whole")
        assert list(scratch.iterdir()) == []
    assert left >= POINTS // 2


def test_a_parent_of_somebody_else_is_refused(damaged: Path, tmp_path: Path) -> None:
    """What has the name of our scratch folder and is none is named, not followed."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / f"stoker-verify-{os.getuid()}").symlink_to(tmp_path)
    process = start(damaged, tmp_path / "out", tmp_path / "scratch")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1 and "somebody else's" in err and "TMPDIR" in err
