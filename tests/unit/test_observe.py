"""`stoker.observe` around all kinds of iterables: what comes through, what is counted, what is said."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import stoker
from stoker.errors import UsageError
from stoker.observe import Observed
from stoker.observe.report import Tally
from support_dataset import write_shards


class FakeClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def feed(clock: FakeClock, waits: list[float], *, closing_s: float = 0.0) -> Iterator[int]:
    """Items that each take their time."""
    for number, wait in enumerate(waits):
        clock.sleep(wait)
        yield number
    clock.sleep(closing_s)


class Epochs:
    """Iterable again and again, with a length and attributes like a loader's."""

    def __init__(self, clock: FakeClock, waits: list[float], closing_s: float = 0.0) -> None:
        self.clock, self.waits, self.closing_s, self.epoch = clock, waits, closing_s, 0

    def __iter__(self) -> Iterator[int]:
        return feed(self.clock, self.waits, closing_s=self.closing_s)

    def __len__(self) -> int:
        return len(self.waits)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def watched(clock: FakeClock, iterable: object, *, warmup: int = 3) -> Observed[int]:
    """Observed under the fake clock."""
    return Observed(iterable, Tally("test", warmup=warmup, wait_s_max=0.1, ratio_max=1.0), clock=clock)


def test_waits_steps_seams_and_warm_up_are_kept_apart() -> None:
    """Every second of two epochs is in exactly one place of the report."""
    clock = FakeClock()
    loader = watched(clock, Epochs(clock, [5.0, 1.0, 1.0] + [0.05] * 27, closing_s=0.25))
    began = clock.now_s
    for epoch in range(2):
        loader.set_epoch(epoch)
        for _ in loader:
            clock.sleep(0.2)
    report = loader.report()
    assert (report.epochs, report.iterations, report.first_wait_s) == (2, 60, 5.0)
    assert (report.warmup_iterations, report.warmup_s) == (3, pytest.approx(7.6))
    assert (report.seams, report.seam_wait_s) == (1, pytest.approx(5.25))
    assert report.wait.count == 27 + 29
    assert report.step.count == 27 + 30
    assert report.slow_waits == 2
    assert report.warmup_s + report.wall_s + 0.25 == pytest.approx(clock.now_s - began)
    assert loader.epoch == 1


def test_thresholds_flag_slow_waits_and_a_loader_slower_than_its_step() -> None:
    """Waits over 0.1 s and wait/step over 1.0 are told, with where the longest was."""
    clock = FakeClock()
    loader = watched(clock, Epochs(clock, [0.05] * 30 + [0.9] + [0.05] * 9))
    for _ in loader:
        clock.sleep(0.04)
    report = loader.report()
    assert report.slow_waits == 1
    assert report.starved == 37
    assert report.wait_per_step == pytest.approx((36 * 0.05 + 0.9) / (36 * 0.04), rel=0.05)
    assert len(report.flags) == 2
    assert (report.worst[0].step, report.worst[0].wait_s) == (30, pytest.approx(0.9))
    assert "1 of 37 waits were longer than 100.0 ms" in str(report)
    assert "epoch 0 step 30" in str(report)


def test_a_loop_that_is_fed_gets_no_flag() -> None:
    """Short waits under long steps: nothing is flagged."""
    clock = FakeClock()
    loader = watched(clock, Epochs(clock, [0.001] * 50))
    for _ in loader:
        clock.sleep(0.2)
    assert loader.report().flags == ()
    assert loader.report().wait_share < 0.01
    assert "!" not in str(loader.report())


def test_a_handful_of_iterations_is_no_verdict() -> None:
    """Under 20 steady iterations nothing is flagged and the summary says why."""
    clock = FakeClock()
    loader = watched(clock, Epochs(clock, [3.0] * 10))
    for _ in loader:
        clock.sleep(0.1)
    assert loader.report().flags == ()
    assert "too little was seen" in str(loader.report())


def test_break_and_exceptions_leave_a_true_report() -> None:
    """A `break`, an exception of the loop and one of the iterable: all items are counted, the error comes through."""
    clock = FakeClock()
    loader = watched(clock, Epochs(clock, [0.01] * 40))
    for number in loader:
        if number == 9:
            break
    with pytest.raises(ZeroDivisionError):
        for number in loader:
            1 / (number - 5)

    def broken() -> Iterator[int]:
        yield 0
        raise LookupError("shard 7")

    assert loader.report().iterations == 10 + 6
    assert (loader.report().epochs, loader.report().seams) == (2, 1)
    with pytest.raises(LookupError, match="shard 7"):
        list(watched(clock, broken()))


def test_nested_observations_each_tell_their_own() -> None:
    """A validation loop inside a training loop, and an observation of an observation."""
    clock = FakeClock()
    train, validate = Epochs(clock, [0.01] * 30), watched(clock, Epochs(clock, [0.02] * 4))
    outer = watched(clock, watched(clock, train))
    for _ in outer:
        for _ in validate:
            clock.sleep(0.001)
    assert outer.report().iterations == 30
    assert validate.report().iterations == 120
    assert outer.report().wait.total_s == pytest.approx(27 * 0.01)
    assert outer.report().wait.total_s + outer.report().step.total_s == pytest.approx(27 * (0.01 + 4 * 0.021))


def test_it_is_the_wrapped_object_in_all_else() -> None:
    """Length, attributes, methods and setting go through; what has no length has none."""
    observed = stoker.observe(Epochs(FakeClock(), [0.0] * 7), summary=False)
    assert len(observed) == 7
    observed.epoch = 5
    assert observed.epoch == 5
    observed.set_epoch(9)
    assert observed._wrapped.epoch == 9
    with pytest.raises(AttributeError, match="state_dict"):
        observed.state_dict()
    generator = stoker.observe((i for i in range(3)), summary=False)
    with pytest.raises(TypeError):
        len(generator)
    assert list(generator) == [0, 1, 2]
    assert list(generator) == []
    assert not stoker.observe([], summary=False)


def test_a_real_dataloader_with_workers() -> None:
    """Two epochs of a real DataLoader with workers: every batch comes through, in order, and is counted."""
    loader = DataLoader(torch.arange(64), batch_size=2, num_workers=2)
    observed = stoker.observe(loader, summary=False)
    for _ in range(2):
        assert torch.equal(torch.cat(list(observed)), torch.arange(64))
    report = observed.report()
    assert (report.name, report.epochs, report.iterations, report.warmup_iterations) == ("DataLoader", 2, 64, 10)
    assert report.first_wait_s > report.wait.p50_s
    assert observed.dataset is loader.dataset


def test_a_stoker_loader(tmp_path: Path) -> None:
    """Epochs, state and report of the loader stay its own; `close` ends its feeder too."""
    loader = stoker.Loader(stoker.open(write_shards(tmp_path, 40)), 4, fields={"cls": int})
    with stoker.observe(loader, summary=False) as observed:
        for _ in range(2):
            assert len(list(observed)) == len(observed) == 10
        assert observed.epoch == 2
        assert observed.state_dict() == loader.state_dict()
        assert (observed.report().epochs, observed.report().seams, loader.report().batches) == (2, 1, 20)
    with pytest.raises(UsageError, match="closed"):
        iter(loader)


def test_the_run_log_has_every_wait_and_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line a wait, one at the end; waits and steps add up to what the report says."""
    log = tmp_path / "run.jsonl"
    monkeypatch.setenv("STOKER_RUN_LOG", str(log))
    with stoker.observe([1, 2, 3] * 20, name="train", summary=False) as observed:
        for _ in observed:
            pass
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    waits = [line for line in lines if line["event"] == "observe"]
    assert [line["step"] for line in waits] == list(range(60))
    assert {line["name"] for line in lines} == {"train"}
    assert [line["phase"] for line in waits[:11]] == ["start"] + ["warmup"] * 9 + ["steady"]
    assert waits[0]["previous_step_s"] is None
    report = observed.report()
    assert sum(line["wait_s"] for line in waits[10:]) == pytest.approx(report.wait.total_s)
    assert lines[-1]["event"] == "observed"
    assert lines[-1]["wait"]["count"] == report.wait.count == 50


def test_the_summary_comes_once(capsys: pytest.CaptureFixture[str]) -> None:
    """At close, or when the object is dropped, on stderr; not twice, and not when nothing was seen."""
    observed = stoker.observe(range(30))
    list(observed)
    observed.close()
    observed.close()
    assert capsys.readouterr().err.count("observed range: 30 iterations") == 1
    list(stoker.observe(range(5)))
    gc.collect()
    assert "observed range: 5 iterations" in capsys.readouterr().err
    stoker.observe(range(5)).close()
    assert capsys.readouterr().err == ""


def test_a_script_gets_its_summary_at_the_end_and_a_forked_child_says_nothing() -> None:
    """At interpreter exit, once, however many children were forked."""
    code = (
        "import os, stoker\nloader = stoker.observe(range(40))\nfor _ in loader: pass\n"
        "if os.fork() == 0:\n    del loader\n    os._exit(0)\nos.wait()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("observed range: 40 iterations") == 1
    assert done.stdout == ""


def test_observing_imports_neither_torch_nor_numpy() -> None:
    """It can stand in any program."""
    code = "import sys, stoker; list(stoker.observe([1])); print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("first", ["", "import stoker.observe.report", "from stoker.observe import Observed"])
def test_the_name_can_be_called_whoever_imported_the_folder(first: str) -> None:
    """`stoker.observe` is callable also after its folder, which has the same name, was imported."""
    code = f"{first}\nimport stoker\nprint(list(stoker.observe([1, 2], summary=False)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 2]"


def test_its_memory_does_not_grow() -> None:
    """After 200,000 iterations of wildly differing lengths it holds no more than after 20,000."""
    clock, sizes = FakeClock(), []
    tally = Tally("test", warmup=3, wait_s_max=0.1, ratio_max=1.0)
    observed = Observed(Epochs(clock, [(n * 7919 % 10007) ** 2 * 1e-9 for n in range(20_000)]), tally, clock=clock)
    for _ in range(10):
        for _ in observed:
            clock.sleep(0.001)
        sizes.append(tally._wait.buckets + tally._step.buckets + len(tally._worst))
    assert observed.report().iterations == 200_000
    assert sizes[-1] <= sizes[0] + 5 < 1_600


@pytest.mark.parametrize(
    ("iterable", "options", "words"),
    [(5, {}, "found int"), ([], {"wait_s_max": -1}, "wait_s_max"), ([], {"warmup": "many"}, "warmup")],
)
def test_wrong_use_is_refused(iterable: object, options: dict[str, object], words: str) -> None:
    """What cannot be iterated over, and thresholds that are no numbers, are named."""
    with pytest.raises(UsageError, match=words):
        stoker.observe(iterable, **options)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_is_observed_for_itself(again: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Here or in a worker process: same items, name and thresholds, and counts of its own."""
    loader = stoker.observe([1, 2, 3], name="train", warmup=2, summary=False)
    assert list(loader) == [1, 2, 3]
    other = again(loader)
    assert other.report().iterations == 0 and other.report().name == "train"
    assert list(other) == [1, 2, 3] and other.report().warmup_iterations == loader.report().warmup_iterations
    assert (loader.report().iterations, other.report().iterations) == (3, 3)
    del other
    assert capsys.readouterr().err == ""


def test_a_warm_up_ends() -> None:
    """An endless one is no number of iterations."""
    with pytest.raises(UsageError, match="warmup is a number of iterations, found inf"):
        stoker.observe([1], warmup=float("inf"))  # type: ignore[arg-type]  # that is the question
