"""How near `stoker tune` comes to the best of the full grid, and in which part of the grid's time.

The loaders are real DataLoaders whose samples sleep, so that the best setting is known: `far` is a far store, as fast as there are
workers; `narrow` serves four readers at a time, so more workers than that do nothing; `seams` has epochs of four batches, where what
counts is how workers come over the seam. The grid is every combination of num_workers, prefetch_factor, persistent_workers and
multiprocessing_context, up to as many workers as tune would go, each measured for as long as tune's last round measures (the design's aim: at least 95 % of the best in at
most 25 % of the time).

found       rate of tune's choice in the grid's own trial of it, over the best rate of the grid (seams included)
time        tune's wall time over the grid's

STOKER_BENCH_SECONDS (2) is the last round's time, STOKER_BENCH_ONLY names the loaders, STOKER_BENCH_CPUS (2) is the machine that the
rule of thumb sees. The table goes to stderr, one JSON line to stdout.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.tune import Limits, Setting, Target, Trial, tune
from stoker.tune.search import Search
from stoker.tune.settings import full_grid, workers_max

SECONDS = float(os.environ.get("STOKER_BENCH_SECONDS", "2"))
ONLY = os.environ.get("STOKER_BENCH_ONLY", "far,narrow,seams").split(",")
CPUS = int(os.environ.get("STOKER_BENCH_CPUS", "2"))
SAMPLE_S = 0.02
LANES = 4


def sample(number: int, lanes: str) -> int:
    """A sample that takes 20 ms of waiting; with *lanes*, only four at a time."""
    if not lanes:
        time.sleep(SAMPLE_S)
        return number
    while True:  # whichever lane is free
        for lane in range(LANES):
            with (Path(lanes) / str(lane)).open("w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                time.sleep(SAMPLE_S)
                return number
        time.sleep(SAMPLE_S / 20)


class Samples:
    """A map dataset of them."""

    def __init__(self, samples: int, lanes: str = "") -> None:
        self.samples, self.lanes = samples, lanes

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> int:
        return sample(number, self.lanes)


def far(**knobs: Any) -> object:
    """A far store."""
    return _loader(Samples(100_000), knobs)


def narrow(**knobs: Any) -> object:
    """Four readers at a time."""
    return _loader(Samples(100_000, os.environ["STOKER_BENCH_LANES"]), knobs)


def seams(**knobs: Any) -> object:
    """Four batches an epoch."""
    return _loader(Samples(16), knobs)


def _loader(samples: Samples, knobs: dict[str, Any]) -> object:
    from torch.utils.data import DataLoader

    return DataLoader(samples, batch_size=4, **knobs)  # type: ignore[arg-type]


def rate_of(setting: Setting, trials: list[Trial]) -> float:
    """The grid's rate of a setting, page-locked memory apart; without workers nothing else counts."""
    for trial in trials:
        assert trial.setting is not None
        same = trial.setting == replace(setting, pin_memory=False)
        if same or trial.setting.num_workers == setting.num_workers == 0:
            return trial.epoch_rate
    return 0.0


def compare(name: str) -> dict[str, Any]:
    """tune, then the grid."""
    target, limits = Target(f"{Path(__file__).resolve()}:{name}"), Limits(seconds=SECONDS, cpus=CPUS)
    begun = time.monotonic()
    found = tune(target, limits=limits)
    tuned_s = time.monotonic() - begun
    search = Search(target, None, replace(limits, budget_s=1e9), lambda line: print(f"  {line}", file=sys.stderr))
    begun = time.monotonic()
    ground = search.ground
    for setting in full_grid(ground.start, ground.takes, most=workers_max(ground.cpus), cuda=ground.cuda):
        search.run(setting, SECONDS, again=True)
    grid_s = time.monotonic() - begun
    best = max(search.trials, key=lambda trial: trial.epoch_rate)
    assert found.chosen is not None and best.setting is not None
    takes = search.ground.takes
    rate = rate_of(found.chosen, search.trials)
    return {
        "found": rate / best.epoch_rate, "time": tuned_s / grid_s, "tune_s": tuned_s, "grid_s": grid_s,
        "tune_trials": len(found.trials), "grid_trials": len(search.trials), "chosen": found.chosen.line(takes),
        "best": best.setting.line(takes), "chosen_rate": rate, "best_rate": best.epoch_rate,
    }  # fmt: skip


def main() -> None:
    """All loaders, the table, the line."""
    with tempfile.TemporaryDirectory() as lanes:
        os.environ["STOKER_BENCH_LANES"] = lanes
        results = {name: compare(name) for name in ONLY}
    print(f"{'':<8}{'found':>8}{'time':>8}{'trials':>8}{'of':>6}  choice and best", file=sys.stderr)
    for name, row in results.items():
        counts = f"{row['tune_trials']:>8}{row['grid_trials']:>6}"
        print(f"{name:<8}{row['found']:>8.1%}{row['time']:>8.1%}{counts}  {row['chosen']}", file=sys.stderr)
        print(f"{'':<40}{row['best']}", file=sys.stderr)
    print(json.dumps({"bench": "tune", "seconds": SECONDS, "cpus": CPUS, "results": results}))


if __name__ == "__main__":
    main()
