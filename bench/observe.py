"""What `stoker.observe` costs: CPU time of an iteration with and without it, and as a share of a step of one millisecond.

Rounds with and without are interleaved; the value is the difference of the medians. At most 1 % of a 1 ms step is the aim; with
STOKER_RUN_LOG set, each iteration also writes a line, which is measured beside it. The table goes to stderr, one JSON line to stdout.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import stoker

ITERATIONS = 100_000
ROUNDS = 5
STEP_S = 0.001


def cpu_s(items: Iterable[int]) -> float:
    """CPU seconds an iteration, the run log's own thread included."""
    begun = time.process_time()
    for _ in items:
        pass
    return (time.process_time() - begun) / ITERATIONS


def main() -> None:
    """Measure, print."""
    os.environ.pop("STOKER_RUN_LOG", None)
    bare, observed, logged = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            bare.append(cpu_s(range(ITERATIONS)))
            observed.append(cpu_s(stoker.observe(range(ITERATIONS), summary=False)))
            os.environ["STOKER_RUN_LOG"] = str(Path(folder) / "run.jsonl")
            with stoker.observe(range(ITERATIONS), summary=False) as items:
                logged.append(cpu_s(items))
            del os.environ["STOKER_RUN_LOG"]
    base = statistics.median(bare)
    cost, cost_logged = (statistics.median(found) - base for found in (observed, logged))
    print(f"observe: {cost * 1e6:.2f} µs an iteration, {cost / STEP_S:.3%} of a step of 1 ms", file=sys.stderr)
    print(f"with a run log: {cost_logged * 1e6:.2f} µs, {cost_logged / STEP_S:.3%}", file=sys.stderr)
    print(
        json.dumps(
            {"bench": "observe", "iteration_s": cost, "with_run_log_s": cost_logged, "share_of_1ms": cost / STEP_S}
        )
    )


if __name__ == "__main__":
    main()
