"""`stoker tune` and factories that fail, hang, crash, hoard or talk: a clear error in bounded time, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stoker.errors import StokerError, UsageError
from stoker.tune import Limits, Setting, Target, Trial, tune
from stoker.tune.search import Search
from stoker.tune.trial import Order
from stoker.tune.watch import Bounds, run_trial

BOUNDS = Bounds(quiet_s=20, ram_bytes=2 << 30)


def trial(name: str, *, workers: int = 0, bounds: Bounds = BOUNDS, seconds: float = 0.3) -> Trial:
    """One trial of a factory of `support_tune_hostile`."""
    setting = Setting(workers)
    order = Order(
        Target(f"support_tune_hostile:{name}"), setting.arguments(("num_workers",)), workers, 2, seconds, again=False
    )
    return run_trial(order, setting, bounds)


@pytest.fixture(autouse=True)
def nothing_left() -> object:
    """No process of a trial outlives it."""
    yield
    until = time.monotonic() + 5
    while left := [p for p in psutil.Process().children(recursive=True) if p.is_running() and "tune" in _words(p)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("no_such_module:make", "no module 'no_such_module'"),
        ("support_tune_hostile:nothing_there", "no function 'nothing_there', found nothing"),
        ("support_tune_hostile:not_a_function", "found a int"),
        ("support_tune_hostile:no_knobs", "takes none of num_workers"),
        ("support_tune_hostile:needs_more", "needs the argument 'path'"),
        ("gone/away.py:make", "gone/away.py: there is no such file"),
        ("support_tune_hostile", "module:function"),
        ("support_tune_hostile:no_iterable", "returned a int, which no loop can run over"),
    ],
)
def test_factories_that_cannot_be_used(factory: str, words: str) -> None:
    """Wrong usage, with what was found."""
    with pytest.raises(UsageError, match=words):
        tune(Target(factory), limits=Limits(seconds=0.2))


def test_a_module_that_fails_when_imported(tmp_path: Path) -> None:
    """Its own error is told, with when it came; a syntax error too; a missing library by its name."""
    cases = {
        "1 / 0": "ZeroDivisionError: division by zero (while it was imported)",
        "def make(:": "SyntaxError",
        "import nowhere_to_be_found": "nowhere_to_be_found",
    }
    for number, (code, words) in enumerate(cases.items()):
        path = tmp_path / f"broken{number}.py"
        path.write_text(code)
        with pytest.raises(StokerError) as caught:
            tune(Target(f"{path}:make"), limits=Limits(seconds=0.2))
        assert words in str(caught.value)


def test_a_factory_that_always_fails_ends_the_search() -> None:
    """After the first settings, with its error; not after all of them."""
    said: list[str] = []
    with pytest.raises(StokerError, match=r"works with no setting.*FileNotFoundError: /data/train.lmdb is not here"):
        tune(Target("support_tune_hostile:raises"), limits=Limits(seconds=0.2), say=said.append)
    assert len(said) == 2


def test_an_empty_loader_is_said() -> None:
    """No batch at all."""
    with pytest.raises(StokerError, match="gave no batch"):
        tune(Target("support_tune_hostile:empty"), limits=Limits(seconds=0.2))


def test_workers_that_fail_leave_the_setting_without_them() -> None:
    """The table tells which settings failed and why; the line to paste works."""
    found = tune(Target("support_tune_hostile:fails_with_workers"), limits=Limits(seconds=0.3))
    assert found.line == "fails_with_workers(num_workers=0)"
    failed = [one for one in found.trials if one.status == "failed"]
    assert all("cannot pickle the database handle (in the factory)" in one.message for one in failed)
    assert failed


def test_a_loader_that_hangs_is_ended_in_time() -> None:
    """SIGTERM and SIGINT ignored: killed after the bound, with where it hung."""
    found = trial("hangs", bounds=Bounds(quiet_s=1.5, ram_bytes=2 << 30))
    assert found.status == "hung"
    assert "no sign of life" in found.message
    assert "after the first batch" in found.message


def test_a_slow_loader_is_not_taken_for_hung() -> None:
    """Four batches of 1.2 s each make a round; silence is bounded to 3 s, yet it is measured."""
    found = trial("crawls", workers=2, bounds=Bounds(quiet_s=3, ram_bytes=2 << 30))
    assert found.status == "ok"
    assert found.wall_s > 3


def test_a_loader_that_crashes_is_told_with_its_last_words() -> None:
    """The signal and the last line on stderr."""
    found = trial("crashes")
    assert (found.status, found.rate) == ("crashed", 0)
    assert "killed by SIGKILL" in found.message
    assert "about to die" in found.message
    assert "exit code 3 in the factory" in trial("leaves").message


def test_a_loader_that_hoards_memory_is_killed_before_the_machine_is_full() -> None:
    """At the bound, with how much it took."""
    found = trial("hoards", bounds=Bounds(quiet_s=20, ram_bytes=600 << 20), seconds=60)
    assert found.status == "memory"
    assert "allowed are 629 MB" in found.message
    assert 600 << 20 < found.ram_bytes < 3 << 30


def test_what_a_factory_prints_is_not_taken_for_results() -> None:
    """100 KB a batch on both streams, with lines that look like results: measured all the same, nothing blocks."""
    found = trial("talks")
    assert found.status == "ok"
    assert found.rate > 1


def test_a_factory_that_needs_a_gpu_says_so() -> None:
    """torch's own words reach the person."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found = trial("needs_cuda")
    assert found.status == "failed"
    assert "CUDA" in found.message or "cuda" in found.message


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_an_interrupted_search_leaves_no_trial_behind(number: signal.Signals, code: int) -> None:
    """Ctrl-C, SIGTERM and kill -9 while a trial hangs: the trial ends too."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker.cli.main", "tune", "support_tune_hostile:hangs"],
        env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until, trials = time.monotonic() + 30, list[psutil.Process]()
    while not any(_hanging(one) for one in trials):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
        trials = psutil.Process(process.pid).children()
    process.send_signal(number)
    _, words = process.communicate(timeout=30)
    assert process.returncode == code, words
    assert "Traceback" not in words
    _, alive = psutil.wait_procs(trials, 10)
    assert alive == []


def _hanging(process: psutil.Process) -> bool:
    """Whether this is a trial that has come to where it ignores all signals."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    return bool(ignored & 1 << signal.SIGTERM - 1)


def test_batches_that_do_not_fit_shared_memory_are_not_tried() -> None:
    """A setting whose batches under way are more than /dev/shm has is skipped, with both numbers."""
    search = Search(Target("support_tune_hostile:fails_with_workers"), None, Limits(seconds=0.2), lambda line: None)
    free = os.statvfs("/dev/shm")
    huge = free.f_bavail * free.f_frsize // 4
    search.trials.append(Trial(Setting(0), "ok", batch_bytes=huge, rate=1.0))
    found = search.run(Setting(4, 2), 0.2)
    assert found is not None
    assert found.status == "skipped"
    assert "do not fit /dev/shm" in found.message
