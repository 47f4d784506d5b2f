"""How near `stoker tune` comes to the best of the full grid, and in which part of the grid's time.

The loaders are real DataLoaders whose samples sleep, so that the best setting is known: `far` is a far store, as fast as there are
workers; `narrow` serves four readers at a time, so more workers than that do nothing; `seams` has epochs of four batches, where what
counts is how workers come over the seam. The grid is every combination of num_workers, prefetch_factor, persistent_workers and
multiprocessing_context, up to as many workers as tune would go, each measured for as long as tune's last round measures (the design's aim: at least 95 % of the best in at
most 25 % of the time).

found       rate of tune's choice over that of the grid's best, seams included: each measured twice more after the grid, in turn, for the
            highest of a hundred short looks was lucky as well
time        tune's wall time over the grid's

STOKER_BENCH_SECONDS (2) is the last round's time, STOKER_BENCH_ONLY names the loaders, STOKER_BENCH_CPUS (2) is the machine that the
rule of thumb sees. The table goes to stderr, one JSON line to stdout.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from served import Served, served

from stoker.tune import Limits, Setting, Target, Trial, tune
from stoker.tune.search import Search
from stoker.tune.settings import full_grid, workers_max

SECONDS = float(os.environ.get("STOKER_BENCH_SECONDS", "2"))
ONLY = os.environ.get("STOKER_BENCH_ONLY", "far,narrow,seams").split(",")
CPUS = int(os.environ.get("STOKER_BENCH_CPUS", "2"))
SAMPLE_S = 0.02
LANES = 4
AGAIN = 2


class Samples:
    """A map dataset of samples that take 20 ms of waiting, by themselves or for a server."""

    def __init__(self, samples: int, server: Served | None = None) -> None:
        self.samples, self.server = samples, server

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> int:
        if self.server is None:
            time.sleep(SAMPLE_S)
        else:
            self.server.wait()
        return number


def far(**knobs: Any) -> object:
    """A far store."""
    return _loader(Samples(100_000), knobs)


def narrow(**knobs: Any) -> object:
    """Four readers at a time."""
    return _loader(Samples(100_000, Served(os.environ["STOKER_BENCH_SERVER"])), knobs)


def seams(**knobs: Any) -> object:
    """Four batches an epoch."""
    return _loader(Samples(16), knobs)


def _loader(samples: Samples, knobs: dict[str, Any]) -> object:
    from torch.utils.data import DataLoader

    return DataLoader(samples, batch_size=4, **knobs)  # type: ignore[arg-type]


def in_grid(setting: Setting, grid: list[Setting]) -> Setting:
    """The grid's own of a setting: pinned only where the grid pins; without workers nothing else counts."""
    for one in (setting, replace(setting, pin_memory=False)):
        if one in grid:
            return one
    alone = [one for one in grid if one.num_workers == setting.num_workers == 0]
    if not alone:
        raise SystemExit(f"tune chose what the grid does not have: {setting}")
    return alone[0]


def again(search: Search, settings: tuple[Setting, Setting]) -> list[float]:
    """The rates of two settings, seams included, measured in turn: means of AGAIN."""
    rates = [[rate_of(search.run(one, SECONDS, again=True)) for one in settings] for _ in range(AGAIN)]
    return [statistics.mean(one) for one in zip(*rates, strict=True)]


def rate_of(trial: Trial | None) -> float:
    """A trial's rate, seams included."""
    assert trial is not None and trial.status == "ok", trial
    return trial.epoch_rate


def compare(name: str) -> dict[str, Any]:
    """tune, then the grid."""
    target, limits = Target(f"{Path(__file__).resolve()}:{name}"), Limits(seconds=SECONDS, cpus=CPUS)
    begun = time.monotonic()
    found = tune(target, limits=limits)
    tuned_s = time.monotonic() - begun
    search = Search(target, None, replace(limits, budget_s=1e9), lambda line: print(f"  {line}", file=sys.stderr))
    begun = time.monotonic()
    ground = search.ground
    grid = full_grid(ground.start, ground.takes, most=workers_max(ground.cpus), cuda=ground.cuda)
    for setting in grid:
        search.run(setting, SECONDS, again=True)
    grid_s = time.monotonic() - begun
    best = max(search.trials, key=lambda trial: trial.epoch_rate).setting
    assert found.chosen is not None and best is not None
    rate, best_rate = again(search, (in_grid(found.chosen, grid), best))
    return {
        "found": rate / best_rate, "time": tuned_s / grid_s, "tune_s": tuned_s, "grid_s": grid_s,
        "tune_trials": len(found.trials), "grid_trials": len(grid), "chosen": found.chosen.line(ground.takes),
        "best": best.line(ground.takes), "chosen_rate": rate, "best_rate": best_rate,
    }  # fmt: skip


def main() -> None:
    """All loaders, the table, the line."""
    with served(LANES, SAMPLE_S) as server:
        os.environ["STOKER_BENCH_SERVER"] = server
        results = {name: compare(name) for name in ONLY}
    print(f"{'':<8}{'found':>8}{'time':>8}{'trials':>8}{'of':>6}  choice and best", file=sys.stderr)
    for name, row in results.items():
        counts = f"{row['tune_trials']:>8}{row['grid_trials']:>6}"
        print(f"{name:<8}{row['found']:>8.1%}{row['time']:>8.1%}{counts}  {row['chosen']}", file=sys.stderr)
        print(f"{'':<40}{row['best']}", file=sys.stderr)
    print(json.dumps({"bench": "tune", "seconds": SECONDS, "cpus": CPUS, "results": results}))


if __name__ == "__main__":
    main()
