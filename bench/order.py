"""Order: 10^12 samples, a block of 10^6 positions. Prints one JSON line: median seconds, CPU seconds, peak bytes.

Target: at most 0.1 s and 50 MB. `worst` is 2^40 + 1 samples, where half of all entries walk on.
"""

from __future__ import annotations

import json
import statistics
import time
import tracemalloc

import numpy as np

from stoker.order import build_order

POSITIONS = 1_000_000
ROUNDS = 5


def measure(samples: int) -> dict[str, float]:
    """Median wall and CPU seconds of a block in the middle of the epoch, and the peak of allocated bytes."""
    order = build_order("full", shard_starts=np.array([0, samples]), seed=42)
    positions = np.arange(samples // 2, samples // 2 + POSITIONS)
    wall_s, cpu_s = [], []
    for epoch in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        order.at(epoch, positions)
        wall_s.append(time.perf_counter() - wall)
        cpu_s.append(time.process_time() - cpu)
    tracemalloc.start()
    order.at(ROUNDS, positions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "wall_s": round(statistics.median(wall_s), 4),
        "cpu_s": round(statistics.median(cpu_s), 4),
        "peak_bytes": peak,
    }


if __name__ == "__main__":
    print(
        json.dumps({"bench": "order", "positions": POSITIONS, "n_1e12": measure(10**12), "worst": measure(2**40 + 1)})
    )
