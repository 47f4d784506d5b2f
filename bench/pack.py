"""Pack: bytes/s, digest and index included, beside copying the same bytes with fsync. Prints one JSON line.

The source is a folder of real photos (STOKER_BENCH_PHOTOS, else the ImageNet samples of STOKER_TEST_DATA), each written
as often as it takes to fill STOKER_BENCH_BYTES (default 1GB). The copy reads every file and writes the bytes into files of
a shard's size, each fsynced: what any packer must do at least. Rounds are interleaved; medians. Target: at least 0.7.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stoker.pack import pack
from stoker.pack.job import SHARD_BYTES
from stoker.units import parse_bytes

ROUNDS = int(os.environ.get("STOKER_BENCH_ROUNDS", "5"))


def fill(folder: Path, wanted_bytes: int) -> int:
    """Real photos in class folders until there are so many bytes; how many there are."""
    data = os.environ.get("STOKER_TEST_DATA", str(Path(__file__).resolve().parent.parent.parent / "shared" / "data"))
    photos = Path(os.environ.get("STOKER_BENCH_PHOTOS") or Path(data) / "images" / "imagenet-sample")
    files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise SystemExit(f"{photos}: no JPEGs; set STOKER_BENCH_PHOTOS to a folder of photos")
    written = number = 0
    while written < wanted_bytes:
        source = files[number % len(files)]
        target = folder / f"class_{number % 100:02d}" / f"{number:07d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        written += target.stat().st_size
        number += 1
    return written


def bare_copy(source: Path, target: Path) -> None:
    """Every file's bytes into files of a shard's size, fsynced."""
    target.mkdir()
    out, size, number = None, SHARD_BYTES, 0
    for path in sorted(source.rglob("*.jpg")):
        if out is None or size >= SHARD_BYTES:
            if out is not None:
                os.fsync(out.fileno())
                out.close()
            out, size, number = (target / f"{number}").open("wb", buffering=0), 0, number + 1
        size += out.write(path.read_bytes())
    if out is not None:
        os.fsync(out.fileno())
        out.close()


def measure(work: Callable[[Path], object], folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of one run into a fresh folder, which is deleted."""
    target = folder / "target"
    os.sync()
    wall, cpu = time.perf_counter(), time.process_time()
    work(target)
    spent = time.perf_counter() - wall, time.process_time() - cpu
    shutil.rmtree(target)
    return spent


def main() -> None:
    """Interleaved rounds of both."""
    with tempfile.TemporaryDirectory(prefix="stoker-bench-", dir=os.environ.get("STOKER_BENCH_FOLDER")) as box:
        source, folder = Path(box, "source"), Path(box)
        count_bytes = fill(source, parse_bytes(os.environ.get("STOKER_BENCH_BYTES", "1GB")))
        runs: dict[str, Callable[[Path], object]] = {
            "copy": lambda target: bare_copy(source, target),
            "pack": lambda target: pack(source, target),
        }
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, work in runs.items():
                spent[name].append(measure(work, folder))
        rate = {name: count_bytes / statistics.median(wall for wall, _ in times) / 1e6 for name, times in spent.items()}
        cpu_s = {name: round(statistics.median(cpu for _, cpu in times), 3) for name, times in spent.items()}
        report = {
            "bench": "pack",
            "bytes": count_bytes,
            "mb_per_s": {name: round(value) for name, value in rate.items()},
        }
        print(json.dumps({**report, "cpu_s": cpu_s, "ratio": round(rate["pack"] / rate["copy"], 3), "target": 0.7}))


if __name__ == "__main__":
    main()
