"""The next batch is taken over while the step runs: the same batches, and nothing that it takes stays behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.errors import FeederError, SampleError
from stoker.loader import Loader, early
from support_dataset import SRC, feeders, jpeg, lanes_of, spoil_what_comes_back, write_shards
from support_transforms import hangs_at_20

SAMPLES = 103
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """103 samples."""
    return write_shards(tmp_path_factory.mktemp("data"), SAMPLES)


@pytest.fixture(autouse=True)
def _any_step_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "STEP_S_MIN", 1e-6)
    monkeypatch.setattr(early, "STEPS_IDLE_MAX", 1e7)


def until(condition: Callable[[], object]) -> None:
    """Wait for it."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.001)


def taken(loader: Loader) -> early.Taken | None:
    """What the thread took over."""
    assert loader._early is not None
    return loader._early._taken


def made(loader: Loader) -> bool:
    """Whether the next batch lies ready."""
    one = taken(loader)
    return one is not None and one.batch is not None


def stepped(loader: Loader, count: int = 10**9) -> Iterator[Any]:
    """An epoch, or *count* batches of it, with a step after each that lasts until the next batch lies ready: also the
    next epoch's first at the end of one."""
    for number, batch in enumerate(loader):
        yield batch
        if number == count - 1:
            return
        until(lambda: made(loader))


def values(batch: Any) -> dict[str, Any]:
    """A copy, to compare."""
    plain = (torch.Tensor, np.ndarray)
    return {name: value.tolist() if isinstance(value, plain) else list(value) for name, value in batch.items()}


def make(folder: Path, rows: int = 8, **options: Any) -> Loader:
    """A loader of images."""
    fields = {"image": stoker.image.RandomResizedCrop(16, flip=True), "cls": int}
    return Loader(stoker.open(folder), rows, **{"fields": fields, "seed": 5, **options})


@pytest.mark.parametrize(
    "options",
    [
        {}, {"output": "numpy"}, {"device": "cpu"}, {"fields": {"cls": int, "txt": str}}, {"tail": "pad"},
        {"budget": stoker.Budget(cpus=2, feeders=2)},
    ],
)  # fmt: skip
def test_the_batches_are_the_same(folder: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Over three epochs, with every batch taken over, also across the seams."""
    with make(folder, **options) as loader:
        found = [values(batch) for _ in range(3) for batch in stepped(loader)]
    monkeypatch.setattr(early, "STEP_S_MIN", 1e9)
    with make(folder, **options) as loader:
        assert found == [values(batch) for _ in range(3) for batch in loader]
        assert loader._early is not None
        assert loader._early._work is None


def test_what_is_taken_is_not_consumed(folder: Path) -> None:
    """The state counts what `next()` returned; a new epoch, a state or another place drops what lies ready."""
    with make(folder) as reference:
        epochs = [[values(batch) for batch in reference] for _ in range(3)]
    with make(folder) as loader:
        assert [values(batch) for batch in stepped(loader, 3)] == epochs[0][:3]
        until(lambda: made(loader))
        state = loader.state_dict()
        assert state["consumed"] == 24
        assert [values(batch) for batch in stepped(loader, 2)] == epochs[1][:2]
        until(lambda: made(loader))
        loader.load_state_dict(state)
        assert [values(batch) for batch in stepped(loader)] == epochs[0][3:]
        loader.set_epoch(2)
        assert [values(batch) for batch in loader] == epochs[2]


def test_a_slot_that_nobody_opened_comes_back(folder: Path) -> None:
    """A batch that is only told of, for a warning belongs to it, and is then not wanted: its slot is not lost."""
    budget = stoker.Budget(cpus=2, adapt=False)
    with make(folder, 4, budget=budget) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        slots = _slots(loader)
        for _ in range(3 * slots):
            kept = []
            for batch in loader:
                kept.append(batch)
                if len(kept) >= slots - 2:
                    until(lambda: taken(loader))
                    break
            assert not made(loader)
            assert len(kept) == slots - 2
        del kept, batch
        assert len(list(loader)) == SAMPLES // 4


def _slots(loader: Loader) -> int:
    next(iter(loader))
    slab = lanes_of(loader)._lanes[0].feeder.slab
    assert slab is not None
    return slab.slots


def test_a_batch_in_use_is_never_overwritten(folder: Path) -> None:
    """Slots are spoiled the moment they are given back: neither what is used nor what lies ready shows it."""
    with make(folder) as loader:
        right = [values(batch) for batch in loader]
    with make(folder) as loader:
        next(iter(loader))
        loader.set_epoch(0)
        spoiled = spoil_what_comes_back(loader)
        found = []
        before = None
        for batch in stepped(loader):
            assert before is None or values(before) == found[-1]
            found.append(values(batch))
            before = batch
        assert found == right
        assert len(spoiled) >= len(right) - 4


def test_what_the_trainer_dropped_goes_without_it(folder: Path) -> None:
    """The batch before is destroyed in the thread, and not later than the next one is taken over."""
    with make(folder) as loader:
        gone: list[str] = []
        for number, batch in enumerate(loader):
            if number == 3:
                break
            weakref.finalize(batch["image"], lambda: gone.append(threading.current_thread().name))
            del batch
            until(lambda: made(loader))
        until(lambda: len(gone) == 3)
        assert all(name.startswith("stoker-early") for name in gone[:2])


def test_accounts_are_settled_when_asked(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report in the middle counts every batch returned so far; the run log has each once, in order."""
    monkeypatch.setenv("STOKER_RUN_LOG", str(tmp_path / "run.jsonl"))
    with make(folder) as loader:
        for number, _ in enumerate(stepped(loader), 1):
            report = loader.report()
            assert report.batches == number
            assert sum(report.wait_by_stage_s.values()) == pytest.approx(report.wait_s)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "batch"] == list(range(SAMPLES // 8))


def test_a_bad_sample_is_told_where_it_belongs(tmp_path: Path) -> None:
    """Not a batch earlier, however long ago it was seen; what came before it was whole."""
    write_shards(tmp_path, 40, member=lambda i: {"jpg": b"no photo" if i == 20 else jpeg(i), "cls": b"1"})
    with make(tmp_path, shuffle="none") as loader:
        batches = stepped_unless_told(loader)
        assert [next(batches)["__index__"][0].item() for _ in range(2)] == [0, 8]
        until(lambda: taken(loader))
        assert loader.report().batches == 2
        with pytest.raises(SampleError, match="000020"):
            next(batches)
    with make(tmp_path, shuffle="none", on_bad="skip", on_bad_max=0.5) as loader:
        assert [len(batch["cls"]) for batch in stepped_unless_told(loader)] == [8, 8, 7, 8, 8]
        assert [bad.key for bad in loader.bad] == ["000020"]


def stepped_unless_told(loader: Loader) -> Iterator[Any]:
    """As `stepped`, but content with a batch, or a failure, that is only told of."""
    for batch in loader:
        yield batch
        until(lambda: taken(loader))


def test_a_feeder_that_dies_in_the_step(folder: Path) -> None:
    """What it had delivered is used, then its death is told; a new loader works."""
    with make(folder) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        until(lambda: made(loader))
        os.kill(lanes_of(loader)._lanes[0].feeder.pid, signal.SIGKILL)
        with pytest.raises(FeederError, match="SIGKILL"):
            for _ in range(SAMPLES):
                next(batches)
                until(lambda: taken(loader) or _ended(loader))
    with make(folder) as loader:
        assert len(list(loader)) == SAMPLES // 8


def _ended(loader: Loader) -> bool:
    assert loader._early is not None
    work = loader._early._work
    return work is None or work.done()


def test_a_forked_child_gets_nothing(folder: Path) -> None:
    """The batch that lies ready is the parent's; the child's end does not disturb it either."""
    with make(folder) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        until(lambda: made(loader))
        child = os.fork()
        if child == 0:
            told = 0
            for use in (lambda: next(batches), lambda: next(iter(loader))):
                try:
                    use()
                except FeederError:
                    told += 1
            loader.close()
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        assert len(list(batches)) == SAMPLES // 8 - 2


def test_a_handler_that_asks_in_the_middle(folder: Path) -> None:
    """A signal handler may want a report, whatever `next()` and the thread are at."""
    with make(folder) as loader:
        reports = []
        before = signal.signal(signal.SIGALRM, lambda *_: reports.append(loader.report()))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            for _ in range(3):
                assert len(list(stepped(loader))) == SAMPLES // 8
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert len(reports) > 10


def test_a_handler_that_closes_in_the_middle(folder: Path) -> None:
    """And leaves, while `next()` waits and the thread wants to look."""

    def leave(*_: object) -> None:
        loader.close()
        sys.exit(3)

    before = signal.signal(signal.SIGALRM, leave)
    try:
        with make(folder, transform=hangs_at_20, shuffle="none") as loader, pytest.raises(SystemExit):
            for number, _ in enumerate(loader):
                if number == 1:
                    signal.setitimer(signal.ITIMER_REAL, 0.5)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not any(t.name.startswith("stoker-early") for t in threading.enumerate())


def test_a_loader_that_is_forgotten_ends(folder: Path) -> None:
    """Without `close()`: its thread keeps it from nothing."""
    before = {feeder.pid for feeder in feeders()}
    loader = make(folder)
    for _ in stepped(loader, 3):
        pass
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("stoker-early")]
    assert len(threads) == 1
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    until(lambda: gone() is None and {feeder.pid for feeder in feeders()} <= before)
    threads[0].join(DEADLINE_S)
    assert not threads[0].is_alive()


def test_the_thread_is_idle_when_the_trainer_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that does something else for long has no thread that wakes, and has it again with the next batches."""
    monkeypatch.setattr(early, "STEPS_IDLE_MAX", 4)
    with make(folder) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        until(lambda: _ended(loader))
        next(batches)
        assert not _ended(loader)


@pytest.mark.parametrize("ending", ["os._exit(0)", "pass", "loader.close()", "sys.exit(0)", "raise KeyboardInterrupt"])
@pytest.mark.parametrize("thread", [False, True])
def test_the_end_of_the_interpreter(folder: Path, ending: str, thread: bool) -> None:
    """With a batch taken over, and whatever way it ends, also when the training loop outlives the main thread."""
    script = f"""
import os, sys, threading, time, stoker
loader = stoker.Loader(stoker.open({str(folder)!r}), 8, fields={{"cls": int}})
def train():
    for batch in loader:
        time.sleep(0.01)
    print(loader.report().batches, flush=True)
    {ending}
if {thread}:
    threading.Thread(target=train).start()
else:
    train()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == f"{SAMPLES // 8}\n", done.stderr
    unhandled = ending.startswith("raise")
    assert done.returncode == (0 if not unhandled or thread else -signal.SIGINT), done.stderr
    assert ("Traceback" in done.stderr) == unhandled, done.stderr
