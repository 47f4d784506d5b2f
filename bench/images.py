"""Images: what stoker's decoder and its whole loader cost beside the bare floor. Prints one JSON line.

`loader` is a warm epoch of packed shards in batches of 128 (JPEG → RandomResizedCrop 224 → flip → uint8 batch, shuffled), CPU
time of the whole process tree; `idle` is the idle share of each core meanwhile, so that a run that had one core is seen.

The floor is simplejpeg's decode and `torch.nn.functional.interpolate(antialias=True)` of the same crops, one thread, nothing
else. Photos lie in the folder STOKER_BENCH_PHOTOS, else the ImageNet samples of STOKER_TEST_DATA (default
../shared/data). Rounds are interleaved, CPU milliseconds an image are medians over the rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import simplejpeg
import torch

import stoker
from stoker.decode import RandomResizedCrop
from stoker.decode.augment import Draws, aligned, random_box
from stoker.pack import pack

SIZE = 224
ROUNDS = int(os.environ.get("STOKER_BENCH_ROUNDS", "5"))


def photos() -> list[bytes]:
    """Every JPEG of the bench's folder, in memory."""
    data = os.environ.get("STOKER_TEST_DATA", str(Path(__file__).resolve().parent.parent.parent / "shared" / "data"))
    folder = Path(os.environ.get("STOKER_BENCH_PHOTOS") or Path(data) / "images" / "imagenet-sample")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise SystemExit(f"{folder}: no JPEGs; set STOKER_BENCH_PHOTOS to a folder of photos")
    return [path.read_bytes() for path in files]


def bare(raw: bytes, draw: int) -> None:
    """Decode and resize the crop of *draw*, and nothing else: at 1/d like stoker where the crop is that large."""
    height, width = simplejpeg.decode_jpeg_header(raw)[:2]
    box = random_box(height, width, Draws(Draws(draw).next()), scale=(0.08, 1), ratio=(3 / 4, 4 / 3))
    box, d = aligned(box, (SIZE, SIZE))
    pixels = simplejpeg.decode_jpeg(raw, "RGB", min_height=-(-height // d), min_width=-(-width // d), min_factor=d)
    crop = pixels[box.top // d : (box.top + box.height) // d, box.left // d : (box.left + box.width) // d]
    planes = torch.from_numpy(crop).permute(2, 0, 1)[None]
    torch.nn.functional.interpolate(planes, (SIZE, SIZE), mode="bilinear", antialias=True)


def decoder_cost(images: list[bytes]) -> dict[str, float]:
    """CPU ms an image of the floor and of the decoder with and without flips, in one thread."""
    torch.set_num_threads(1)
    slots = np.zeros((64, SIZE, SIZE, 3), np.uint8)
    plain, flipped = RandomResizedCrop(SIZE), RandomResizedCrop(SIZE, flip=True)
    runs: dict[str, Callable[[bytes, int], object]] = {
        "bare": bare,
        "stoker": lambda raw, draw: plain.decode(raw, slots[draw % 64], draw),
        "stoker_flip": lambda raw, draw: flipped.decode(raw, slots[draw % 64], draw),
    }
    cost: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS + 1):
        for name, work in runs.items():
            start = time.process_time()
            for draw, raw in enumerate(images):
                work(raw, draw)
            if number:  # the first round warms up
                cost[name].append((time.process_time() - start) / len(images) * 1e3)
    found = {f"{name}_ms": round(statistics.median(values), 4) for name, values in cost.items()}
    ratios = sorted(a / b for a, b in zip(cost["stoker_flip"], cost["bare"], strict=True))
    return {**found, "ratio": round(statistics.median(ratios), 4)}


def tree_cpu_s() -> float:
    """CPU seconds of this process and all its descendants so far."""
    me = psutil.Process()
    return sum(sum(p.cpu_times()[:2]) for p in (me, *me.children(recursive=True)))


def loader_cost(images: list[bytes], folder: Path) -> dict[str, object]:
    """CPU ms an image and images/s of warm epochs, median over ROUNDS, and the wait for the first batch."""
    for number, raw in enumerate(images):
        target = folder / "raw" / f"{number % 10}" / f"{number:06d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(raw)
    pack(str(folder / "raw"), str(folder / "shards"), shard_size="16MB")
    fields: dict[str, object] = {"image": RandomResizedCrop(SIZE, flip=True), "cls": int}
    costs, rates, idles = [], [], []
    with stoker.Loader(stoker.open(folder / "shards"), 128, fields=fields) as loader:
        for epoch in range(ROUNDS + 1):
            psutil.cpu_percent(percpu=True)
            cpu, wall = tree_cpu_s(), time.perf_counter()
            for _ in loader:
                pass
            seen, spent = len(loader) * 128, time.perf_counter() - wall
            if epoch:  # the first epoch warms up
                costs.append((tree_cpu_s() - cpu) / seen * 1e3)
                rates.append(seen / spent)
                idles.append([round(1 - busy / 100, 2) for busy in psutil.cpu_percent(percpu=True)])
        first = loader.report().first_wait_s
    return {
        "cpu_ms": round(statistics.median(costs), 4),
        "images_per_s": round(statistics.median(rates)),
        "first_batch_s": round(first, 2),
        "idle": idles[len(idles) // 2],
    }


def main() -> None:
    """Both measurements, and the ratio that counts."""
    every = photos()
    decoder = decoder_cost(every)
    with tempfile.TemporaryDirectory() as folder:
        loader = loader_cost(every, Path(folder))
    ratio = round(float(str(loader["cpu_ms"])) / decoder["bare_ms"], 3)
    print(json.dumps({"bench": "images", "photos": len(every), "decoder": decoder, "loader": loader, "ratio": ratio}))


if __name__ == "__main__":
    main()
