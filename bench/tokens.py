"""Tokens: a shuffled warm epoch of 40,000 samples of 2,048 int32 (328 MB) in batches of 64, and what bare copying of it costs.

bare        numpy's `take` of the same rows, in a shuffled order, out of one mapped file into one buffer: the limit of memory
stoker      shards of arrays, `stoker.Loader`
windows     the same tokens as documents of 10,240, cut into windows of 2,048 by `stoker.tokens` (and numbered by document)
memmap      torch's DataLoader over a `np.memmap`, two workers
litdata, mds   their own writers and loaders, two workers

A round is a fresh process: a warm epoch, then five that count, median. Rounds (STOKER_BENCH_ROUNDS, 5) are interleaved, and what is
printed is their median: GB/s of tokens, CPU seconds a GB of the whole process tree, and ratios to stoker of the same turn.
STOKER_BENCH_ONLY and STOKER_BENCH_WORKERS are as in `rivals.py`. The table goes to stderr, one JSON line to stdout.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from rival_kit import WORKERS, Epoch
from rival_run import ROUNDS, child, chosen, compare
from rival_tokens import LENGTH, SAMPLES
from rivals import idle_shares, taken_by_others, tree_cpu_s

BATCH = 64
EPOCHS = 5
CONTENDERS = ("bare", "stoker", "windows", "memmap", "litdata", "mds")
TARGETS = {"of_bare": 0.5, "times_best_rival": 8.0}


def measure(epoch: Epoch, batch: int) -> dict[str, Any]:
    """One round, in this process."""
    for _ in epoch():
        pass
    rates, cpus, begun = [], [], time.perf_counter()
    idle_shares()
    start_cpu = tree_cpu_s()
    for _ in range(EPOCHS):
        cpu, wall = tree_cpu_s(), time.perf_counter()
        gigabytes = sum(epoch()) * LENGTH * 4 / 1e9
        rates.append(gigabytes / (time.perf_counter() - wall))
        cpus.append((tree_cpu_s() - cpu) / gigabytes)
    spent = time.perf_counter() - begun
    others = taken_by_others(idle_shares(), tree_cpu_s() - start_cpu, spent)
    return {"gb_per_s": statistics.median(rates), "cpu_s_a_gb": statistics.median(cpus), "others": others}


def main() -> None:
    """All rounds, the table, the line."""
    names = tuple(f"tokens_{name}" for name in chosen(CONTENDERS))
    found = compare(__file__, names, [], BATCH)
    results: dict[str, Any] = {}
    for name, rounds in found.rounds.items():
        results[name.removeprefix("tokens_")] = {
            **{
                key: round(statistics.median(one[key] for one in rounds), 3)
                for key in ("gb_per_s", "cpu_s_a_gb", "others")
            },
            "rounds": [round(one["gb_per_s"], 3) for one in rounds],
            "versions": rounds[0]["versions"],
        }
    print(f"{SAMPLES} × {LENGTH} int32, batch {BATCH}, {WORKERS} workers, medians of {ROUNDS} rounds", file=sys.stderr)
    print(f"{'':<10}{'GB/s':>9}{'CPU s/GB':>10}{'others':>9}", file=sys.stderr)
    for name, row in results.items():
        print(f"{name:<10}{row['gb_per_s']:>9.2f}{row['cpu_s_a_gb']:>10.3f}{row['others']:>9.2f}", file=sys.stderr)
    for name, reason in found.failed.items():
        print(f"{name:<10}  left out. {reason}", file=sys.stderr)
    ratios = {}
    if "stoker" in results and "bare" in results:
        ratios["of_bare"] = round(results["stoker"]["gb_per_s"] / results["bare"]["gb_per_s"], 3)
    rivals = [results[name]["gb_per_s"] for name in ("memmap", "litdata", "mds") if name in results]
    if "stoker" in results and rivals:
        ratios["times_best_rival"] = round(results["stoker"]["gb_per_s"] / max(rivals), 2)
    print(json.dumps({"bench": "tokens", "batch": BATCH, "workers": WORKERS, "rounds": ROUNDS, **ratios,
                      "targets": TARGETS, "results": results, "left_out": found.failed}))  # fmt: skip


if __name__ == "__main__":
    child(measure) if len(sys.argv) > 1 else main()
