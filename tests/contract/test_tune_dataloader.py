"""`stoker tune` with real DataLoaders and their worker processes."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from stoker.tune import Limits, Setting, Target, tune
from stoker.tune.settings import KNOBS
from stoker.tune.trial import Order
from stoker.tune.watch import Bounds, run_trial
from support_dataset import write_shards


@pytest.mark.slow
def test_a_real_dataloader() -> None:
    """Samples that sleep 20 ms, batches of four: 12.5 batches/s a worker, so a step of 60 ms needs two."""
    found = tune(Target("support_tune:only_workers"), step_s=0.06, limits=Limits(seconds=1.0, cpus=2))
    assert found.chosen is not None
    assert found.chosen.num_workers == 2
    assert found.feeds is True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["make_loader", "stoker_loader"])
def test_the_factories_behind_a_url(tmp_path: Path, name: str) -> None:
    """A dataset through DataLoader with workers, and through stoker's own loader: both are measured."""
    extra = {"url": str(write_shards(tmp_path, 60)), "batch_size": 8, "image_size": 16, "cache": None}
    setting = Setting(1, persistent_workers=True, multiprocessing_context="fork")
    arguments = setting.arguments(KNOBS) if name == "make_loader" else {}
    order = Order(Target(f"stoker.torch.tuned:{name}", extra), arguments, 1, 2, 0.3, again=False)
    found = run_trial(order, setting, Bounds(60, 4 << 30))
    assert (found.status, found.message) == ("ok", "")
    assert (found.length, found.batch_samples) == (7, 8)
    assert found.batch_bytes >= 8 * 16 * 16 * 3


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_trial_leaves_no_semaphores_behind(tmp_path: Path, method: str) -> None:
    """Workers of every kind are killed in the middle of their work; what they had in /dev/shm goes with them."""
    before = set(os.listdir("/dev/shm"))
    setting = Setting(2, multiprocessing_context=method)
    arguments = setting.arguments(("num_workers", "multiprocessing_context", "persistent_workers"))
    order = Order(Target("support_tune:sleeping"), arguments, 2, 2, 0.2, again=False)
    assert run_trial(order, setting, Bounds(60, 4 << 30)).status == "ok"
    mine = [name for name in set(os.listdir("/dev/shm")) - before if owned(name)]
    assert mine == []


def owned(name: str) -> bool:
    """Whether nobody else has it open: tests run side by side."""
    return name.startswith("sem.") and not any(f"/dev/shm/{name}" in maps for maps in map(maps_of, psutil.pids()))


def maps_of(pid: int) -> str:
    """What a process has mapped."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""
