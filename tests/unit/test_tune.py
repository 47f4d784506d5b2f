"""`stoker tune`: what it chooses where the best is known, what it says, prints, draws."""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as Xml
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.errors import UsageError
from stoker.tune import Limits, Setting, Target, Trial, TuneReport, tune
from stoker.tune.plot import check_name, draw
from stoker.tune.report import table, text
from stoker.tune.settings import KNOBS, first_field, full_grid, start_workers, variants, worker_ladder, workers_max
from stoker.tune.trial import Order
from stoker.tune.verdict import Ground, advice, choose_rate, choose_rest
from stoker.tune.watch import Bounds, run_trial

QUICK = Limits(seconds=0.4, cpus=4)


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """`main` answers SIGTERM; give it back afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


# --- whole searches ---


def test_without_a_step_time_it_finds_the_fewest_workers_that_are_as_fast_as_any() -> None:
    """Four are useful; the search tries more, and says what fewer give."""
    found = tune(Target("support_tune_paced:paced"), limits=QUICK)
    assert found.line == "paced(num_workers=4)"
    assert found.feeds is None
    assert found.measured is not None
    assert found.measured.seconds == 0.4
    assert {t.setting.num_workers for t in found.trials if t.setting} >= {0, 1, 2, 4, 8, 16}
    assert found.reasons[0].startswith("num_workers=4: ")
    assert "with 2 it is" in found.reasons[0]
    assert found.measured.rate > 50


def test_with_a_step_time_it_takes_no_more_workers_than_feed_it() -> None:
    """A step of 32 ms needs 1.2 / 32 ms = 37.5 batches/s: two workers give 50, one gives 25."""
    found = tune(Target("support_tune_paced:paced"), step_s=0.032, limits=QUICK)
    assert found.line == "paced(num_workers=2)"
    assert found.feeds is True
    assert found.advice == ()
    assert found.confirmed is not None
    assert found.confirmed.wait_share is not None
    assert "feeds a step of 32.0 ms" in "\n".join(text(found))


def test_where_nothing_feeds_the_step_it_says_what_would() -> None:
    """A step of 1 ms: four workers are the best, idle CPUs tell that more would not help."""
    found = tune(Target("support_tune_paced:paced"), step_s=0.001, limits=QUICK)
    assert found.chosen is not None
    assert found.chosen.num_workers == 4
    assert found.feeds is False
    assert "more workers do not help" in found.advice[0]
    assert "must be" in found.advice[0]
    assert "it feeds a step of" in found.advice[-1]


def test_how_workers_start_and_stay_is_chosen_by_what_seams_cost() -> None:
    """fork fails, spawn is slow at seams, workers that go are, too: forkserver and persistent."""
    found = tune(Target("support_tune_paced:seams"), limits=QUICK)
    assert found.chosen is not None
    assert found.chosen.multiprocessing_context == "forkserver"
    assert found.chosen.persistent_workers is True
    assert any("locks do not survive" in t.message for t in found.trials if t.status == "failed")
    assert any("multiprocessing_context='forkserver'" in reason for reason in found.reasons)


@pytest.mark.parametrize(("name", "seconds"), [("once", 0.1), ("once", 1.0), ("short", 0.2)])
def test_generators_and_tiny_epochs_are_measured_too(name: str, seconds: float) -> None:
    """One pass only, longer and shorter than the measurement, and epochs shorter than a round of the workers."""
    setting = Setting(4)
    order = Order(Target(f"support_tune_paced:{name}"), {"num_workers": 4}, 4, 2, seconds, again=True)
    found = run_trial(order, setting, Bounds(20, 2 << 30))
    assert found.status == "ok"
    assert found.rate > 20
    assert found.again_s is None


def test_the_time_for_tuning_is_bounded() -> None:
    """After the budget no trial begins, and the report says that it is not complete."""
    found = tune(Target("support_tune_paced:paced"), limits=replace(QUICK, budget_s=0.5))
    assert not found.complete
    assert found.chosen is not None
    assert "--budget" in "\n".join(text(found))


# --- the command ---


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table, reasons, and the line to paste last; progress goes to stderr; the plot is written."""
    plot = tmp_path / "tune.html"
    options = ["--seconds", "0.2", "--cpus", "2", "--step-time", "32ms", "--plot", str(plot)]
    assert main(["tune", "support_tune_paced:paced", *options]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "paced(num_workers=2)"
    assert "← chosen" in said.out
    assert "batches/s" in said.err
    assert plot.read_text().startswith("<!doctype html>")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object with the choice, its reasons and all trials."""
    assert main(["tune", "support_tune_paced:paced", "--seconds", "0.2", "--cpus", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] == {"num_workers": 4}
    assert found["line"] == "paced(num_workers=4)"
    assert {"rate", "status", "ram_bytes", "shm_bytes", "epoch_rate"} <= found["trials"][0].keys()


def test_a_factory_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By path, and by module name in the folder where the command runs; neither need be on Python's path."""
    (tmp_path / "my_loader.py").write_text("def make(num_workers=0):\n    return [b'x'] * 50\n")
    monkeypatch.chdir(tmp_path)
    for name in ("my_loader:make", str(tmp_path / "my_loader.py:make")):
        assert main(["tune", name, "--seconds", "0.05", "--cpus", "1"]) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith("make(num_workers=")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["no_such_module:make"], 2, "no module 'no_such_module'"),
        (["support_tune_paced:paced", "--plot", "x.bmp"], 2, ".svg or .html"),
        (["support_tune_paced:paced", "--step-time", "0ms"], 2, "longer than 0"),
        (["support_tune_paced:paced", "--seconds", "0"], 2, "seconds"),
        (["support_tune_hostile:raises", "--seconds", "0.1"], 1, "works with no setting"),
        (["/nowhere/at/all", "--seconds", "0.1"], 1, "/nowhere/at/all: there is no such folder"),
    ],
)
def test_what_cannot_be_tuned(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A clear error and the right exit code; nothing on stdout."""
    assert main(["tune", *arguments]) == code
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


# --- decisions ---


def test_where_the_search_begins() -> None:
    """min(16, CPUs // GPUs), at least one, and powers of two around it, none included."""
    assert [start_workers(*machine) for machine in ((96, 8), (256, 8), (4, 8), (2, 1))] == [12, 16, 1, 2]
    assert worker_ladder(8) == (0, 2, 4, 8, 16, 32)
    assert worker_ladder(1) == (0, 1, 2, 4)
    assert (workers_max(1), workers_max(12)) == (16, 96)


def test_a_setting_becomes_arguments_that_torch_takes() -> None:
    """Only the knobs that the factory takes; without workers what torch demands."""
    setting = Setting(4, 2, True, True, "spawn")
    assert setting.arguments(KNOBS) == {
        "num_workers": 4, "prefetch_factor": 2, "pin_memory": True, "persistent_workers": True,
        "multiprocessing_context": "spawn",
    }  # fmt: skip
    assert setting.arguments(["num_workers"]) == {"num_workers": 4}
    none = replace(setting, num_workers=0).arguments(KNOBS)
    assert none == {
        "num_workers": 0, "prefetch_factor": None, "pin_memory": True, "persistent_workers": False,
        "multiprocessing_context": None,
    }  # fmt: skip
    assert Setting(0, persistent_workers=False).line(KNOBS) == "num_workers=0"


def test_fields_and_variants() -> None:
    """Only what the factory takes is varied; page-locked memory only where there is a GPU."""
    assert {s.prefetch_factor for s in first_field(4, ("num_workers",), None)} == {2}
    assert len(first_field(4, KNOBS, "fork")) == 1 + 2 * 5
    winner = Setting(4, 2, multiprocessing_context="fork")
    assert [s.multiprocessing_context for s in variants(winner, KNOBS, cuda=False)] == ["forkserver", "spawn", "fork"]
    assert [s.pin_memory for s in variants(winner, KNOBS, cuda=True)].count(True) == 1
    assert variants(Setting(0), KNOBS, cuda=False) == []
    assert len(full_grid(4, KNOBS, most=16, cuda=False)) == 1 + 5 * 2 * 3 * 2
    assert len(full_grid(4, KNOBS, most=32, cuda=False)) == 1 + 6 * 2 * 3 * 2


GROUND = Ground(cpus=4, start=4, enough=100.0, cuda=False, takes=KNOBS)


def measured(setting: Setting, rate: float, **values: float) -> Trial:
    """A trial that went well."""
    return Trial(setting, "ok", rate=rate, seconds=1.0, **values)


def test_a_setting_that_failed_once_is_never_chosen() -> None:
    """However fast it was before."""
    fast, slow = Setting(8), Setting(4)
    trials = [measured(fast, 500), measured(slow, 90), Trial(fast, "memory", "it took 9 GB")]
    assert choose_rate(trials, [fast, slow], GROUND) == slow


def test_cpu_bound_loaders_are_told_how_many_cores() -> None:
    """All four CPUs busy at half of what is needed: eight would do."""
    winner = measured(Setting(4), 50.0, cpu_s=0.08)
    (first, *_) = advice(winner, [winner], GROUND, 0.012)
    assert "the CPUs are the limit (100% of 4 busy): 8 CPUs for each GPU" in first


def test_a_rate_that_still_grows_is_told_how_many_workers() -> None:
    """The most workers tried are the best, CPUs idle: about so many by the time that a batch takes a worker."""
    trials = [measured(Setting(4), 20.0, cpu_s=0.001), measured(Setting(8), 40.0, cpu_s=0.001)]
    (first, *_) = advice(trials[1], trials, GROUND, 0.012)
    assert "about 19 would feed it" in first


def test_pinned_memory_by_measurement_where_there_is_a_gpu() -> None:
    """The faster of the two; without a GPU by rule."""
    winner = Setting(4, multiprocessing_context="fork")
    trials = [measured(winner, 80.0), measured(replace(winner, pin_memory=True), 60.0)]
    chosen, reasons = choose_rest(winner, trials, replace(GROUND, cuda=True, takes=("num_workers", "pin_memory")))
    assert chosen.pin_memory is False
    assert "60 batches/s on the GPU with it, 80 without" in reasons[0]
    chosen, reasons = choose_rest(winner, trials[:1], replace(GROUND, takes=("num_workers", "pin_memory")))
    assert chosen.pin_memory is True
    assert "not measured" in reasons[0]


def test_the_seam_counts_by_the_length_of_the_epoch() -> None:
    """100 batches a second, a seam of one second: half in an epoch of 100 batches, nothing in a very long one."""
    trial = Trial(Setting(1), "ok", rate=100.0, again_s=1.01, length=100)
    assert trial.epoch_rate == pytest.approx(50.0)
    assert replace(trial, length=10**7).epoch_rate == pytest.approx(100.0, rel=1e-4)
    assert replace(trial, again_s=None).epoch_rate == 100.0


def report(trials: list[Trial], chosen: Setting | None = None) -> TuneReport:
    """A finished one."""
    return TuneReport(Target("m:<make>"), GROUND, 1, 0.012, tuple(trials), chosen, None, (), (), None, None, True)


def test_the_plot_is_an_svg_with_all_that_was_found() -> None:
    """Well-formed, names escaped, failures told, the need as a line; also when nothing worked."""
    chosen = Setting(4)
    trials = [measured(Setting(w, p), 10.0 * w + p) for w in (0, 2, 4) for p in (2, 4)]
    for found in (report([*trials, Trial(Setting(8), "hung", "…")], chosen), report([Trial(Setting(2), "hung", "…")])):
        picture = draw(found, "x.svg")
        Xml.fromstring(picture)
        assert "m:&lt;make&gt;" in picture
        assert "failed or not tried" in picture
        assert "the step&#x27;s need" in picture or "the step's need" in picture
        assert "<svg" in draw(found, "x.html")
    with pytest.raises(UsageError, match=r"\.svg or \.html"):
        check_name("x.png")


def test_the_table_tells_failures_by_their_reason() -> None:
    """Sorted by workers, one line a setting, failures below."""
    lines = table(
        [measured(Setting(2), 5.0), Trial(Setting(8), "hung", "no sign of life\nhint"), measured(Setting(0), 3.0)]
    )
    assert lines[1].split()[0] == "0"
    assert lines[2].split()[0] == "2"
    assert lines[3].endswith("hung: no sign of life")
