"""Online control beside the best static setting, found by trying them all, on stages that sleep, so that the optimum is known.

transform   10 ms a sample by a server that takes 12 at once from all feeders together: 12 threads are enough, fewer are too few
held        2 ms of pure Python a sample: two processes, no number of threads

Each is run with fixed settings (threads from 1 to 32; one and two feeders), 4 s each after a second of warming up, and then with
control: the rate over 4 s once 30 s have passed, and the decisions from the run log. `transform` starts badly, with one thread; the
others need CPUs, and start with as many threads as there are. The best static setting is run twice more, before control and after
it, and control's share is of the mean of these two (target: 0.95): the highest of many short looks was lucky as well. `decode` and
`images` are the same for real photos: decode alone, and decode with a NumPy transform. STOKER_BENCH_ONLY names the stages. One JSON
line on stdout, progress on stderr.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rival_kit import SIZE, write_files
from rival_run import source_photos
from served import Served, served

import stoker
from stoker.format.arrays import ArraysWriter
from stoker.pack import pack

BATCH = 16
WARM_S, RUN_S, SETTLED_S = 1.0, 4.0, 30.0
THREADS = (1, 2, 4, 8, 12, 16, 32)
FEEDERS = (1, 2)
ONLY = os.environ.get("STOKER_BENCH_ONLY", "transform,held,decode,images").split(",")
TARGET = 0.95


class Asking:
    """A transform that asks a server for every sample."""

    def __init__(self, server: str) -> None:
        self._server = Served(server)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        self._server.wait()
        return sample


def held(sample: dict[str, Any]) -> dict[str, Any]:
    """Some 2 ms of pure Python."""
    total = 0
    for number in range(20_000):
        total += number * number % 7
    return {**sample, "total": total}


def jitter(sample: dict[str, Any]) -> dict[str, Any]:
    """A NumPy augmentation: brightness and contrast."""
    random = np.random.default_rng(sample["__seed__"])
    image = sample["image"].astype(np.float32)
    image = (image - image.mean()) * random.uniform(0.8, 1.2) + image.mean() * random.uniform(0.8, 1.2)
    return {**sample, "image": np.clip(image, 0, 255).astype(np.uint8)}


def rate(make: Callable[[stoker.Budget], stoker.Loader], budget: stoker.Budget, warm_s: float) -> float:
    """Samples a second over RUN_S, after *warm_s*."""
    with make(budget) as loader:
        begun, counted, samples = time.perf_counter(), 0.0, 0
        while True:
            for batch in loader:
                now = time.perf_counter()
                if not counted and now - begun >= warm_s:
                    counted = now
                elif counted:
                    samples += len(batch["__index__"])
                    if now - counted >= RUN_S:
                        return samples / (now - counted)


def compared(name: str, make: Callable[[stoker.Budget], stoker.Loader], log: Path) -> dict[str, Any]:
    """The static settings, the control, and what it decided."""

    def fixed(feeders: int, threads: int) -> float:
        budget = stoker.Budget(cpus=threads * feeders, feeders=feeders, adapt=False)
        found = round(rate(make, budget, WARM_S), 1)
        print(name, f"{feeders}x{threads}", found, file=sys.stderr, flush=True)
        return found

    static = {(feeders, threads): fixed(feeders, threads) for feeders in FEEDERS for threads in THREADS}
    winner = max(static, key=lambda one: static[one])
    again = [fixed(*winner)]
    os.environ["STOKER_RUN_LOG"] = str(log)
    found = rate(make, stoker.Budget(cpus=1 if name == "transform" else None), SETTLED_S)
    del os.environ["STOKER_RUN_LOG"]
    again.append(fixed(*winner))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    decisions = [{key: line[key] for key in ("threads", "readers", "slots", "feeders", "reason")}
                 for line in lines if line["event"] == "control"]  # fmt: skip
    best = statistics.mean(again)
    print(name, "control", round(found, 1), f"{found / best:.2f} of the best", file=sys.stderr, flush=True)
    told = {f"{feeders}x{threads}": rate for (feeders, threads), rate in static.items()}
    return {
        "static": told, "best": "x".join(map(str, winner)), "best_again": again, "control": round(found, 1),
        "of_best": round(found / best, 3), "decisions": decisions,
    }  # fmt: skip


def main() -> None:
    """All stages, the line."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="stoker-control-") as place, served(12, 0.01) as server:
        rows = Path(place) / "rows"
        rows.mkdir()
        with (rows / "0.arrays.bin").open("wb") as out:
            writer = ArraysWriter(out)
            for number in range(2_000):
                writer.add(f"{number}", {"label": np.int64(number)})
            writer.close()
        plain = stoker.open(rows)
        photos, _ = source_photos(200)
        write_files(photos, Path(place) / "raw")
        pack(str(Path(place) / "raw"), str(Path(place) / "shards"), shard_size="16MB")
        images = stoker.open(Path(place) / "shards")
        fields: dict[str, object] = {"image": stoker.image.RandomResizedCrop(SIZE, flip=True)}
        stages: dict[str, Callable[[stoker.Budget], stoker.Loader]] = {
            "transform": lambda budget: stoker.Loader(plain, BATCH, transform=Asking(server), budget=budget),
            "held": lambda budget: stoker.Loader(plain, BATCH, transform=held, budget=budget),
            "decode": lambda budget: stoker.Loader(images, BATCH, fields=fields, budget=budget),
            "images": lambda budget: stoker.Loader(images, BATCH, fields=fields, transform=jitter, budget=budget),
        }
        for name in ONLY:
            results[name] = compared(name, stages[name], Path(place) / f"{name}.jsonl")
    print(json.dumps({"bench": "control", "target": TARGET, "settled_s": SETTLED_S, "results": results}))


if __name__ == "__main__":
    main()
