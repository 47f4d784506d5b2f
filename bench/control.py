"""Online control beside the best static setting, found by trying them all, on stages that sleep, so that the optimum is known.

transform   10 ms a sample, at most 12 at once (a server that serves no more): 12 threads are enough, fewer are too few
held        2 ms of pure Python a sample: two processes, no number of threads

Each is run with fixed settings (threads from 1 to 32; one and two feeders), 4 s each after a second of warming up, and then with
control from a bad start, one thread: the rate over 4 s once 30 s have passed, its share of the best static rate (target: 0.95), and
the decisions from the run log. `decode` and `images` are the same for real photos: decode alone, and decode with a NumPy transform.
One JSON line on stdout, progress on stderr.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rival_kit import SIZE, write_files
from rival_run import source_photos

import stoker
from stoker.format.arrays import ArraysWriter
from stoker.pack import pack

BATCH = 16
WARM_S, RUN_S, SETTLED_S = 1.0, 4.0, 30.0
THREADS = (1, 2, 4, 8, 12, 16, 32)
FEEDERS = {"transform": (1,)}
"""Of a stage whose limit is a process's own: every feeder would have a server to itself."""
TARGET = 0.95


class Served:
    """10 ms by a server that takes twelve at once."""

    def __init__(self) -> None:
        self._at_once = threading.Semaphore(12)

    def __reduce__(self) -> tuple[type[Served], tuple[()]]:
        return Served, ()  # a semaphore stays where it is

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        with self._at_once:
            time.sleep(0.01)
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
    static = {}
    for feeders in FEEDERS.get(name, (1, 2)):
        for threads in THREADS:
            budget = stoker.Budget(cpus=threads * feeders, feeders=feeders, adapt=False)
            static[f"{feeders}x{threads}"] = round(rate(make, budget, WARM_S), 1)
            print(name, f"{feeders}x{threads}", static[f"{feeders}x{threads}"], file=sys.stderr, flush=True)
    os.environ["STOKER_RUN_LOG"] = str(log)
    start = stoker.Budget(cpus=1 if name == "transform" else None)
    found = rate(make, start, SETTLED_S)
    del os.environ["STOKER_RUN_LOG"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    decisions = [{key: line[key] for key in ("threads", "readers", "slots", "feeders", "reason")}
                 for line in lines if line["event"] == "control"]  # fmt: skip
    best = max(static.values())
    print(name, "control", round(found, 1), f"{found / best:.2f} of the best", file=sys.stderr, flush=True)
    return {"static": static, "control": round(found, 1), "of_best": round(found / best, 3), "decisions": decisions}


def main() -> None:
    """All stages, the line."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="stoker-control-") as place:
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
            "transform": lambda budget: stoker.Loader(plain, BATCH, transform=Served(), budget=budget),
            "held": lambda budget: stoker.Loader(plain, BATCH, transform=held, budget=budget),
            "decode": lambda budget: stoker.Loader(images, BATCH, fields=fields, budget=budget),
            "images": lambda budget: stoker.Loader(images, BATCH, fields=fields, transform=jitter, budget=budget),
        }
        for name, make in stages.items():
            results[name] = compared(name, make, Path(place) / f"{name}.jsonl")
    print(json.dumps({"bench": "control", "target": TARGET, "settled_s": SETTLED_S, "results": results}))


if __name__ == "__main__":
    main()
