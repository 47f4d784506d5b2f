"""Decodes many images in a process of its own, under a memory limit, and says what became of each.

Run as `python support_decode.py LIMIT_BYTES DECODER FOLDER < names`: prints one JSON line an image.
"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from stoker.decode import CenterCrop, Decoder, Image, RandomResizedCrop, Resize
from stoker.errors import SampleError

DECODERS: dict[str, Decoder] = {
    "Image": Image(),
    "Resize": Resize((32, 48), flip=True),
    "CenterCrop": CenterCrop(40, resize=64),
    "RandomResizedCrop": RandomResizedCrop(24, flip=True),
}


def outcome(decoder: Decoder, raw: bytes) -> dict[str, Any]:
    """What one image gave: size and mean, or the error."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    try:
        pixels = decoder.decode(raw, None, 12345)
    except SampleError as error:
        found: dict[str, Any] = {"error": error.message}
    else:
        found = {"size": list(pixels.shape), "mean": pixels.reshape(-1, 3).mean(axis=0).tolist()}
    found["seconds"] = time.monotonic() - start
    found["grown_bytes"] = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return found


def run(names: list[str], folder: Path, decoder: str, limit_bytes: int, timeout_s: float) -> dict[str, dict[str, Any]]:
    """Outcomes by name, from a subprocess limited to *limit_bytes* of address space; one that dies fails the test."""
    command = [sys.executable, __file__, str(limit_bytes), decoder, str(folder)]
    done = subprocess.run(command, input="\n".join(names), capture_output=True, text=True, timeout=timeout_s)
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, f"after {len(found)} of {len(names)} images: {done.stderr[-2000:]}"
    return found


def photo(height: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    """A smooth colour picture that survives JPEG: low-frequency waves with some noise."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    layers = []
    for _ in range(3):
        a, b, c = random.uniform(0.005, 0.05, 3)
        layers.append(127 + 80 * np.sin(rows * a + columns * b) + 40 * np.cos(rows * c))
    return np.clip(np.stack(layers, axis=-1) + random.normal(0, 2, (height, width, 1)), 0, 255).astype(np.uint8)


def encode(pixels: np.ndarray[Any, Any], kind: str, **options: Any) -> bytes:
    """*pixels* as a file of Pillow's format *kind*."""
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def main() -> Iterator[tuple[str, dict[str, Any]]]:
    """Read names, give outcomes."""
    limit, decoder, folder = int(sys.argv[1]), DECODERS[sys.argv[2]], Path(sys.argv[3])
    decoder.decode(encode(photo(50, 60, 1), "PNG"), None, 0)  # imports what it needs before the limit holds
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name in sys.stdin.read().splitlines():
        yield name, outcome(decoder, (folder / name).read_bytes())


if __name__ == "__main__":
    for result in main():
        print(json.dumps(result), flush=True)
