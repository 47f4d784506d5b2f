"""One dataset in every format: size, write and read samples/s, first-sample latency, remote requests. Prints JSON lines.

STOKER_BENCH_SAMPLES (default 4,000) pictures uint8 [64, 64, 3] (12,288 bytes) with a label, in shards of 500. The same values in
every format: arrays where it has arrays, `.npy` bytes in WebDataset and TFRecord, lossless PNG as raw files.

- write: the format's own writer, one thread, every file fsynced, no index; samples/s, median of the rounds
- read: stoker.Loader, batch 64, fully shuffled, every value in its batch, warm page cache; median of the epochs after the first
- first sample: `stoker.open` with the index in place and one sample, in a fresh process after the imports; median
- remote: GETs and bytes from an S3 server for 1,000 random samples, 8 at a time as a loader asks. HDF5 and tables come as
  whole shards through a cache

`--write` puts the table and the plot into docs/formats.md and docs/formats.svg. Nothing else should run on the machine.
"""

from __future__ import annotations

import io
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import stoker
from stoker.cli.servers import moto_server
from stoker.convert import convert
from stoker.convert.target import TARGETS, Shape, ShardFile
from stoker.store import StoreOptions, connect
from stoker.testing.fault_proxy import FaultProxy

SAMPLES = int(os.environ.get("STOKER_BENCH_SAMPLES", "4000"))
ROUNDS = int(os.environ.get("STOKER_BENCH_ROUNDS", "3"))
SHARD_SAMPLES = 500
SIDE = 64
RANDOM_SAMPLES, TOGETHER = 1_000, 8
DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- bench/formats.py begins -->", "<!-- bench/formats.py ends -->"
ROWS = {
    "bytes_a_sample": "bytes a sample", "write_per_s": "written samples/s", "read_per_s": "read samples/s",
    "first_sample_ms": "first sample, ms", "remote_requests": "requests for 1,000 random samples",
    "remote_mb": "MB for 1,000 random samples",
}  # fmt: skip
FIRST = """
import sys, time
import stoker
stoker.open, stoker.npy
began = time.perf_counter()
stoker.open(sys.argv[1])[int(sys.argv[2])]
print(time.perf_counter() - began)
"""


def picture(number: int) -> np.ndarray:
    """uint8 [64, 64, 3]: smooth with some noise, as photos are."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(coarse).astype(int) + rng.normal(0, 4, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)


def npy(array: np.ndarray) -> bytes:
    """As a file."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def values(format: str) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: A002  # the word of the house
    """Every sample's key and values as the format's writer takes them."""
    for number in range(SAMPLES):
        pixels = picture(number)
        yield f"{number:06d}", {"npy": npy(pixels) if format == "tfrecord" else pixels, "cls": number % 1000}


def write(format: str, folder: Path, samples: list[tuple[str, Mapping[str, Any]]]) -> float:  # noqa: A002
    """Write all shards with the bare writer; seconds."""
    folder.mkdir()
    spent = 0.0
    if format == "files":
        began = time.perf_counter()
        for key, sample in samples:
            out = io.BytesIO()
            Image.fromarray(sample["npy"]).save(out, "PNG")
            for name, data in ((f"{key}.png", out.getvalue()), (f"{key}.cls", str(sample["cls"]).encode())):
                with (folder / name).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
        return time.perf_counter() - began
    target = TARGETS[format]
    for start in range(0, len(samples), SHARD_SAMPLES):
        path = folder / f"shard_{start // SHARD_SAMPLES:05d}{target.suffix}"
        began = time.perf_counter()
        shard = ShardFile(target, path, Shape())
        for key, sample in samples[start : start + SHARD_SAMPLES]:
            shard.add(key, sample)
        shard.close()
        with path.open("rb") as file:
            os.fsync(file.fileno())
        spent += time.perf_counter() - began
    return spent


def read(dataset: stoker.Dataset, fields: Mapping[str, object]) -> float:
    """Samples/s of a warm, shuffled epoch: the median of those after the first."""
    rates = []
    with stoker.Loader(dataset, 64, fields=dict(fields), shuffle="full", output="numpy") as loader:
        for epoch in range(ROUNDS + 1):
            began, count = time.perf_counter(), 0
            for batch in loader:
                count += len(batch["__index__"])
            if epoch:
                rates.append(count / (time.perf_counter() - began))
    return statistics.median(rates)


def first_sample(folder: Path) -> float:
    """Seconds to the first sample in a fresh process: the median."""
    command = [sys.executable, "-c", FIRST, str(folder), str(SAMPLES // 2)]
    return statistics.median(
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2 * ROUNDS + 1)
    )


def remote(folder: Path, port: int, options: Callable[[str], StoreOptions], box: Path) -> tuple[int, float]:
    """Requests and megabytes of 1,000 random samples, the index not counted."""
    store = connect(f"s3://bucket/{folder.name}", options=options(f"http://127.0.0.1:{port}"))
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())
    with FaultProxy("127.0.0.1", port) as proxy:
        rows = folder.name in ("hdf5", "table")
        dataset = stoker.open(
            f"s3://bucket/{folder.name}",
            options=options(proxy.endpoint),
            cache=box / f"cache-{folder.name}" if rows else None,
        )
        before = proxy.counts["requests"], sum(proxy.sent_bytes.values())
        reader, numbers = dataset.reader(), random.Random(0).choices(range(len(dataset)), k=RANDOM_SAMPLES)
        for start in range(0, RANDOM_SAMPLES, TOGETHER):
            reader.read(numbers[start : start + TOGETHER])
        return proxy.counts["requests"] - before[0], (sum(proxy.sent_bytes.values()) - before[1]) / 1e6


def bars(results: Mapping[str, Mapping[str, float]]) -> str:
    """An SVG of one small bar chart a figure."""
    width, bar, left = 250, 16, 90
    height = 40 + bar * len(results)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{3 * width + 20}" height="{2 * height + 20}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for place, (name, title) in enumerate(ROWS.items()):
        x, y = 10 + place % 3 * width, 10 + place // 3 * height
        most = max(result[name] for result in results.values()) or 1
        parts.append(f'<text x="{x}" y="{y + 12}" font-weight="bold">{title}</text>')
        for row, (format_name, result) in enumerate(results.items()):
            top = y + 20 + row * bar
            length = (width - left - 60) * result[name] / most
            parts.append(
                f'<text x="{x + left - 6}" y="{top + 11}" text-anchor="end">{format_name}</text>'
                f'<rect x="{x + left}" y="{top + 2}" width="{length:.1f}" height="{bar - 4}" fill="#b5531c"/>'
                f'<text x="{x + left + length + 4:.1f}" y="{top + 11}" fill="#555">{said(result[name])}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def said(value: float) -> str:
    """A figure with three digits that mean something."""
    return f"{float(f'{value:.3g}'):,.10g}"


def table(results: Mapping[str, Mapping[str, float]]) -> str:
    """The table of the documentation, with what it was measured on."""
    lines = ["| | " + " | ".join(ROWS.values()) + " |", "|---|" + "---:|" * len(ROWS)]
    lines += [f"| {name} | " + " | ".join(said(one[row]) for row in ROWS) + " |" for name, one in results.items()]
    machine = f"{os.cpu_count()} CPUs ({platform.machine()}), Python {platform.python_version()}, {SAMPLES:,} samples"
    return "\n".join([*lines, "", f"Measured by `python bench/formats.py --write` on {machine}.", ""])


def document(results: Mapping[str, Mapping[str, float]]) -> None:
    """Put the figures into the page."""
    page = (DOCS / "formats.md").read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    (DOCS / "formats.md").write_text(f"{before}{BEGIN}\n\n{table(results)}\n{END}{after}")
    (DOCS / "formats.svg").write_text(bars(results))


def measure(name: str, box: Path, port: int, options: Callable[[str], StoreOptions]) -> dict[str, float]:
    """All figures of one format."""
    samples = list(values(name))
    spent = [write(name, box / f"written-{name}-{attempt}", samples) for attempt in range(ROUNDS)]
    folder = box / name
    fields: dict[str, object] = {"npy": stoker.npy, "cls": int}
    if name == "files":
        (box / f"written-{name}-0").rename(folder)
        fields = {"png": stoker.image.Image(), "cls": int}
        read_bytes = sum(path.stat().st_size for path in folder.iterdir())
    else:
        decode = {"webdataset": [], "tfrecord": ["cls"]}.get(name, ["npy", "cls"])
        shard_size = SHARD_SAMPLES * (SIDE * SIDE * 3 + 200)
        convert(box / "written-webdataset-0", folder, format=name, decode=decode, shard_size=shard_size)
        read_bytes = sum(path.stat().st_size for path in folder.glob("shard_*"))
    dataset = stoker.open(folder, label="none" if name == "files" else None)
    found = read(dataset, fields)
    requests, megabytes = remote(folder, port, options, box)
    return {
        "bytes_a_sample": read_bytes / SAMPLES, "write_per_s": SAMPLES / statistics.median(spent), "read_per_s": found,
        "first_sample_ms": 1000 * first_sample(folder), "remote_requests": requests, "remote_mb": megabytes,
    }  # fmt: skip


def main() -> None:
    """Every format in turn."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOKER_BENCH_FOLDER"), prefix="stoker-bench-") as folder:
        box = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(box / "xdg")
        results = {}
        with moto_server() as server:
            server.make_bucket("bucket")

            def options(endpoint: str) -> StoreOptions:
                return StoreOptions(endpoint=endpoint, access_key="testing", secret_key="testing", region="us-east-1")

            for name in (*TARGETS, "files"):
                results[name] = measure(name, box, server.port, options)
                print(json.dumps({"bench": "formats", "format": name, **results[name]}), flush=True)
    if "--write" in sys.argv[1:]:
        document(results)


if __name__ == "__main__":
    main()
