"""Images: what stoker's decoder costs beside the bare floor. Prints one JSON line.

The floor is simplejpeg's decode and `torch.nn.functional.interpolate(antialias=True)` of the same crops, one thread, nothing
else. Photos lie in the folder STOKER_BENCH_PHOTOS, else the ImageNet samples of STOKER_TEST_DATA (default
../shared/data). Rounds are interleaved, CPU milliseconds an image are medians over the rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
import torch

from stoker.decode import RandomResizedCrop
from stoker.decode.augment import Draws, aligned, random_box

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


if __name__ == "__main__":
    every = photos()
    print(json.dumps({"bench": "images", "photos": len(every), "decoder": decoder_cost(every)}))
