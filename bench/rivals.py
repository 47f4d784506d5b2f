"""stoker beside its rivals: JPEG → RandomResizedCrop 224 → flip → shuffled uint8 batches of 128, two workers each.

A round is a fresh process: a warm epoch, then STOKER_BENCH_EPOCHS (2) that count, then one while memory is watched. Rounds are
interleaved (STOKER_BENCH_ROUNDS, 5), values are medians, ratios to stoker are medians of the rounds' ratios.

cpu_ms          CPU time an image over the whole process tree, ended processes included
images_per_s    with the seams between the epochs; `floor` is one thread
first_batch_s   from building the loader to its first batch, libraries imported in this process before
start_s         from the start of the process to the first batch, imports included, data laid out before
peak_pss_mb     proportional memory of the tree, looked at every 50 ms in an epoch of its own, for looking costs CPU
idle            share of each core in the median round: a run that had only one core is seen
others          share of all cores that processes of others took, median; more than some hundredths: the run says little

Photos: STOKER_BENCH_PHOTOS, a folder, else the test data's ImageNet samples, repeated up to STOKER_BENCH_IMAGES (1000) an epoch.
STOKER_BENCH_ONLY=stoker,dali runs those alone, STOKER_BENCH_WORKERS gives all of them more. The table goes to stderr, one JSON
line to stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
from rival_kit import WORKERS, Epoch
from rival_run import CONTENDERS, ROUNDS, Compared, child, chosen, compare, source_photos

BATCH = 128
EPOCHS = int(os.environ.get("STOKER_BENCH_EPOCHS", "2"))
IMAGES = int(os.environ.get("STOKER_BENCH_IMAGES", "1000"))
SAMPLE_S = 0.05
MEDIANS = ("cpu_ms", "images_per_s", "first_batch_s", "start_s", "peak_pss_mb", "others")


def tree() -> Iterator[psutil.Process]:
    """This process's living descendants."""
    yield from psutil.Process().children(recursive=True)


def tree_cpu_s() -> float:
    """CPU seconds of this process and all its descendants so far, living and ended."""
    spent = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        spent += used.ru_utime + used.ru_stime
    for process in tree():
        with contextlib.suppress(psutil.NoSuchProcess):
            spent += sum(process.cpu_times()[:4])  # its own and those of its ended children
    return spent


def idle_shares() -> list[float]:
    """Each core's idle share since the last call."""
    return [1 - busy / 100 for busy in psutil.cpu_percent(percpu=True)]


def taken_by_others(idle: list[float], cpu_s: float, wall_s: float) -> float:
    """The share of all cores that neither idled nor worked for this tree."""
    return max(0.0, 1 - statistics.mean(idle) - cpu_s / wall_s / len(idle))


def peak_pss_mb(epoch: Epoch) -> float:
    """The highest sum of the tree's proportional set sizes during an epoch, in 10^6 bytes."""
    done, peaks = threading.Event(), [0]

    def watch() -> None:
        while not done.wait(SAMPLE_S):
            total = 0
            for process in (psutil.Process(), *tree()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_full_info().pss
            peaks.append(total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in epoch():
        pass
    done.set()
    watcher.join()
    return max(peaks) / 1e6


def measure(epoch: Epoch, batch: int) -> dict[str, Any]:
    """One round, in this process."""
    begun = time.perf_counter()
    warm = epoch()
    next(warm)
    first = time.perf_counter() - begun
    start = time.time() - psutil.Process().create_time()
    for _ in warm:
        pass
    idle_shares()
    cpu, wall = tree_cpu_s(), time.perf_counter()
    images = sum(sum(epoch()) for _ in range(EPOCHS))
    spent_cpu, spent = tree_cpu_s() - cpu, time.perf_counter() - wall
    idle = idle_shares()
    return {
        "cpu_ms": spent_cpu / images * 1e3,
        "images_per_s": images / spent,
        "first_batch_s": first,
        "start_s": start,
        "peak_pss_mb": peak_pss_mb(epoch),
        "idle": [round(share, 2) for share in idle],
        "others": taken_by_others(idle, spent_cpu, spent),
    }


def summary(rounds: list[dict[str, Any]], stoker: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of one contender's rounds, and its ratios to stoker's of the same turn."""
    found: dict[str, Any] = {key: round(statistics.median(one[key] for one in rounds), 3) for key in MEDIANS}
    found["idle"] = sorted(rounds, key=lambda one: float(one["images_per_s"]))[len(rounds) // 2]["idle"]
    for key in ("cpu_ms", "images_per_s"):
        ratios = [one[key] / ours[key] for one, ours in zip(rounds, stoker, strict=False)]
        found[f"{key}_to_stoker"] = round(statistics.median(ratios), 3) if ratios else None
    found["rounds"] = [round(one["cpu_ms"], 3) for one in rounds]
    found["versions"] = rounds[0]["versions"]
    return found


def table(results: dict[str, dict[str, Any]], failed: dict[str, str]) -> str:
    """For people."""
    head = (
        "",
        "CPU ms",
        "× stoker",
        "images/s",
        "× stoker",
        "first batch s",
        "start s",
        "peak PSS MB",
        "others",
        "idle",
    )
    lines = ["".join(f"{cell:>14}" if number else f"{cell:<12}" for number, cell in enumerate(head))]
    for name, row in results.items():
        ratios = [f"{row[key]:.2f}" if row[key] else "" for key in ("cpu_ms_to_stoker", "images_per_s_to_stoker")]
        cells = (
            f"{row['cpu_ms']:.2f}", ratios[0], f"{row['images_per_s']:.0f}", ratios[1], f"{row['first_batch_s']:.2f}",
            f"{row['start_s']:.2f}", f"{row['peak_pss_mb']:.0f}", f"{row['others']:.2f}",
            " ".join(f"{share:.2f}" for share in row["idle"]),
        )  # fmt: skip
        lines.append(f"{name:<12}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines + [f"{name:<12}  left out. {reason}" for name, reason in failed.items()])


def main() -> None:
    """All rounds, the table, the line."""
    photos, differing = source_photos(IMAGES)
    found: Compared = compare(__file__, chosen((*CONTENDERS, "floor")), photos, BATCH)
    ours = found.rounds.get("stoker", [])
    results = {name: summary(rounds, ours) for name, rounds in found.rounds.items()}
    setting = {
        "bench": "rivals", "images": len(photos), "differing_photos": differing, "batch": BATCH, "workers": WORKERS,
        "epochs": EPOCHS, "rounds": ROUNDS, "cores": len(os.sched_getaffinity(0)),
    }  # fmt: skip
    print(
        f"{len(photos)} images an epoch ({differing} differing photos), batch {BATCH}, {WORKERS} workers, "
        f"medians of {ROUNDS} rounds of {EPOCHS} epochs, {setting['cores']} cores",
        file=sys.stderr,
    )
    print(table(results, found.failed), file=sys.stderr)
    print(json.dumps({**setting, "results": results, "left_out": found.failed}))


if __name__ == "__main__":
    child(measure) if len(sys.argv) > 1 else main()
