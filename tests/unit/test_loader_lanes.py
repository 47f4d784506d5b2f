"""Several feeders: the same batches in the same order, more of them when the user's Python holds the GIL."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.errors import FeederError
from stoker.loader import Loader
from stoker.loader.lanes import Lane
from support_dataset import feeders, lanes_of, write_shards
from support_transforms import busy, wait_a_little

SAMPLES = 103


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """103 samples."""
    return write_shards(tmp_path_factory.mktemp("data"), SAMPLES)


def make(folder: Path, count: int | None, **options: Any) -> Loader:
    """A loader with so many feeders."""
    budget = stoker.Budget(cpus=2, feeders=count, adapt=count is None)
    return Loader(stoker.open(folder), 4, fields={"cls": int}, output="numpy", seed=9, budget=budget, **options)


def drawn(loader: Loader, steps: int | None = None) -> list[list[int]]:
    """The samples of the next *steps* batches, of a whole epoch without."""
    found = []
    for batch in loader:
        found.append(batch["__index__"].tolist())
        if len(found) == steps:
            break
    return found


@pytest.mark.parametrize("count", [2, 3])
def test_the_order_is_that_of_one_feeder(folder: Path, count: int) -> None:
    """Two epochs and a resumed one are the same batches, whatever the number of feeders, at odd numbers of steps."""
    with make(folder, 1) as one, make(folder, count) as many:
        assert len(feeders()) >= count + 1
        for _ in range(2):
            assert drawn(one) == drawn(many)
        state = one.state_dict()
    with make(folder, 1) as one, make(folder, count) as many:
        for loader in (one, many):
            loader.load_state_dict({**state, "consumed": 28})
        assert drawn(one) == drawn(many)


def test_leaving_an_epoch_in_the_middle(folder: Path) -> None:
    """The next iteration is the next epoch, from its first batch."""
    with make(folder, 1) as one, make(folder, 2) as two:
        assert drawn(one, 5) == drawn(two, 5)
        assert drawn(one) == drawn(two)


def test_counts_are_of_all_feeders(folder: Path) -> None:
    """The report adds up what each feeder read."""
    with make(folder, 1) as one, make(folder, 2) as two:
        drawn(one)
        drawn(two)
        read = [loader.report().counts["read.store_bytes"] for loader in (one, two)]
    assert read[1] >= 0.9 * read[0] > 0


def test_the_death_of_any_feeder_is_seen(folder: Path) -> None:
    """One of two is killed: the loader says so instead of waiting."""
    before = {feeder.pid for feeder in feeders()}
    with make(folder, 2, transform=wait_a_little) as loader:
        batches = iter(loader)
        next(batches)
        victim = sorted({feeder.pid for feeder in feeders()} - before)[1]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(FeederError, match=rf"pid {victim}\) was killed by SIGKILL"):
            for _ in range(2 * SAMPLES):
                next(batches)
    assert {feeder.pid for feeder in feeders()} <= before


def test_a_transform_that_holds_the_gil_gets_more_feeders(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pure Python work: the run log says why there are two, and no batch is lost or doubled where they take over."""
    monkeypatch.setenv("STOKER_RUN_LOG", str(tmp_path / "run.jsonl"))
    with make(folder, 1) as reference, make(folder, None, transform=busy) as loader:
        for _ in range(200):
            assert drawn(loader) == drawn(reference)
            if len(lanes_of(loader)) == 2:
                break
        else:
            pytest.fail("no second feeder after 200 epochs")
        assert drawn(loader) == drawn(reference)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    decisions = [line for line in lines if line["event"] == "control" and line["feeders"] == 2]
    assert "GIL" in decisions[0]["reason"]


def test_a_feeder_that_cannot_start_ends_nothing(folder: Path) -> None:
    """One that was to help is gone before it is ready: a warning, and training goes on as it was."""
    before = {feeder.pid for feeder in feeders()}
    with make(folder, 1) as reference, make(folder, 1) as loader:
        lanes = lanes_of(loader)
        lanes._coming.append(Lane(loader._job, loader._hand_out))
        lanes._coming[0].feeder._process.kill()
        batches, warned = iter(loader), False
        found = []
        with pytest.warns(RuntimeWarning, match="training goes on without"):
            while not warned:
                found.append(next(batches)["__index__"].tolist())
                warned = not lanes._coming
        found += [batch["__index__"].tolist() for batch in batches]
        assert found == drawn(reference)
    assert {feeder.pid for feeder in feeders()} <= before


def test_threads_follow_a_transform_that_sleeps(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is not computing: there are more threads than CPUs, in one feeder, and the order is what it was."""
    monkeypatch.setenv("STOKER_RUN_LOG", str(tmp_path / "run.jsonl"))
    with make(folder, 1) as reference, make(folder, None, transform=wait_a_little) as loader:
        for _ in range(60):
            assert drawn(loader) == drawn(reference)
        assert len(lanes_of(loader)) == 1
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    threads = [line["threads"] for line in lines if line["event"] == "control"]
    assert max(threads) >= 8
