"""Death at any moment of saving, uploading and expiring: what is called complete is, and a run goes on to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from support_checkpoint import complete, seen
from support_dataset import write_shards
from support_store import until

POINTS = int(os.environ.get("STOKER_CRASH_POINTS", "5"))
TESTS = Path(__file__).resolve().parents[1]
EXHAUSTIVE = 50
"""So many points mean all."""


@pytest.mark.timeout(900)  # every operation in six ways: some 400 deaths
def test_death_at_any_operation(tmp_path: Path) -> None:
    """kill -9, power loss (all that was not fsynced is gone, or some of it), and lasting EIO, ENOSPC or EMFILE before
    operation N of a save, upload and clean-up: a seeded choice of N here, every one in `make crash`. No checkpoint is
    lost, none lies, nothing stays."""
    points = 0 if POINTS >= EXHAUSTIVE else 2 * POINTS
    command = [sys.executable, str(TESTS / "support_checkpoint_cycle.py"), str(tmp_path), "cycle", str(points)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    tried = json.loads(done.stdout.splitlines()[-1])
    assert set(tried) == {"kill", "power", "reordered", "eio", "full", "descriptors"}
    for died, total in tried.values():
        assert total > 60 and died == (total if points == 0 else points)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 samples."""
    return write_shards(tmp_path_factory.mktemp("data"), 160)


def start(data: Path, place: Path, log: Path, *more: str) -> subprocess.Popen[str]:
    """The real training run."""
    command = [sys.executable, str(TESTS / "support_checkpoint_train.py"), str(data), str(place), str(log), *more]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def children(pid: int) -> list[psutil.Process]:
    """What a run has started; it may be over already."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def lines(log: Path) -> list[dict[str, Any]]:
    """What rank 0 logged, whole lines only."""
    path = Path(f"{log}.0")
    raw = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in raw.split("\n")[:-1]]


def reached(log: Path, wanted: int, process: subprocess.Popen[str]) -> bool:
    """Whether a run logged so many steps, or ended."""
    return len(lines(log)) >= wanted or process.poll() is not None


def finish(process: subprocess.Popen[str]) -> None:
    """A run that must end well."""
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]


@pytest.fixture(scope="module")
def unbroken(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a run that nobody kills does."""
    box = tmp_path_factory.mktemp("unbroken")
    finish(start(data, box / "ck", box / "log"))
    return lines(box / "log")


@pytest.mark.timeout(900)  # up to ten runs after each other
@pytest.mark.parametrize("remote", [False, True])
def test_a_killed_run_goes_on_to_the_bit(
    data: Path, tmp_path: Path, unbroken: list[dict[str, Any]], remote: bool
) -> None:
    """kill -9 of the trainer at seeded moments: every step of every run, redone ones too, has the sample numbers and
    the weights of the unbroken run; at most the steps since the last checkpoints are redone; nothing is left behind."""
    rng = random.Random(f"kill {remote}")
    more = ("--remote", str(tmp_path / "far")) if remote else ()
    expected = {line["step"]: line for line in unbroken}
    assert len(expected) == 80
    for _ in range(max(2, POINTS // 5)):
        before = len(lines(tmp_path / "log"))
        process = start(data, tmp_path / "ck", tmp_path / "log", *more)
        wanted = before + rng.randrange(2, 25)
        until(partial(reached, tmp_path / "log", wanted, process), seconds=60)
        time.sleep(rng.uniform(0, 0.02))
        helpers = children(process.pid)
        process.kill()
        process.communicate()
        psutil.wait_procs(helpers, 5)
        assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in helpers)
        for line in lines(tmp_path / "log"):
            assert line == expected[line["step"]]
    finish(start(data, tmp_path / "ck", tmp_path / "log", *more))
    logged = lines(tmp_path / "log")
    assert all(line == expected[line["step"]] for line in logged)
    assert {line["step"] for line in logged} == set(expected)
    for place in (tmp_path / "ck", tmp_path / "far")[: 1 + remote]:
        assert len(seen(place)) == len(complete(place)) <= 3


def test_a_run_that_is_told_to_stop_loses_nothing(data: Path, tmp_path: Path, unbroken: list[dict[str, Any]]) -> None:
    """SIGKILL right after a checkpoint became durable redoes no step before it."""
    process = start(data, tmp_path / "ck", tmp_path / "log")
    until(lambda: complete(tmp_path / "ck")[-1:] >= [9], seconds=60)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    durable = complete(tmp_path / "ck")[-1]
    process = start(data, tmp_path / "ck", tmp_path / "log")
    assert process.stdout is not None
    assert process.stdout.readline() == f"ready at step {durable}\n"
    finish(process)
    expected = {line["step"]: line for line in unbroken}
    assert all(line == expected[line["step"]] for line in lines(tmp_path / "log"))
